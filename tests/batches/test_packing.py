"""Packings: everything in, nothing twice, no block too full; few blocks, measured against the fewest there can be."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.batches.accumulation import IGNORED
from lablib.batches.packing import Packing, best_fit, cu_seqlens, fill_blocks, first_fit, one_per_block

METHODS = (one_per_block, first_fit, best_fit)


@st.composite
def of_lengths(draw, most: int = 30):
    """Lengths, and a block size that they fit into."""
    block_size = draw(st.integers(1, 20))
    return draw(st.lists(st.integers(1, block_size), max_size=most)), block_size


def fewest_blocks(lengths: list[int], block_size: int) -> int:
    """By brute force: the first document's block with every set of others that fits, and the rest alike."""
    if not lengths:
        return 0
    first, others = lengths[0], range(1, len(lengths))
    best = len(lengths)
    for size in range(len(lengths)):
        for chosen in combinations(others, size):
            if first + sum(lengths[i] for i in chosen) <= block_size:
                rest = [lengths[i] for i in others if i not in chosen]
                best = min(best, 1 + fewest_blocks(rest, block_size))
    return best


@given(case=of_lengths(), longest_first=st.booleans())
def test_every_document_is_in_one_block_and_none_is_too_full(case, longest_first):
    lengths, block_size = case
    for packing in (
        one_per_block(lengths, block_size),
        first_fit(lengths, block_size, longest_first),
        best_fit(lengths, block_size, longest_first),
    ):
        assert sorted(sum(packing.blocks, ())) == list(range(len(lengths)))
        assert all(sum(lengths[i] for i in block) <= block_size for block in packing.blocks)
        used = len(packing.blocks) * block_size
        assert packing.waste == pytest.approx((used - sum(lengths)) / used if used else 0.0)
    assert len(one_per_block(lengths, block_size).blocks) == len(lengths)


@given(case=of_lengths(most=6))
def test_no_more_blocks_than_proved_against_the_fewest(case):
    lengths, block_size = case
    fewest = fewest_blocks(lengths, block_size)
    for method, more in ((first_fit, 6 / 9), (best_fit, 4)):
        as_they_come, longest_first = (len(method(lengths, block_size, first).blocks) for first in (False, True))
        assert fewest <= as_they_come <= int(1.7 * fewest)
        assert fewest <= longest_first <= 11 / 9 * fewest + more + 1e-9


def naive_fit(lengths, block_size, order, key):
    """Both fits in the words of their definitions."""
    blocks = []
    for document in order:
        rooms = [block_size - sum(lengths[i] for i in block) for block in blocks]
        fitting = [index for index, room in enumerate(rooms) if room >= lengths[document]]
        if fitting:
            blocks[min(fitting, key=lambda index: key(rooms[index], index))].append(document)
        else:
            blocks.append([document])
    return tuple(map(tuple, blocks))


@given(case=of_lengths(), longest_first=st.booleans())
def test_both_fits_are_their_definitions(case, longest_first):
    lengths, block_size = case
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i] if longest_first else 0, i))
    first = naive_fit(lengths, block_size, order, lambda room, index: index)
    best = naive_fit(lengths, block_size, order, lambda room, index: (room, index))
    assert first_fit(lengths, block_size, longest_first).blocks == first
    assert best_fit(lengths, block_size, longest_first).blocks == best


def test_a_packed_block_is_the_picture_of_the_docstring():
    documents = [torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6, 7]), torch.tensor([8, 9])]
    packing = Packing(((0, 1, 2),), (3, 4, 2), 10)
    blocks = fill_blocks(documents, packing)
    none = IGNORED
    assert blocks.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 0]]
    assert blocks.documents.tolist() == [[0, 0, 0, 1, 1, 1, 1, 2, 2, -1]]
    assert blocks.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1, 0]]
    assert blocks.targets.tolist() == [[2, 3, none, 5, 6, 7, none, 9, none, none]]
    assert cu_seqlens(packing).tolist() == [0, 3, 7, 9]
    assert all(part.dtype == torch.int64 for part in blocks)


@given(case=of_lengths(most=8), method=st.sampled_from(METHODS))
def test_what_went_into_blocks_comes_out(case, method):
    lengths, block_size = case
    documents = [torch.randint(256, (length,), dtype=torch.uint8) for length in lengths]
    packing = method(lengths, block_size)
    blocks, ends = fill_blocks(documents, packing), cu_seqlens(packing)
    kept = blocks.tokens[blocks.documents >= 0]
    order = [document for block in packing.blocks for document in block]
    assert len(kept) == ends[-1] == sum(lengths)
    for place, document in enumerate(order):
        assert torch.equal(kept[ends[place] : ends[place + 1]], documents[document].long())
    assert int((blocks.targets != IGNORED).sum()) == sum(length - 1 for length in lengths)
    assert int((blocks.positions[blocks.documents >= 0] == 0).sum()) == len(lengths)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: best_fit([3, 11], 10), "1 to block_size=10 tokens: document 1 has 11; cut it"),
        (lambda: first_fit([0, 3], 10), "document 0 has 0"),
        (lambda: one_per_block([12], 10), "document 0 has 12"),
        (lambda: Packing(((0,),), (3, 4), 10), "every document must be in one block: got 2 documents"),
        (lambda: Packing(((0, 1), (1,)), (3, 4), 10), "every document must be in one block"),
        (lambda: Packing(((0, 1),), (6, 5), 10), "room for 10 tokens: block 0 got 11"),
        (lambda: fill_blocks([torch.zeros(2)], Packing(((0,),), (3,), 10)), r"lengths \(3,\): got \[2\]"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
