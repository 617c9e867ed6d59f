"""A step of eager torch, operator by operator: what the planner says of the stacks that run so, and the simulator too.

operators.py  an operator: its bytes and its launch
ring.py       attention of ranks that share every sequence
layer.py      a layer and the ends of a model
experts.py    experts in the place of the MLP
data.py       ranks with other sequences: DDP, ZeRO-1, FSDP2
optimizer.py  the update, tensor by tensor
messages.py   a pipeline whose messages wait for each other
memory.py     where memory peaks, moment by moment
sharded.py    the same under FSDP2
peak.py       what a rank keeps at its peak, by category
"""
