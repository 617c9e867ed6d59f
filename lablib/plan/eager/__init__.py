"""A step of eager torch, operator by operator, as the simulator runs it.

operators.py  an operator: its bytes and its launch
ring.py       attention of ranks that share every sequence
layer.py      a layer, the embedding and the head
experts.py    experts instead of the MLP
data.py       the data axis: DDP, ZeRO-1, FSDP2
optimizer.py  the update, tensor by tensor
messages.py   a pipeline with messages that wait for each other
memory.py     moments at which memory may peak
sharded.py    the same under FSDP2
peak.py       peak memory of a rank, by category
"""
