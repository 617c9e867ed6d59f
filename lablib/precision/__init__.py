"""Number formats and low-precision training. Read `formats.py` first.

formats             FP32 to E2M1 as data: range, precision, all numbers
exponents           exponents of gradients, and the losses of each format
rounding            round to a format: nearest or stochastic
running_sum         small updates that are lost, and remedies
loss_scaling        gradients that would underflow in FP16
mixed_precision     16-bit steps, 32-bit weights: a real run in each format
savings             memory savings: bytes of a step by content
product_speed       speedup of a product in fewer bits, by size
equal_loss          speedup per step and to equal loss
autocast            the casts of torch.autocast, by operator
block_scaling       a scale for each block of numbers: FP8, MXFP8, MXFP4, NVFP4
hadamard            spread an outlier over its neighbours
quantized_linear    a linear layer with its three products in a recipe
int4_training       a linear layer on 4-bit integers
recipe_speed        seconds of a linear layer in a recipe
recipe_runs         the same run in every recipe, recorded
best_format         choose the number format for a device
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
