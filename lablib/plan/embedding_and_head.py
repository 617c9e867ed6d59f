"""Embedding before the first layer; final norm, head and loss after the last.

The head is a product with V columns: for BLOOM's vocabulary of 250,880 the FLOPs of 1.4 layers, all of them on the
last stage; the loss reads V numbers per token several times, in FP32.

    embedding   reads and writes R rows of D (twice with learned positions), summed over the tensor ranks; backward
                zeroes a gradient of V / t rows, and adds R rows to it (3 g V D / t + 2 w R D bytes)
    head        a norm, [R, D] x [D, V / t] and its two gradients, a sum over the tensor ranks in backward
    loss        R V / t logits, `loss_bytes` of each: to FP32, largest, exponential, sum, pick; half of them in backward

    kept        R D / t or R D masks of dropout; the inputs of norm and head; `loss_saved_bytes` of each logit

Legend: as layer/; g bytes of a gradient, w of any other number. Each of the t tensor ranks holds V / t rows of both
tables, rounded up.

Source: Shoeybi et al., 2019, arXiv 1909.08053, section 3 (vocabulary-parallel embedding and cross-entropy); Korthikanti
et al., 2022, arXiv 2205.05198, section 4.3 (their activations).
Simplified: the kernels of the embedding and of the loss are counted as 5 each way, and 10 and 5: an estimate.
"""

from lablib.cost.arrays import ceil_div
from lablib.models.transformer import Transformer
from lablib.plan.layer import Sizes, Work, linear, norm
from lablib.plan.machine import Machine, PassTime


def embedding(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Token (and learned position) embeddings; the mask of their dropout is kept."""
    numbers = sizes.rows * model.d_model
    gather = machine.stream_s(numbers * machine.width * (4 if model.positions == "learned" else 2))
    table = ceil_div(model.vocab_size, sizes.tensor) * model.d_model
    scatter = machine.stream_s(table * machine.gradient_bytes * 3 + numbers * machine.width * 2)
    sum_s = machine.collective_s("all_reduce", numbers * machine.width, sizes.tensor)
    work = Work(PassTime(memory_s=gather, tensor_s=sum_s, kernels=5), PassTime(), PassTime(memory_s=scatter, kernels=5))
    masks, indices = numbers / sizes.sequence_shards * machine.stack.has_dropout, sizes.rows * 8
    return work._replace(saved_bytes=masks + indices)


def head(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Final norm, logits and loss."""
    columns = ceil_div(model.vocab_size, sizes.tensor)
    outside = sizes.rows * model.d_model / sizes.sequence_shards
    work = norm(machine, model, outside)
    logits = linear(machine, sizes.rows, model.d_model, columns, machine.plain)
    sum_s = machine.collective_s("all_reduce", sizes.rows * model.d_model * machine.width, sizes.tensor)
    kernels = (sizes.tensor > 1) * 1.0
    work = work.plus(logits._replace(saved_bytes=logits.saved_bytes / sizes.sequence_shards))
    work = work.plus(Work(PassTime(), PassTime(tensor_s=sum_s, kernels=kernels), PassTime()))
    size = sizes.rows * columns
    loss_s = machine.stream_s(size * machine.stack.loss_bytes / 2)
    loss = Work(PassTime(memory_s=loss_s, kernels=10), PassTime(memory_s=loss_s, kernels=5), PassTime())
    peak = machine.stack.loss_peak_bytes
    split = peak if machine.stack.split_loss_peak_bytes is None else machine.stack.split_loss_peak_bytes
    peak = peak + (sizes.tensor > 1) * (split - peak)
    return work.plus(loss._replace(saved_bytes=size * machine.stack.loss_saved_bytes, peak_bytes=size * peak))
