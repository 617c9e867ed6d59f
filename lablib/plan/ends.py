"""The ends of the model: embedding before the first layer, final norm, head and loss after the last.

What whole-model planners forget. The head is a product with V columns: for BLOOM's vocabulary of 250,880 as long as 1.1
layers, all of it on the last stage; the loss goes over V numbers a token several times, in FP32.

    embedding   gathers R rows of D; backward adds R rows to V / t rows that are zeroed first
    head        [R, D] x [D, V / t] and its two gradients
    loss        R V / t logits: to FP32, largest, exponential, sum, pick; backward the same tensor again

Legend: as layer.py. Each of the t tensor ranks holds V / t rows of both tables.

Source: Shoeybi et al., 2019, arXiv 1909.08053, section 3 (vocabulary-parallel embedding and cross-entropy).
"""

from lablib.cost.arrays import ceil_div
from lablib.models.transformer import Transformer
from lablib.plan.layer import Sizes, Work, linear, passes
from lablib.plan.machine import Machine, Pass


def embedding(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Token (and learned position) embeddings, and their dropout."""
    numbers = at.rows * model.d_model
    gather = on.stream_s(numbers * on.width * (4 if model.positions == "learned" else 2))
    table = ceil_div(model.vocab_size, at.tensor) * model.d_model
    scatter = on.stream_s(table * on.gradient_bytes * 3 + numbers * on.width * 2)
    sum_s = on.collective_s("all_reduce", numbers * on.width, at.tensor)
    kernels = 5
    work = Work(Pass(memory_s=gather, tensor_s=sum_s, kernels=kernels), Pass(), Pass(memory_s=scatter, kernels=kernels))
    saved = numbers / at.sequence_shards * on.stack.has_dropout + at.rows * 8
    return work._replace(saved_bytes=saved)


def head(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Final norm, logits and loss."""
    columns = ceil_div(model.vocab_size, at.tensor)
    outside = at.rows * model.d_model / at.sequence_shards
    work = passes(on, outside, *on.stack.passes_norm, saved_bytes=outside * on.width)
    logits = linear(on, at.rows, model.d_model, columns, on.plain)
    sum_s = on.collective_s("all_reduce", at.rows * model.d_model * on.width, at.tensor)
    kernels = (at.tensor > 1) * 1.0
    work = work.plus(logits._replace(saved_bytes=logits.saved_bytes / at.sequence_shards))
    work = work.plus(Work(Pass(), Pass(tensor_s=sum_s, kernels=kernels), Pass()))
    size = at.rows * columns
    loss_s = on.stream_s(size * on.stack.loss_bytes / 2)
    loss = Work(Pass(memory_s=loss_s, kernels=10), Pass(memory_s=loss_s, kernels=5), Pass())
    return work.plus(
        loss._replace(saved_bytes=size * on.stack.loss_kept_bytes, peak_bytes=size * on.stack.loss_peak_bytes)
    )
