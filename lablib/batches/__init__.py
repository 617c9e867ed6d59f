"""Batches: their size, accumulation, schedules, and the effects of size. Read `batch.py` first.

batch           micro-batch x accumulation x data ranks = global batch
accumulation    a large batch in parts, each token with the same weight
clipping        gradient clipping by norm, over parameters, shards and ranks
schedules       the learning rate by step: warmup, cosine, linear, WSD
noise_scale     signal and noise of gradients, and the gain of a larger batch
large_batch     the learning rate for another batch size: linear and square-root scaling
batch_rules     published laws of the batch size by loss, compute or tokens
mup             muP: a learning rate for any width of the model
packing         documents of different lengths in blocks: first fit, best fit
packed_attention
                that they do not see each other, and the savings
small_runs      small runs on real text, and the records of many of them
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
