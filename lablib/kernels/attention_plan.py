"""The plan of FlashAttention's loops: pairs of a tile of queries and a tile of keys, for kernels, bytes and tests.

Documents are concatenated in one row of tokens, given by `cu_seqlens`: document n has the queries cu_seqlens_q[n] ...
cu_seqlens_q[n + 1] - 1, and keys from cu_seqlens_k in the same way. Each is cut into tiles separately, so no tile
crosses a border, and the last tile of a document may be short.

Causal with t queries and s keys: query i sees the keys j <= i + s - t. The last query sees all keys ("bottom-right", as
in flash_attn since version 2.1; queries after cached keys need it). For t = s that is j <= i. With t > s the first t -
s queries see no key. Tiles above the diagonal are not visited:

    queries 0-1   x .  .  .     keys 0-1 | 2-3 | 4-5 | 6-7, t = s = 8, tiles of 2
            2-3   x x  .  .     x: visited, masked only on the diagonal
            4-5   x x  x  .     n (n + 1) / 2 of n^2 tiles for n = t / tile
            6-7   x x  x  x

Cost: O(tiles). Shapes: T queries of all documents, S keys.
Source: Dao, "FlashAttention-2", 2023, arXiv 2307.08691, section 3.1 (causal masking, blocks that are skipped).
Simplified: lengths are read on the host, which a GPU must wait for; flash_attn asks the caller for the longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from lablib.kernels.jit import TileSize, cdiv
from lablib.signature import Checked, NonNegativeInt, check_fields, checked


@dataclass(frozen=True, slots=True)
class AttentionTiles(Checked):
    """Rows of a tile: powers of two; a GPU's matrix units need at least 16."""

    queries: TileSize = 64
    keys: TileSize = 64


class Tile(NamedTuple):
    """Tokens `start` ... `stop - 1` of the queries or keys of a document; counted from the document's first."""

    document: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Documents and their tiles."""

    starts_q: tuple[int, ...]  # cu_seqlens of the queries: 0, ..., T
    starts_k: tuple[int, ...]  # of the keys: 0, ..., S
    is_causal: bool = False  # whether a query sees only keys up to its own position
    tiles: AttentionTiles = AttentionTiles()  # rows of a tile
    backward_tiles: AttentionTiles | None = None  # the same for the backward kernels; `tiles` when None

    def __post_init__(self) -> None:
        check_fields(self)
        _check_starts("cu_seqlens_q", self.starts_q)
        _check_starts("cu_seqlens_k", self.starts_k)
        if len(self.starts_q) != len(self.starts_k):
            raise ValueError(
                "cu_seqlens_q and cu_seqlens_k must name the same documents: "
                f"got {len(self.starts_q) - 1} and {len(self.starts_k) - 1}; an empty one repeats a number."
            )

    def for_backward(self) -> AttentionPlan:
        """The plan of the backward kernels."""
        return replace(self, tiles=self.backward_tiles, backward_tiles=None) if self.backward_tiles else self

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(queries, keys) of each document."""
        ends = zip(pairwise(self.starts_q), pairwise(self.starts_k), strict=True)
        return [(b - a, d - c) for (a, b), (c, d) in ends]

    def query_tiles(self) -> Iterator[Tile]:
        """Every tile of queries."""
        for document, (t, _) in enumerate(self.lengths):
            yield from _tiles(document, 0, t, t, self.tiles.queries)

    def keys_of(self, queries: Tile) -> Iterator[Tile]:
        """The tiles of keys with a key visible to a tile of queries."""
        t, s = self.lengths[queries.document]
        # The tile's last query, stop - 1, sees the keys below stop + s - t.
        stop = min(s, queries.stop + s - t) if self.is_causal else s
        yield from _tiles(queries.document, 0, stop, s, self.tiles.keys)

    def grid(self, starts: tuple[int, ...], size: int, heads: int) -> tuple[int, int, int]:
        """Programs of a kernel: tiles of `size` of the longest document, heads, documents."""
        longest = max(b - a for a, b in pairwise(starts))
        return cdiv(longest, size), heads, len(starts) - 1

    def mask(self, queries: Tile, keys: Tile, device: torch.device | None = None) -> Tensor:
        """True where a query (row) sees a key (column)."""
        t, s = self.lengths[queries.document]
        i = torch.arange(queries.start, queries.stop, device=device)[:, None]
        j = torch.arange(keys.start, keys.stop, device=device)[None]
        return j <= i + s - t if self.is_causal else (j >= 0).expand(len(i), -1)

    def rows(self, queries: Tile) -> slice:
        """Where a tile of queries lies among the T queries of all documents."""
        start = self.starts_q[queries.document]
        return slice(start + queries.start, start + queries.stop)

    def columns(self, keys: Tile) -> slice:
        """Where a tile of keys lies among the S keys."""
        start = self.starts_k[keys.document]
        return slice(start + keys.start, start + keys.stop)


@checked
def equal_lengths(
    documents: NonNegativeInt,
    t: NonNegativeInt,
    s: NonNegativeInt,
    is_causal: bool = False,
    tiles: AttentionTiles | None = None,
) -> AttentionPlan:
    """A batch of `documents` sequences with t queries and s keys each."""
    return _equal_lengths(documents, t, s, is_causal, tiles or AttentionTiles())


@lru_cache(maxsize=64)  # a training step asks for the same plan in every layer
def _equal_lengths(documents: int, t: int, s: int, is_causal: bool, tiles: AttentionTiles) -> AttentionPlan:
    starts_q, starts_k = (tuple(n * length for n in range(documents + 1)) for length in (t, s))
    return AttentionPlan(starts_q, starts_k, is_causal, tiles)


def _tiles(document: int, start: int, stop: int, length: int, size: int) -> Iterator[Tile]:
    """Tiles that begin in start ... stop - 1, cut at the document's end."""
    return (Tile(document, at, min(at + size, length)) for at in range(start, stop, size))


def _check_starts(name: str, starts: tuple[int, ...]) -> None:
    if not starts or starts[0] != 0:
        raise ValueError(f"{name} must begin with 0: got {list(starts[:4])}; it is 0 and the running sum of lengths.")
    for before, after in pairwise(starts):
        if after < before:
            raise ValueError(f"{name} must not fall: got {before}, then {after}; it is the running sum of lengths.")
