"""Bytes that each optimizer keeps, by formula.

For a matrix of m x n numbers of b bytes each, N = m n; k = min(m, n), K = max(m, n), r the rank, B the block:

    adamw, lamb, sophia     2 b N                                               8 a parameter for b = 4
    lion, muon              b N                                                 4
    adafactor               b (m + n)                                           4 (1/m + 1/n)
    adam_bf16               4 N                                                 4
    adam8bit                2 N + 8 ceil(N / B)                                 2.03 for B = 256
    soap                    2 b N + 2 b (m^2 + n^2)                             24 for m = n
    galore                  b (2 r K + r k)                                     4 (2 r / k + r / K)
    q_galore                2 r K + 8 ceil(r K / B) + ceil(r k / 2) + 8 ceil(r k / 256)

Vectors, and what has no rank, is kept as by adamw (by adam8bit for q_galore); adam8bit keeps fewer than 4,096 numbers
as adamw does; SOAP counts only sides of at most `max_precond_dim`. Steps are counted in Python and take nothing.

The same numbers come from `BatchedOptimizer.state_bytes()`, and from a run's memory (category "optimizer state").

Source: the heads of the files of these names.
"""

import math
from collections.abc import Sequence
from typing import Annotated

from lablib.signature import OneOf, checked

OPTIMIZERS = tuple("adamw adafactor lamb lion sophia muon soap adam8bit adam_bf16 galore q_galore".split())


@checked
def state_bytes(
    optimizer: Annotated[str, OneOf(OPTIMIZERS)],
    shape: Sequence[int],
    *,
    itemsize: int = 4,
    rank: int | None = None,
    block_size: int = 256,
    min_8bit_size: int = 4096,
    max_precond_dim: int = 10_000,
) -> int:
    """Bytes that an optimizer keeps for one parameter of this shape, after its first step.

    Arguments:
        optimizer: the name of its file.
        shape: of the parameter.
        itemsize: bytes of one of its numbers.
        rank, block_size, min_8bit_size, max_precond_dim: as of the optimizers that have them.
    """
    numel, full = math.prod(shape), itemsize * math.prod(shape)
    if optimizer in ("galore", "q_galore") and rank is not None and len(shape) == 2:
        low, axes = rank * max(shape), rank * min(shape)
        if optimizer == "galore":
            return itemsize * (2 * low + axes)
        return _coded(low, block_size) + -(-axes // 2) + 8 * -(-axes // 256)
    if optimizer in ("adam8bit", "q_galore"):
        return _coded(numel, block_size) if numel >= min_8bit_size else 2 * full
    if optimizer == "adafactor" and len(shape) >= 2:
        return full // shape[-1] + full // shape[-2]
    if optimizer == "soap" and len(shape) == 2:
        return 2 * full + 2 * itemsize * sum(side**2 for side in shape if side <= max_precond_dim)
    if optimizer == "adam_bf16":
        return 4 * numel
    return full if optimizer in ("lion", "muon", "adafactor") else 2 * full


def _coded(numel: int, block_size: int) -> int:
    """Two means in a byte each, and a scale of 4 bytes for each block of either."""
    return 2 * numel + 2 * 4 * -(-numel // block_size)
