"""Kernel calls under a causal mask, without computing hidden pairs and without a mask tensor.

Tokens are in pieces: ranges of positions with one step. For a piece of queries and one of keys, all pairs are visible,
none, or a staircase; kernels compute each of these without a mask tensor:

    all      keys before the queries                      stairs   query i sees keys 0 to i: a piece with itself
    none     keys behind the queries                      strict   stairs less the first query: a later stripe's keys

    zigzag, rank 0 of 2 (0 1 . 6 7), keys of rank 1 (2 3 4 5)         keys 2  3  4  5
                                                         queries 0 1       -  -  -  -      none
                                                                 6 7       x  x  x  x      all: one kernel

Documents cut pieces further, so packed sequences are also kernels without masks, with the cost of their visible pairs.

Cost: pieces of queries times pieces of keys, for each document.
Legend: a piece is a `range` of positions; places are indices into a rank's tokens.
Source: Brandon et al., "Striped Attention", 2023, arXiv 2311.09431 (the masks of stripes); Dao,
"FlashAttention-2", 2023, arXiv 2307.08691, section 3.1.1 (blocks behind the mask are skipped).
Simplified: one kernel call for each piece of a document; kernels with `cu_seqlens` take all in one call.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lablib.parallel.context.order import Documents, within


class AttentionBlock(NamedTuple):
    """Sequences, queries and keys of one kernel call: places on their ranks, not positions."""

    rows: slice
    queries: slice
    keys: slice
    is_causal: bool


def blocks_of(
    queries: Sequence[range], keys: Sequence[range], documents: Documents | None = None, is_causal: bool = True
) -> list[AttentionBlock]:
    """Kernel calls for these queries and keys: each visible pair once, no hidden pair.

    >>> [block] = blocks_of([range(4, 8)], [range(0, 4)])
    >>> block.queries, block.keys, block.is_causal
    (slice(0, 4, None), slice(0, 4, None), False)
    >>> blocks_of([range(0, 4)], [range(4, 8)])
    []

    Arguments:
        queries, keys: pieces of positions in storage order; all with one step.
        documents: of each sequence of the batch; None: each sequence is one document.
        is_causal: whether a query sees only keys up to its own position.
    """
    if documents is None:
        ends = [piece.stop for piece in (*queries, *keys)]
        return _in_rows(slice(None), queries, keys, [range(max(ends, default=0))], is_causal)
    rows = ((slice(i, i + 1), spans) for i, spans in enumerate(documents))
    return [block for row, spans in rows for block in _in_rows(row, queries, keys, spans, is_causal)]


def _in_rows(
    rows: slice, queries: Sequence[range], keys: Sequence[range], documents: Sequence[range], is_causal: bool
) -> list[AttentionBlock]:
    found: list[AttentionBlock] = []
    for document in documents:
        own, others = _places(queries, document), _places(keys, document)
        tokens = [piece for _, piece in own]
        ascend = all(a[-1] < b[0] for a, b in pairwise(tokens))
        if own and is_causal and ascend and tokens == [piece for _, piece in others]:
            # Ascending tokens with themselves: causal as a whole, for any number of pieces.
            mine, theirs = (slice(at[0][0], at[-1][0] + len(at[-1][1])) for at in (own, others))
            found.append(AttentionBlock(rows, mine, theirs, True))
            continue
        pairs = ((q, k) for q in own for k in others)
        found += [block for (i, q), (j, k) in pairs for block in _pair(rows, i, q, j, k, is_causal)]
    return _joined(found)


def _places(pieces: Sequence[range], document: range) -> list[tuple[int, range]]:
    """The tokens of a document, piece by piece: first place, and positions."""
    found: list[tuple[int, range]] = []
    start = 0
    for piece in pieces:
        if here := within(piece, document):
            last = found[-1][1] if found else here
            if last[-1] + 1 == here[0] and {last.step, here.step} == {1}:  # it continues the last one
                found[-1] = (found[-1][0], range(found[-1][1].start, here.stop))
            else:
                found.append((start + piece.index(here[0]), here))
        start += len(piece)
    return found


def _pair(rows: slice, i: int, queries: range, j: int, keys: range, is_causal: bool) -> list[AttentionBlock]:
    """One piece of queries and one of keys, first at places i and j."""
    if not is_causal or keys[-1] <= queries[0]:
        return [AttentionBlock(rows, slice(i, i + len(queries)), slice(j, j + len(keys)), False)]
    if keys[0] > queries[-1]:
        return []
    step = max(queries.step if len(queries) > 1 else 1, keys.step if len(keys) > 1 else 1)
    assert all(piece.step == step for piece in (queries, keys) if len(piece) > 1), (queries, keys)
    first = (queries[0] - keys[0]) // step + 1  # keys visible to the first query; each query sees one more
    skipped = max(0, 1 - first)
    whole, queries = max(0, first - 1), queries[skipped:]
    seen = slice(i + skipped, i + skipped + len(queries))
    stairs = AttentionBlock(rows, seen, slice(j + whole, j + min(len(keys), whole + len(queries))), True)
    return [AttentionBlock(rows, seen, slice(j, j + whole), False), stairs] if whole else [stairs]


def _joined(blocks: list[AttentionBlock]) -> list[AttentionBlock]:
    """Join neighbouring blocks without a mask: fewer and larger kernels."""
    for along, across in (("keys", "queries"), ("queries", "keys")):
        done: list[AttentionBlock] = []
        for block in sorted(blocks, key=lambda b: (b.is_causal, getattr(b, across).start, getattr(b, along).start)):
            last = done[-1] if done and not block.is_causal and not done[-1].is_causal else None
            if (
                last
                and getattr(last, across) == getattr(block, across)
                and getattr(last, along).stop == getattr(block, along).start
            ):
                done[-1] = last._replace(**{along: slice(getattr(last, along).start, getattr(block, along).stop)})
            else:
                done.append(block)
        blocks = done
    return blocks
