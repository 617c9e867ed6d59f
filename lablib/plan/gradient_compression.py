"""Cost of gradient compression: bytes on the wire, passes over memory, and the residual of error feedback.

Ranks exchange fewer bits, and pay with arithmetic. A lossy method adds its residual to the next step's gradient (error
feedback), which takes a 32-bit number per gradient. For N gradients in matrices of r rows and c columns:

    name        message S of one rank              exchanged by
    none        N * bytes of a gradient            all_reduce    2 (n-1)/n S sent by each of n ranks
    fp16, bf16  2 N                                all_reduce
    int8, int4  N, N/2; + 4 per block              two_phase     pieces to their owners, sums back: 2 (n-1)/n S
    one-bit     N/8 + 4                            two_phase
    top-k       8 k N: a value and an index        all_gather    positions differ, so no sums on the way: (n-1) S
    powersgd    4 k N (1/r + 1/c): two factors     all_reduce    twice; vectors uncompressed

    moved = gradients read, message written, message read, gradients written;  two_phase: also the sums of pieces;
            all_gather: n messages read;  error feedback: the residual read and written

Source: Micikevicius et al., arXiv 1710.03740 (16 bits); Wang et al., ZeRO++, 2023, arXiv 2306.10209, section 3.3 (INT4
in blocks, reduced by all-to-all); Tang et al., 1-bit Adam, 2021, arXiv 2102.02888, sections 3 and 5; Aji and Heafield,
2017, arXiv 1704.05021, and Lin et al., Deep Gradient Compression, 2017, arXiv 1712.01887 (top-k); Vogels et al.,
PowerSGD, 2019, arXiv 1905.13727, algorithm 1.
Simplified: the caller adds 1-bit Adam's first, uncompressed steps; top-k selects in four readings (a search by eight
bits at a time); PowerSGD's vectors are exchanged without loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from lablib.cost.arrays import Numbers, ceil_div, minimum
from lablib.errors import unknown_name
from lablib.signature import Checked, Count, NonNegativeInt, OneOf, PositiveFraction

ALL_REDUCE, ALL_GATHER, TWO_PHASE = "all_reduce", "all_gather", "two_phase"


@dataclass(frozen=True, slots=True)
class GradientCompression(Checked):
    """One method of gradient compression."""

    name: str  # its name in the catalogue
    source: str  # its publication
    # "all_reduce", "all_gather" or "two_phase" (all-to-all, sum, all-gather)
    exchange: Annotated[str, OneOf((ALL_REDUCE, ALL_GATHER, TWO_PHASE))] = ALL_REDUCE
    bits: Count | None = None  # of a number in the message; None: as many as the gradient
    # numbers that share a 32-bit scale; 0: one for the whole message; None: no scale
    block: NonNegativeInt | None = None
    ratio: PositiveFraction | None = None  # share k of the gradients that are sent, each with a 32-bit index; None: all
    rank: Count | None = None  # of the two factors that are sent for a matrix; None: the matrix
    has_error_feedback: bool = False  # whether the residual is kept for the next step
    choice_reads: NonNegativeInt = 0  # readings of the gradients to select the ones to send

    @property
    def is_none(self) -> bool:
        """Whether gradients are sent as they are."""
        lossy = (self.bits, self.block, self.ratio, self.rank)
        return self.exchange == ALL_REDUCE and not any(each is not None for each in lossy)

    def wire_bytes(
        self, grads: Numbers, *, rows: Numbers | None = None, columns: Numbers | None = None, grad_bytes: int = 4
    ) -> Numbers:
        """Bytes of the message S of one rank; its exchange sends it more than once (`sent_bytes`).

        Arguments:
            grads: number of gradients; a number or a numpy array.
            rows, columns: shape of their matrices; None for vectors.
            grad_bytes: of one gradient before compression.
        """
        if self.rank is not None and rows is not None and columns is not None:
            rank = minimum(self.rank, minimum(rows, columns))
            return 4 * rank * grads * (1 / rows + 1 / columns)
        bits = 8 * grad_bytes if self.bits is None else self.bits
        if self.ratio is not None:
            return self.ratio * grads * (bits / 8 + 4)
        scales = 0 if self.block is None else ceil_div(grads, self.block) if self.block else 1
        return bits * grads / 8 + 4 * scales

    def sent_bytes(self, message_bytes: Numbers, ranks: Numbers) -> Numbers:
        """Bytes that each rank sends for a message of that size (rings; lablib/cost/collective.py)."""
        if self.exchange == ALL_GATHER:
            return (ranks - 1) * message_bytes
        return 2 * (ranks - 1) / ranks * message_bytes

    def moved_bytes(
        self,
        grads: Numbers,
        *,
        ranks: Numbers = 2,
        rows: Numbers | None = None,
        columns: Numbers | None = None,
        grad_bytes: int = 4,
    ) -> Numbers:
        """Bytes that packing and unpacking read and write in device memory, without the exchange itself."""
        if self.bits in (None, 8 * grad_bytes) and (self.ratio, self.rank, self.block) == (None, None, None):
            return 0 * grads  # gradients are sent as they are
        message = self.wire_bytes(grads, rows=rows, columns=columns, grad_bytes=grad_bytes)
        moved = 2 * grad_bytes * grads + (1 + (ranks if self.exchange == ALL_GATHER else 1)) * message
        if self.exchange == TWO_PHASE:
            moved = moved + message * (1 + 1 / ranks)  # n pieces of S/n read, one written
        if self.rank is not None:
            # Gradient plus residual: written, read for each factor, and read with their product for the new residual.
            moved = moved + 5 * grad_bytes * grads
        feedback = 8 * grads if self.has_error_feedback else 0
        return moved + feedback + self.choice_reads * grad_bytes * grads

    def flops(self, grads: Numbers, *, rows: Numbers | None = None, columns: Numbers | None = None) -> Numbers:
        """FLOPs of packing and unpacking in matrix products: two factors, and the matrix from them."""
        if self.rank is None or rows is None or columns is None:
            return 0 * grads
        rank = minimum(self.rank, minimum(rows, columns))
        return 6 * rank * grads + 2 * rank**2 * grads / columns  # the second: orthogonal columns of the first factor

    def memory_bytes(self, grads: Numbers, *, ranks: Numbers = 1) -> Numbers:
        """Bytes of error feedback kept between steps; in two phases a rank also keeps the feedback of its sums."""
        if not self.has_error_feedback:
            return 0 * grads
        return 4 * grads * (1 + (1 / ranks if self.exchange == TWO_PHASE else 0))


_ZERO_PLUS_PLUS = "Wang et al., arXiv 2306.10209, section 3.3; blocks of 256 and 32-bit scales are ours"

_RECORDS = (
    GradientCompression("none", "no compression"),
    GradientCompression("fp16", "Micikevicius et al., arXiv 1710.03740", bits=16),
    GradientCompression("bf16", "Kalamkar et al., arXiv 1905.12322", bits=16),
    GradientCompression("int8", _ZERO_PLUS_PLUS, TWO_PHASE, bits=8, block=256),
    GradientCompression("int4", _ZERO_PLUS_PLUS, TWO_PHASE, bits=4, block=256),
    GradientCompression(
        "one-bit", "Tang et al., arXiv 2102.02888, section 5.2", TWO_PHASE, bits=1, block=0, has_error_feedback=True
    ),
    GradientCompression(
        "top-k",
        "Aji and Heafield, arXiv 1704.05021; Lin et al., arXiv 1712.01887",
        ALL_GATHER,
        bits=32,
        ratio=0.01,
        has_error_feedback=True,
        choice_reads=4,
    ),
    GradientCompression(
        "powersgd", "Vogels et al., arXiv 1905.13727, algorithm 1", bits=32, rank=2, has_error_feedback=True
    ),
)

COMPRESSIONS: Mapping[str, GradientCompression] = MappingProxyType({record.name: record for record in _RECORDS})


def find_compression(name: str | GradientCompression | None) -> GradientCompression:
    """The method of that name; None is "none"; a `GradientCompression` is returned unchanged.

    `dataclasses.replace(find_compression("powersgd"), rank=4)` has another rank. An unknown name is a ValueError with
    the nearest names.
    """
    if isinstance(name, GradientCompression):
        return name
    text = "none" if name is None else name
    found = COMPRESSIONS.get(text.lower().replace("_", "-")) if isinstance(text, str) else None
    if found is None:
        raise unknown_name("gradient compression", name, list(COMPRESSIONS))
    return found
