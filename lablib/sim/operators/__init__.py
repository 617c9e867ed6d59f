"""Operators of a simulated rank: cost, output shapes, and torch's modes.

clock         the compute stream: each operator advances the rank's clock
op_traits     facts about an operator that clock and memory tracker need, from its schema
shapes        `fidelity="shapes"`: tensors without values
meta_kernels  fast meta kernels
autocast      `torch.autocast` with shapes alone
compiled      compiled functions, run eagerly
gpu_kernels   operators that are one kernel on a GPU alone
kernel_choices  settings of cuDNN, which choose kernels on a GPU only
"""
