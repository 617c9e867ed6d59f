"""A model is cut where the largest piece is smallest, and its pieces compute what it computes."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lablib.models import GPT, GPTConfig
from lablib.pipeline import balanced_cut
from lablib.pipeline.executor import cut, cut_at, flops_of, units_of

CONFIG = GPTConfig(num_layers=6, d_model=8, num_heads=2, vocab_size=16, max_seq_len=6)


@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=8), data=st.data())
def test_no_cut_has_a_smaller_largest_piece_and_of_those_none_is_more_even(costs, data):
    num_pieces = data.draw(st.integers(1, len(costs)))
    found = balanced_cut(costs, num_pieces)
    assert [i for piece in found for i in piece] == list(range(len(costs))) and all(len(piece) for piece in found)
    cuts = [(0, *ends, len(costs)) for ends in combinations(range(1, len(costs)), num_pieces - 1)]
    every = [[sum(costs[a:b]) for a, b in pairwise(ends)] for ends in cuts]
    best = min((max(sums), sum(each * each for each in sums)) for sums in every)
    sums = [sum(costs[i] for i in piece) for piece in found]
    assert (max(sums), sum(each * each for each in sums)) == best


def test_the_example_of_a_head_that_costs_as_much_as_layers():
    assert [len(piece) for piece in balanced_cut([0, 4, 4, 4, 4, 4, 4, 4, 4, 10], 4)] == [3, 3, 3, 1]


def test_costs_in_fractions_are_cut_too():
    assert [len(piece) for piece in balanced_cut([0.1] * 7, 3)] in ([2, 2, 3], [2, 3, 2], [3, 2, 2])


def test_more_pieces_than_layers_are_refused():
    with pytest.raises(ValueError, match="every piece needs a layer: got 2 layers for 3 pieces; cut into 2 or fewer"):
        balanced_cut([1, 1], 3)
    with pytest.raises(ValueError, match="got 8 layers for 9 pieces"):
        cut(GPT(CONFIG), 9)
    with pytest.raises(ValueError, match="costs must be one for each of the model's 8 units: got 2"):
        cut(GPT(CONFIG), 2, [1.0, 2.0])
    with pytest.raises(ValueError, match="a GPT or an nn.Sequential can be cut: got Linear"):
        cut(nn.Linear(2, 2), 1)
    for starts in ([1, 2], [0, 0], [0, 8]):
        with pytest.raises(ValueError, match="every piece needs a layer: starts must rise from 0 and end below 8"):
            cut_at(GPT(CONFIG), starts)


@pytest.mark.parametrize("num_pieces", [1, 3, 8])
def test_the_pieces_of_a_gpt_compute_what_it_computes_with_its_own_parameters(num_pieces):
    model, tokens = GPT(CONFIG), torch.arange(6)[None]
    pieces, x = cut(model, num_pieces), tokens
    for piece in pieces:
        x = piece(x)
    assert torch.equal(x, model(tokens))
    assert {id(p) for piece in pieces for p in piece.parameters()} == {id(p) for p in model.parameters()}
    with pytest.raises(ValueError, match="at most max_seq_len=6 tokens: got 7"):
        pieces[0](torch.zeros(1, 7, dtype=torch.int64))


def test_the_flops_of_a_gpt_are_those_of_its_products():
    """By hand, D = 8, F = 32, V = 16, T = 6: 2 (4 D^2 + 2 D F) + 4 T D a block, 2 D V the head, tied or not."""
    for tied in (True, False):
        config = GPTConfig(2, 8, 2, vocab_size=16, max_seq_len=6, tied_head=tied)
        embedding, block, _, head = (flops_of(unit, 6) for unit in units_of(GPT(config)))
        assert (embedding, block, head) == (0, 2 * (4 * 64 + 2 * 256) + 4 * 6 * 8, 2 * 8 * 16)


def test_a_large_vocabulary_leaves_fewer_layers_to_the_last_piece():
    small, large = (GPTConfig(8, 16, 2, vocab_size=v, max_seq_len=6) for v in (16, 800))
    assert [len(piece) for piece in cut(GPT(small), 4)] == [3, 2, 2, 3]
    assert [len(piece) for piece in cut(GPT(large), 4)][-1] == 1
