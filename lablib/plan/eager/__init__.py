"""A step of eager torch beyond its layers (layer/operators.py): data axis, optimizer, messages, memory.

data.py       the data axis: DDP, ZeRO-1, FSDP2
optimizer.py  the update, tensor by tensor
messages.py   a pipeline with messages that wait for each other
memory.py     moments at which memory may peak
sharded.py    the same under FSDP2
peak.py       peak memory of a rank, by category
"""
