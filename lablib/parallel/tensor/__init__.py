"""Tensor parallelism: every rank computes all tokens with a shard of each matrix.

regions            Megatron's f and g, and how a dimension is cut
linear             one matrix by columns or by rows
mlp                columns, then rows: an MLP with one all-reduce each way
attention          heads; grouped queries with fewer key-value heads than ranks
sequence_parallel  all-gather and reduce-scatter instead of f and g; norms on this rank's tokens
overlap            backward's communication at the same time as the weight gradient
asynchronous       product and collective in chunks, each at the same time as the other
vocabulary         embedding, head and loss by words: the logits are never gathered
plan               which module is cut how, as data, with the rules of a valid plan
parallelize        a plain model cut by a plan
state              parameters, gradients and gradient norm of a model that is cut
random             random numbers that must agree over ranks, and those that must differ
bytes              bytes sent and stored per layer; when two dimensions send less
"""
