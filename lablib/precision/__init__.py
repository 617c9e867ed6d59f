"""Number formats, and training in few bits. Read `formats.py` first.

formats             FP32 to E2M1 as data: range, precision, every number
exponents           of gradients: the losses of each format
rounding            to a format: nearest or stochastic
running_sum         small updates that are lost, and what helps
loss_scaling        gradients that would underflow in FP16
mixed_precision     16-bit steps, 32-bit weights: a real run in each format
savings             of memory: bytes of a step by content
product_speed       of a product in fewer bits, by its size
equal_loss          a speed claim, made twice
autocast            what torch casts, operator by operator
block_scaling       a scale for each block of numbers: FP8, MXFP8, MXFP4, NVFP4
hadamard            an outlier, spread over its neighbours
quantized_linear    a linear layer with its three products in a recipe
int4_training       the same on 4-bit integers
recipe_speed        seconds of a linear layer in a recipe
recipe_runs         the same run in every recipe, recorded
best_format         what to train in on a device
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
