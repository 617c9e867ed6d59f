"""Bytes sent and kept by a tensor-parallel layer: f and g, sequence parallelism, gathering again in backward.

    each way of a layer         forward                          backward                         sent by a rank
    f and g                     2 all-reduces                    2 all-reduces                    8 (n-1)/n S
    sequence                    2 all-gathers, 2 reduce-scatters  the same                        8 (n-1)/n S
    sequence, gathered again    the same                         2 all-gathers more               10 (n-1)/n S

Kept for backward by a layer, per rank, with flash attention and no dropout as in lablib:

                                f and g         sequence        gathered again
    inputs of two norms         2 S             2 S / n         2 S / n
    inputs of the two regions   2 S             2 S             2 S / n          outputs of the norms, gathered
    queries, keys, values       3 S / n         3 S / n         3 S / n
    attention's output          S / n           S / n           S / n
    hidden, before and after    2 F/D S / n     2 F/D S / n     2 F/D S / n
    statistics of two norms     4 N s           4 N s / n       4 N s / n        mean and 1 / deviation
    logsumexp of the scores     N H s / n       N H s / n       N H s / n

With F = 4 D and w = 2: 8 + 24/n, 4 + 28/n and 32/n times N D, plus the last two rows. Korthikanti et al. have 10 + 24/n
and 34/n: the difference are two dropout masks of N D bytes; and 5 N H T / n for scores, which flash attention does not
keep (tests/parallel/tensor/test_bytes.py computes theirs from the same rows).

2D tensor parallelism cuts both factors of a product. On a grid of q x q = n ranks it sends blocks of activations along
rows and blocks of weights along columns: 3 (q-1)/n (7 S + 12 D^2 w) for a layer. The part of activations falls with q,
while 8 (n-1)/n S of one dimension does not, so 2D sends less if a batch has many tokens:

    N > 36 D / (8 q - 13)        4 ranks: N > 12 D, 16 ranks: 1.9 D, 64 ranks: 0.7 D

Cost: some sums; does not communicate or need torch.
Legend: N = B T tokens, T time, D width, F hidden, H heads, n ranks; w bytes per number, S = N D w; s bytes per
statistic.
Source: Korthikanti et al., 2022, arXiv 2205.05198, equations 1 to 4 and section 4.2.2; Xu et al., "An Efficient 2D
Method for Training Super-Large Deep Learning Models" (Optimus), 2021, arXiv 2104.05343, table 1 (7 bsh + 12 h^2).
Simplified: rings; sizes that n divides; as many key-value heads as heads; 2D: only bytes, F = 4 D, without the latency
of its additional messages.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Annotated

from lablib.signature import Checked, Count, NonNegativeInt, Range, checked

Square = Annotated[int, Range(ge=4)]  # of ranks, q x q


@dataclass(frozen=True, slots=True)
class LayerSizes(Checked):
    """A layer of a GPT and its micro-batch."""

    batch: Count  # batch, seq_len: B and T
    seq_len: Count
    width: Count  # width, heads: D and H
    heads: Count
    hidden: NonNegativeInt = 0  # F; 0 means 4 D
    element_bytes: Count = 2  # w, of activations; 2 for 16 bits
    statistic_bytes: Count = 4  # s, of a norm's mean and of a logsumexp; 4, with float64 8

    @property
    def tokens(self) -> int:
        """N = B T."""
        return self.batch * self.seq_len

    @property
    def activation_bytes(self) -> int:
        """S = N D w, of the residual stream."""
        return self.tokens * self.width * self.element_bytes

    @property
    def hidden_size(self) -> int:
        return self.hidden or 4 * self.width


@dataclass(frozen=True, slots=True)
class Kept:
    """A row of the bytes kept: its name, its bytes on this rank, and whether it is cut over ranks."""

    name: str
    size_bytes: int
    is_cut: bool


@checked
def kept_by_layer(
    layer: LayerSizes, ranks: Count, *, sequence: bool = False, gathers_again: bool = False
) -> tuple[Kept, ...]:
    """Bytes that one layer keeps for backward on each rank, row by row.

    Arguments:
        ranks: n, which divides the heads, the hidden width and, with `sequence`, the tokens (otherwise ValueError).
        sequence: sequence parallelism.
        gathers_again: with `sequence`, backward gathers the inputs of the regions again (`tensor/overlap.py`).
    """
    check_layer(layer, ranks, sequence, gathers_again)
    stream, statistic = layer.activation_bytes, layer.tokens * layer.statistic_bytes
    hidden = layer.tokens * layer.hidden_size * layer.element_bytes
    rows = (
        ("inputs of norms", 2 * stream, sequence),
        ("inputs of regions", 2 * stream, gathers_again),
        ("queries, keys, values", 3 * stream, True),
        ("attention's output", stream, True),
        ("hidden, before and after GELU", 2 * hidden, True),
        ("statistics of norms", 4 * statistic, sequence),
        ("logsumexp of scores", layer.heads * statistic, True),
    )
    return tuple(Kept(name, size // ranks if is_cut else size, is_cut) for name, size, is_cut in rows)


@checked
def kept_bytes(layer: LayerSizes, ranks: Count, *, sequence: bool = False, gathers_again: bool = False) -> int:
    """The sum of `kept_by_layer`. Arguments and Raises as there."""
    return sum(row.size_bytes for row in kept_by_layer(layer, ranks, sequence=sequence, gathers_again=gathers_again))


@checked
def layer_sent_bytes(layer: LayerSizes, ranks: Count, *, sequence: bool = False, gathers_again: bool = False) -> float:
    """Bytes that each rank sends for one layer, forward and backward, by rings.

    With sequence parallelism also for gradients of parameters used on cut tokens: two norms and two biases, 6 D
    numbers. Arguments and Raises as `kept_by_layer`.
    """
    check_layer(layer, ranks, sequence, gathers_again)
    share = (ranks - 1) / ranks
    weights = 2 * 6 * layer.width * layer.element_bytes if sequence else 0
    return share * ((10 if gathers_again else 8) * layer.activation_bytes + weights)


@checked
def two_dimensional_sent_bytes(layer: LayerSizes, ranks: Square) -> float:
    """Bytes that each rank of a q x q grid sends for one layer with 2D tensor parallelism, forward and backward."""
    side = _side(ranks)
    weights = 12 * layer.width**2 * layer.element_bytes
    return 3 * (side - 1) / ranks * (7 * layer.activation_bytes + weights)


@checked
def fewest_tokens_for_2d(width: Count, ranks: Square) -> float:
    """Tokens of a micro-batch above which 2D sends less than f and g. Raises as `two_dimensional_sent_bytes`."""
    return 36 * width / (8 * _side(ranks) - 13)


def _side(ranks: int) -> int:
    side = isqrt(ranks)
    if side**2 != ranks:
        raise ValueError(f"2D tensor parallelism needs a square of ranks: got {ranks}; try {side**2}.")
    return side


@checked
def check_layer(layer: LayerSizes, ranks: Count, sequence: bool = False, gathers_again: bool = False) -> None:
    """Raise ValueError for ranks that do not divide the sizes."""
    if gathers_again and not sequence:
        raise ValueError("gathers_again needs sequence parallelism: got sequence=False.")
    sizes = {"heads": layer.heads, "width": layer.width, "hidden": layer.hidden_size}
    for name, size in (sizes | {"seq_len": layer.seq_len} if sequence else sizes).items():
        if size % ranks:
            raise ValueError(f"{name} must be a multiple of the ranks: got {size} and {ranks} ranks.")
