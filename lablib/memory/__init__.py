"""Activation memory: the tensors kept for backward, and ways to keep fewer. Read `saved_tensors.py` first.

saved_tensors           memory that each operator keeps, read from autograd's graph
checkpointing           keep the inputs of segments, recompute the rest: plans as data
optimal_checkpointing   the fastest plan for a budget of bytes
packed_memory           pack the memory that autograd saves, shared memory once
activation_compression  keep activations in 8 bits
offload                 keep activations in host memory, and prefetch them for backward
ways_to_fit             compare these ways and a smaller micro-batch: bytes and seconds by device
linear_cross_entropy    the head's loss without its logits
training_step           the step of `step_memory`: precision, masters, checkpoints
step_trace              a step as a list of operators and the bytes held, for any micro-batch
step_script             the plain GPT's step, operator by operator
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
