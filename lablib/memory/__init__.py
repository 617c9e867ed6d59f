"""Activation memory: the tensors kept for backward, and ways to keep fewer. Read `saved_tensors.py` first.

saved_tensors           what each operator keeps, read from autograd's graph
checkpointing           keep inputs of segments, compute the rest again: plans as data
optimal_checkpointing   the quickest plan for a budget of bytes
packed_memory           keep something else for what autograd saves, each memory once
activation_compression  keep it in 8 bits
offload                 keep it in the host's memory, and have it back in time
ways_to_fit             which of these, or a smaller micro-batch: bytes and seconds by device
linear_cross_entropy    the head's loss without its logits
training_step           the step whose memory is written out: precision, masters, checkpoints
step_trace              a step as a list of operators and what each holds, for every micro-batch
step_script             the plain GPT's step, operator by operator
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
