"""Tensor parallelism: every rank computes all tokens with a shard of each matrix.

regions            Megatron's f and g, and the cut of a dimension
linear             one matrix by columns or by rows
mlp                columns, then rows: an MLP with one all-reduce forward and one backward
attention          heads; grouped queries with fewer key-value heads than ranks
sequence_parallel  all-gather and reduce-scatter instead of f and g; norms on this rank's tokens
overlap            overlap of backward's communication with the weight gradient
asynchronous       product and collective in chunks that overlap
vocabulary         embedding, head and loss by words, without gathering logits
plan               the cuts of modules as data, and the rules of a valid plan
parallelize        a plain model cut by a plan
state              whole parameters, gradients and gradient norm of a cut model
random             random numbers that must agree or differ over ranks
bytes              bytes sent and stored per layer, also for 2D tensor parallelism
"""
