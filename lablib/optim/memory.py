"""Bytes that each optimizer keeps, by formula.

For a matrix of m x n numbers of b bytes each, N = m n; k = min(m, n), K = max(m, n), r the rank, B the block:

    adamw, lamb, sophia     2 b N                                               8 per parameter for b = 4
    lion, muon              b N                                                 4
    adafactor               b (m + n)                                           4 (1/m + 1/n)
    adam_bf16               4 N                                                 4
    adam8bit                2 N + 8 ceil(N / B)                                 2.03 for B = 256
    soap                    2 b N + 2 b (m^2 + n^2)                             24 for m = n
    galore                  b (2 r K + r k)                                     4 (2 r / k + r / K)
    q_galore                2 r K + 8 ceil(r K / B) + ceil(r k / 2) + 8 ceil(r k / 256)

Vectors, and parameters without a rank, are as in adamw (in adam8bit for q_galore); tensors of fewer than 4,096 numbers
in adam8bit are as in adamw; SOAP counts only sides of at most `max_precond_dim`. Steps are counted in Python and take
no bytes.

The same numbers come from `BatchedOptimizer.state_bytes()`, and from a run's memory (category "optimizer state").

Source: the heads of the files of these names, which have the formulas (`bytes_of`).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import lablib.optim as index
from lablib.optim.base import BatchedOptimizer
from lablib.signature import Count, NonNegativeInt, OneOf, checked


def _optimizers() -> dict[str, type[BatchedOptimizer]]:
    names = [name for name in vars(index)["__all__"] if name not in ("OPTIMIZERS", "state_bytes", "BatchedOptimizer")]
    classes = [getattr(index, name) for name in names if name[0].isupper()]
    return {kind.__module__.rpartition(".")[2]: kind for kind in classes if issubclass(kind, BatchedOptimizer)}


# Every optimizer of the package's index, by the name of its file.
OPTIMIZERS: Mapping[str, type[BatchedOptimizer]] = MappingProxyType(_optimizers())


@checked
def state_bytes(
    optimizer: Annotated[str, OneOf(OPTIMIZERS)],
    shape: Sequence[NonNegativeInt],
    *,
    itemsize: Count = 4,
    rank: Count | None = None,
    block_size: Count = 256,
    min_8bit_size: NonNegativeInt = 4096,
    max_precond_dim: NonNegativeInt = 10_000,
) -> int:
    """Bytes that an optimizer, by the name of its file, keeps for one parameter of this shape, after its first step.

    `itemsize`: bytes of one of its numbers; the others: settings of the optimizers that have them.
    """
    settings = {"rank": rank, "block_size": block_size, "min_8bit_size": min_8bit_size}
    return OPTIMIZERS[optimizer].bytes_of(shape, itemsize, settings | {"max_precond_dim": max_precond_dim})
