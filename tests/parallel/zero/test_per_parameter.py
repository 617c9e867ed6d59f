"""Sharding by rows of each parameter: it sends what torch's FSDP2 sends, and costs what the table says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard

from lablib import launch
from lablib.parallel import compare_layouts, rows_of

few = settings(max_examples=10, deadline=None)
shapes_of_units = st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=4)


@given(num_rows=st.integers(0, 60), ranks=st.integers(1, 12))
def test_rows_are_those_of_torch_chunk(num_rows, ranks):
    chunks = [len(chunk) for chunk in torch.arange(num_rows).chunk(ranks)] if num_rows else []
    chunks += [0] * (ranks - len(chunks))
    assert [rows_of(num_rows, ranks, rank) for rank in range(ranks)] == chunks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_fsdp2_sends_what_the_table_says(ranks: int):
    def program() -> list[tuple[int, ...]]:
        module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2))
        shapes = [tuple(param.shape) for param in module.parameters()]
        fully_shard(module, reshard_after_forward=True)
        module(torch.ones(2, 5)).sum().backward()
        return shapes

    run = launch(program, ranks=ranks)
    by_rows = compare_layouts(run.values[0], ranks, element_bytes=4)[1]
    assert run.traffic.sent_bytes(0) == pytest.approx(by_rows.sent_bytes)


def test_the_layouts_of_a_small_unit():
    """By hand: a matrix [5, 4] and a bias [5] on 4 ranks, elements of 2 bytes. Flat 25 -> 28; rows 2 x 4 x (4 + 1)."""
    flat, by_rows = compare_layouts([(5, 4), (5,)], world_size=4)
    assert (flat.padding_bytes, by_rows.padding_bytes) == (3 * 2, 15 * 2)
    assert (flat.sent_bytes, by_rows.sent_bytes) == (3 * 3 * 7 * 2, 3 * 3 * 10 * 2)
    assert (flat.copied_bytes, by_rows.copied_bytes) == (2 * 28 * 2, 3 * 2 * 40 * 2 + 2 * 2 * 10 * 2)
    # Flat, the matrix ends on rank 2, where the bias begins; by rows, rank 3 has neither.
    assert (flat.empty_shards, by_rows.empty_shards) == (3, 2)


@given(shapes=shapes_of_units, ranks=st.integers(1, 9))
def test_flat_never_pads_more_than_rows(shapes, ranks):
    flat, by_rows = compare_layouts(shapes, ranks)
    assert 0 <= flat.padding_bytes <= by_rows.padding_bytes
    assert flat.padding_bytes < ranks * 2


def test_a_rank_beyond_the_last_has_no_rows():
    with pytest.raises(ValueError, match="rank must be 0 to 1"):
        rows_of(3, 2, 2)
