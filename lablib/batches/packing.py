"""Packing: several short documents in one block, instead of one padded document per block.

Documents differ in length, blocks do not. With one document per block the rest is padding, which is computed and
discarded. Combining documents into few blocks is bin packing: the optimum is hard to find, a good packing is easy. Take
the documents one after another, in order or the longest first, and put each

    first fit      into the first block that has room
    best fit       into the block that then has the least room left

Neither needs more than 1.7 times the minimum number of blocks; with the longest first, at most 11/9 of it + 6/9 (first
fit) or + 4 (best fit).

Documents of one block must not see each other: `packed_attention.py`. A packed block has for each token:

    tokens       a a a b b b b c c 0      documents   0 0 0 1 1 1 1 2 2 -1     (-1: padding)
    positions    0 1 2 0 1 2 3 0 1 0      each document counts from 0
    targets      a a * b b b * c * *      the next token; none (*) after the last token of a document
    cu_seqlens   0 3 7 9                  ends of documents, for variable-length kernels

Cost: N documents, M blocks: first fit makes N M comparisons; best fit N log M (its list is sorted).
Waste: 1 - sum of lengths / (M T).
Shapes: B blocks of T tokens.
Source: Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, arXiv 2107.02027, sections 2 and
3. The bounds: Dosa and Sgall, STACS 2013 (first fit) and ICALP 2014 (best fit); Dosa, ESCAPE 2007 (6/9) and
Johnson, 1974 (4).
Simplified: all lengths are known in advance; a document longer than a block must be cut first. Most pretraining
concatenates all documents and cuts every T tokens: no padding, but split documents.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from lablib.batches.accumulation import IGNORED
from lablib.signature import check_fields, checked

PADDING = -1  # document of a padding token


@dataclass(frozen=True, slots=True)
class Packing:
    """The documents of each block, in order."""

    blocks: tuple[tuple[int, ...], ...]  # numbers of documents, for each block
    lengths: tuple[int, ...]  # tokens of each document
    block_size: int  # tokens T of a block

    def __post_init__(self) -> None:
        check_fields(self)
        if sorted(document for block in self.blocks for document in block) != list(range(len(self.lengths))):
            raise ValueError(
                f"every document must be in one block: got {len(self.lengths)} documents and {self.blocks}."
            )
        for index, block in enumerate(self.blocks):
            used = sum(self.lengths[document] for document in block)
            if used > self.block_size:
                raise ValueError(f"a block has room for {self.block_size} tokens: block {index} got {used}.")

    @property
    def waste(self) -> float:
        """Share of padding in all tokens, in [0, 1)."""
        return 1 - sum(self.lengths) / (len(self.blocks) * self.block_size) if self.blocks else 0.0


@checked
def one_per_block(lengths: Sequence[int], block_size: int) -> Packing:
    """Naive: one padded document per block."""
    order = _order(lengths, block_size, longest_first=False)
    return Packing(tuple((document,) for document in order), tuple(lengths), block_size)


@checked
def first_fit(lengths: Sequence[int], block_size: int, longest_first: bool = True) -> Packing:
    """Each document into the first block that has room, or a new one. ValueError: empty, or longer than a block."""
    blocks: list[list[int]] = []
    rooms: list[int] = []  # tokens left in each block
    for document in _order(lengths, block_size, longest_first):
        length = lengths[document]
        block = next((index for index, room in enumerate(rooms) if room >= length), len(blocks))
        if block == len(blocks):
            blocks.append([])
            rooms.append(block_size)
        blocks[block].append(document)
        rooms[block] -= length
    return Packing(tuple(map(tuple, blocks)), tuple(lengths), block_size)


@checked
def best_fit(lengths: Sequence[int], block_size: int, longest_first: bool = True) -> Packing:
    """Each document into the block that then has least room left, or a new one. ValueError: empty, or too long."""
    blocks: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens left, block), in order
    for document in _order(lengths, block_size, longest_first):
        length = lengths[document]
        place = bisect_left(rooms, (length, 0))  # the smallest sufficient room
        if place < len(rooms):
            room, block = rooms.pop(place)
        else:
            room, block = block_size, len(blocks)
            blocks.append([])
        blocks[block].append(document)
        insort(rooms, (room - length, block))
    return Packing(tuple(map(tuple, blocks)), tuple(lengths), block_size)


class PackedBlocks(NamedTuple):
    """Blocks of tokens, with targets, positions and documents; see the picture above."""

    tokens: Int64[Tensor, "B T"]
    targets: Int64[Tensor, "B T"]
    positions: Int64[Tensor, "B T"]
    documents: Int64[Tensor, "B T"]


@checked
def fill_blocks(documents: Sequence[Tensor], packing: Packing) -> PackedBlocks:
    """The blocks of a packing of these documents, [length] each. ValueError: other lengths than in the packing."""
    if tuple(map(len, documents)) != packing.lengths:
        raise ValueError(f"documents must have the packing's lengths {packing.lengths}: got {[*map(len, documents)]}.")
    shape = (len(packing.blocks), packing.block_size)
    filled = PackedBlocks(*(torch.full(shape, value) for value in (0, IGNORED, 0, PADDING)))
    for row, block in enumerate(packing.blocks):
        start = 0
        for number, document in enumerate(block):
            tokens = documents[document].long()
            here = slice(start, start + len(tokens))
            filled.tokens[row, here] = tokens
            filled.targets[row, start : here.stop - 1] = tokens[1:]  # the last token has no target
            filled.positions[row, here] = torch.arange(len(tokens))
            filled.documents[row, here] = number
            start = here.stop
    return filled


@checked
def cu_seqlens(packing: Packing) -> Int32[Tensor, " n"]:
    """Cumulative ends of documents from 0 in the order of the blocks, for kernels without padding."""
    lengths = [packing.lengths[document] for block in packing.blocks for document in block]
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def _order(lengths: Sequence[int], block_size: int, longest_first: bool) -> list[int]:
    for document, length in enumerate(lengths):
        if not 1 <= length <= block_size:
            raise ValueError(
                f"a document must have 1 to block_size={block_size} tokens: document {document} has {length}; "
                "cut it, or leave it out."
            )
    order = range(len(lengths))
    return sorted(order, key=lambda document: -lengths[document]) if longest_first else list(order)
