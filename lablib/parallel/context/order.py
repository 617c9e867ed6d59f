"""Assignment of tokens to ranks: contiguous, zigzag, striped; and the cost of attention on each rank.

Under a causal mask a query sees the keys up to its own position, so late tokens cost more than early ones. With n
contiguous pieces, the last rank has nearly twice the mean work, and all wait for it. Two orders balance the work:

    T = 8, n = 2      rank 0         rank 1         (query, key) pairs
    contiguous        0 1 2 3        4 5 6 7        10 and 26
    zigzag            0 1 . 6 7      2 3 4 5        18 and 18       pieces r and 2n - 1 - r of 2n
    striped           0 2 4 6        1 3 5 7        16 and 20       every n-th token

Position embeddings, targets and document numbers follow their tokens (`context/model.py`). Packed documents cut a piece
further: a token sees only its own document, so pairs are counted by document, not by sequence.

Cost of attention over T = n t tokens, causal:
    pairs       contiguous  r t^2 + t (t + 1) / 2         the last rank has (2n - 1) / n of the mean
                zigzag      n t^2 / 2 + t / 2             for every rank
                striped     n t (t - 1) / 2 + t (r + 1)   the last rank has t (n - 1) / 2 more than the mean
    FLOPs       forward 4 H K for each pair, H heads of width K; backward 10 H K with flash attention
Legend: T tokens, n ranks, r a rank, t = T / n its tokens. A piece is a `range` of positions.
Source: Brandon et al., "Striped Attention", 2023, arXiv 2311.09431; Llama Team, "The Llama 3 Herd of
Models", 2024, arXiv 2407.21783, section 3.3.2 (2n chunks, rank i has the i-th and the (2n - 1 - i)-th).
Simplified: pieces are cut without regard to documents, so many short documents may unbalance the ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from lablib.signature import Count, OneOf, Range, check_fields, checked, shown, whole_number
from lablib.text.units import plural

# For each sequence of a batch its documents, as ranges of positions; other positions are padding.
Documents = tuple[tuple[range, ...], ...]
Length = Annotated[int, Range(ge=1, le=2**27)]  # tokens of a sequence


@dataclass(frozen=True, slots=True)
class Order:
    """Assignment of tokens to ranks. ValueError: pieces that do not have each position 0 to T - 1 once, ascending on
    every rank; pieces of different steps.
    """

    name: str  # of the order
    pieces: tuple[tuple[range, ...], ...]  # for each rank, the positions of its tokens in storage order, ascending

    def __post_init__(self) -> None:
        check_fields(self)
        marks = bytearray(self.seq_len)
        for of_rank in self.pieces:
            ends = [(piece[0], piece[-1], piece.step) for piece in of_rank if piece]
            if any(step < 1 for _, _, step in ends) or any(a[1] >= b[0] for a, b in pairwise(ends)):
                raise ValueError(f"the tokens of a rank must ascend: got {shown(of_rank)}; try zigzag_order(16, 2).")
            for piece in of_rank:
                if piece and piece[0] >= 0 and piece[-1] < len(marks):
                    marks[piece.start : piece.stop : piece.step] = b"1" * len(piece)
        steps = {piece.step for of_rank in self.pieces for piece in of_rank if len(piece) > 1}
        if len(steps) > 1:
            raise ValueError(
                f"the pieces of an order must have one step: got {shown(sorted(steps))}; cut all of them from the "
                "sequence (step 1), or none."
            )
        if marks.count(b"1") < len(marks):  # one mark per token: if all are set, each position occurs once
            raise ValueError(
                f"an order must have each position once: got {shown(self.pieces)}; try zigzag_order(16, 2)."
            )

    @property
    def num_ranks(self) -> int:
        return len(self.pieces)

    @property
    def seq_len(self) -> int:
        return sum(self.lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each rank."""
        return tuple(sum(map(len, pieces)) for pieces in self.pieces)

    @property
    def is_in_turn(self) -> bool:
        """Whether the tokens of all ranks, concatenated by rank, are in sequence order."""
        pieces = [piece for of_rank in self.pieces for piece in of_rank if piece]
        return all(a.stop == b.start and a.step == b.step == 1 for a, b in pairwise(pieces))

    def tokens(self, rank: int) -> list[int]:
        """Positions of a rank's tokens. Raises ValueError for an invalid rank."""
        if whole_number("rank", rank, minimum=0, example=0) >= self.num_ranks:
            raise ValueError(f"rank must be 0 to {self.num_ranks - 1}, one of the order's: got {rank}.")
        return [token for piece in self.pieces[rank] for token in piece]

    def permutation(self) -> list[int]:
        """The positions of all tokens, concatenated by rank: x[permutation]."""
        return [token for rank in range(self.num_ranks) for token in self.tokens(rank)]

    def inverse(self) -> list[int]:
        """The inverse of `permutation`: x[permutation][inverse] is x."""
        places = {token: place for place, token in enumerate(self.permutation())}
        return [places[token] for token in range(self.seq_len)]


