"""How large a batch is, how it is made of parts, and what its size changes. Read `batch.py` first.

batch           micro-batch x accumulation x data ranks = global batch
accumulation    a large batch in parts, each token with the same weight
clipping        a gradient that is too long, shortened: over parameters, shards and ranks
schedules       the learning rate by step: warmup, cosine, linear, WSD
"""