@checked
def contiguous_order(seq_len: Length, num_ranks: Count) -> Order:
    """Rank r has the r-th of n pieces; lengths differ by at most one token."""
    return Order("contiguous", tuple((piece,) for piece in _cut("contiguous", seq_len, num_ranks, num_ranks)))


@checked
def zigzag_order(seq_len: Length, num_ranks: Count) -> Order:
    """Rank r has pieces r and 2n - 1 - r of 2n, an early one and a late one; lengths differ by at most one token.

    >>> zigzag_order(8, 2).tokens(0), zigzag_order(8, 2).permutation(), zigzag_order(8, 2).inverse()
    ([0, 1, 6, 7], [0, 1, 6, 7, 2, 3, 4, 5], [0, 1, 4, 5, 6, 7, 2, 3])
    """
    cut = _cut("zigzag", seq_len, num_ranks, 2 * num_ranks)
    return Order("zigzag", tuple((cut[rank], cut[-1 - rank]) for rank in range(num_ranks)))


@checked
def striped_order(seq_len: Length, num_ranks: Count) -> Order:
    """Rank r has tokens r, r + n, r + 2n, ..."""
    _cut("striped", seq_len, num_ranks, num_ranks)
    return Order("striped", tuple((range(rank, seq_len, num_ranks),) for rank in range(num_ranks)))


ORDERS: Mapping[str, Callable[[int, int], Order]] = {
    "contiguous": contiguous_order,
    "zigzag": zigzag_order,
    "striped": striped_order,
}


@checked
def order_of(name: Annotated[str, OneOf(ORDERS)], seq_len: Length, num_ranks: Count) -> Order:
    """The order of that name. Raises ValueError for a sequence too short for it."""
    return ORDERS[name](seq_len, num_ranks)


@checked
def document_spans(documents: Sequence[Sequence[int]]) -> Documents:
    """The documents of packed sequences from the number of each token's document: runs of one number.

    >>> document_spans([[0, 0, 1, 1, 1, -1]])
    ((range(0, 2), range(2, 5)),)

    Arguments:
        documents: number of the document of each token in each sequence; below 0: padding. `documents_BT.tolist()` of a
        tensor.
    """
    found = []
    for row in documents:
        borders = [0, *(t for t in range(1, len(row)) if row[t] != row[t - 1]), len(row)]
        spans = (range(start, stop) for start, stop in zip(borders, borders[1:], strict=False))
        found.append(tuple(span for span in spans if len(span) and row[span.start] >= 0))
    return tuple(found)


@checked
def visible_pairs(order: Order, documents: Sequence[range] | None = None, is_causal: bool = True) -> tuple[int, ...]:
    """The number of (query, key) pairs of one sequence that each rank computes, by formula.

    >>> [visible_pairs(order_of(name, 8, 2)) for name in ORDERS]
    [(10, 26), (18, 18), (16, 20)]

    Arguments:
        order: assignment of queries to ranks.
        documents: of the sequence; None: one document.
        is_causal: whether a query sees only keys up to its own position.
    """
    found = []
    for pieces in order.pieces:
        pairs = 0
        for document in [range(order.seq_len)] if documents is None else documents:
            for piece in pieces:
                here = within(piece, document)
                # The sum of an arithmetic series: a query at p sees p - start + 1 keys.
                seen = here[0] + here[-1] - 2 * document.start + 2 if here and is_causal else 2 * len(document)
                pairs += len(here) * seen // 2
        found.append(pairs)
    return tuple(found)


@checked
def attention_flops(pairs: float, heads: int, d_head: int, *, backward: bool = False) -> float:
    """FLOPs of `pairs`: two products forward, five backward, as flash attention recomputes the scores."""
    return (10 if backward else 4) * pairs * heads * d_head


@checked
def balance(order: Order, documents: Sequence[range] | None = None, is_causal: bool = True) -> float:
    """The mean number of pairs per rank over the maximum: the efficiency, if only pairs cost time.

    >>> balance(contiguous_order(64, 8)), balance(zigzag_order(64, 8))
    (0.5371900826446281, 1.0)
    """
    pairs = visible_pairs(order, documents, is_causal)
    return sum(pairs) / (len(pairs) * max(pairs)) if any(pairs) else 1.0


def within(piece: range, span: range) -> range:
    """The positions of a piece within a span of step 1.

    >>> within(range(1, 20, 4), range(4, 13))
    range(5, 13, 4)
    """
    first = piece.start + max(0, -(-(span.start - piece.start) // piece.step)) * piece.step
    return range(min(first, piece.stop), min(piece.stop, max(span.stop, span.start)), piece.step)


def _cut(name: str, seq_len: int, num_ranks: int, pieces: int) -> list[range]:
    """0 to T - 1 in `pieces` pieces, the first ones a token longer if they do not divide T."""
    if seq_len < pieces:
        raise ValueError(
            f"a sequence must have a token for each piece of its order: got {seq_len} tokens for the {pieces} pieces "
            f"of {name} on {num_ranks} ranks; try {pieces} tokens, or "
            f"{plural(max(1, seq_len * num_ranks // pieces), 'ranks')}."
        )
    small, longer = divmod(seq_len, pieces)
    starts = [i * small + min(i, longer) for i in range(pieces + 1)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:], strict=False)]
