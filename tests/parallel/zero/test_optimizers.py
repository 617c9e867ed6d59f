"""Optimizers on flat shards: equal to the bit where they are element-wise, and told the rest where they are not."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch
from lablib.optim.adafactor import Adafactor
from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adamw import AdamW
from lablib.optim.galore import GaLore
from lablib.optim.lamb import LAMB
from lablib.optim.lion import Lion
from lablib.optim.muon import Muon
from lablib.optim.q_galore import QGaLore
from lablib.optim.soap import SOAP
from lablib.optim.sophia import SophiaG
from lablib.parallel.zero.optimizers import ShardedLAMB, pieces_of, require_steps_on_shards, share_gradients
from lablib.parallel.zero.shards import FlatLayout
from tests.optim.drawn import drawn

few = settings(max_examples=6, deadline=None)
BLOCK = 8
ELEMENT_WISE = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": AdamW,
    "torch's adamw": torch.optim.AdamW,
    "lion": Lion,
    "sophia": SophiaG,
    "adam8bit": lambda params: Adam8bit(params, block_size=BLOCK, min_8bit_size=0),
}
matrices = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=5)


def layout_of(shapes: list, ranks: int, multiple_of: int = 1) -> FlatLayout:
    return FlatLayout(tuple(f"w{i}" for i in range(len(shapes))), tuple(map(tuple, shapes)), ranks, multiple_of)


def numbers(shapes: list, seed: int) -> list[Tensor]:
    return [drawn(*shape, seed=10 * seed + i, dtype=torch.float64) for i, shape in enumerate(shapes)]


def flat(tensors: list[Tensor], layout: FlatLayout) -> Tensor:
    joined = torch.cat([tensor.flatten() for tensor in tensors])
    return torch.nn.functional.pad(joined, (0, layout.padded_numel - layout.numel))


def shard_of(tensors: list[Tensor], layout: FlatLayout, rank: int) -> Tensor:
    return flat(tensors, layout)[layout.shard_of(rank)].clone()


# ---- element-wise ----


@pytest.mark.parametrize("name", ELEMENT_WISE)
@few
@given(shapes=matrices, ranks=st.integers(1, 5))
def test_steps_of_shards_are_the_step_of_the_whole_to_the_bit(name, shapes, ranks):
    make, layout = ELEMENT_WISE[name], layout_of(shapes, ranks, BLOCK)
    whole = nn.Parameter(flat(numbers(shapes, 0), layout))
    shards = [nn.Parameter(shard_of(numbers(shapes, 0), layout, rank)) for rank in range(ranks)]
    optimizers = [make([param]) for param in (whole, *shards)]
    for step in range(1, 4):
        grads = numbers(shapes, step)
        for param, optimizer in zip((whole, *shards), optimizers, strict=True):
            rank = next((r for r, shard in enumerate(shards) if shard is param), None)
            param.grad = flat(grads, layout) if rank is None else shard_of(grads, layout, rank)
            if isinstance(optimizer, SophiaG):
                optimizer.update_curvature(10)
            require_steps_on_shards(optimizer, [layout])
            optimizer.step()
    assert torch.equal(torch.cat([shard.detach() for shard in shards]), whole.detach())


@pytest.mark.parametrize("make", [LAMB, Adafactor, GaLore, QGaLore, SOAP, torch.optim.Adafactor])
def test_what_needs_more_than_a_shard_is_refused_and_says_what(make):
    optimizer = make([nn.Parameter(torch.ones(128, 128))])
    with pytest.raises(ValueError, match=f"{type(optimizer).__name__} cannot step flat shards: it needs .*; "):
        require_steps_on_shards(optimizer, [layout_of([(4, 4)], 2)])


def test_muon_blocks_that_straddle_and_the_unknown_are_refused():
    matrix, layout = nn.Parameter(torch.ones(4, 5)), layout_of([(4, 5)], 2)
    with pytest.raises(ValueError, match="use ShardedMuon"):
        require_steps_on_shards(Muon([matrix]), [layout])
    with pytest.raises(ValueError, match="got 10 numbers and blocks of 8; shard with multiple_of=8"):
        require_steps_on_shards(Adam8bit([matrix], block_size=8), [layout])
    require_steps_on_shards(Adam8bit([matrix], block_size=8), [layout_of([(4, 5)], 2, 8)])
    with pytest.raises(ValueError, match="LBFGS is not known to be element-wise"):
        require_steps_on_shards(torch.optim.LBFGS([matrix]), [layout])


# ---- pieces ----


@few
@given(shapes=matrices, ranks=st.integers(1, 5), multiple_of=st.sampled_from([1, 7]))
def test_pieces_of_all_ranks_are_the_parameter(shapes, ranks, multiple_of):
    layout, whole = layout_of(shapes, ranks, multiple_of), numbers(shapes, 0)

    def program():
        shard = nn.Parameter(shard_of(whole, layout, dist.get_rank()))
        pieces = pieces_of([shard], [layout])
        assert all(each.piece.numel() == each.counts[dist.get_rank()] for each in pieces)
        assert all(torch.equal(each.piece, shard[each.start : each.start + each.piece.numel()]) for each in pieces)
        with torch.no_grad():
            shard.add_(1)  # the pieces are views of it
        return [(each.name, each.shape, each.counts, each.piece.detach()) for each in pieces]

    by_rank = launch(program, ranks=ranks).values
    for index, (tensor, shape) in enumerate(zip(whole, shapes, strict=True)):
        name, of_shape, counts, _ = by_rank[0][index]
        assert (name, of_shape, sum(counts)) == (f"w{index}", shape, tensor.numel())
        assert torch.equal(torch.cat([pieces[index][3] for pieces in by_rank]), tensor.flatten() + 1)


def test_gradients_of_pieces_are_there_during_a_step_alone():
    layout = layout_of([(2, 3), (4, 1)], 1)

    def program():
        shard = nn.Parameter(torch.zeros(10))
        pieces = pieces_of([shard], [layout])
        sgd = torch.optim.SGD([each.piece for each in pieces[1:]], lr=1.0)
        share_gradients(sgd, pieces[1:])
        sgd.step()  # no gradient, no step
        shard.grad = torch.arange(10.0)
        sgd.step()
        assert all(each.piece.grad is None for each in pieces)
        return shard.detach()

    assert launch(program, ranks=1).values[0].tolist() == [0] * 6 + [-6, -7, -8, -9]


def test_a_shard_of_another_layout_is_refused():
    with pytest.raises(
        RankError, match="a shard must be its layout's: got 3 numbers on 1 ranks, the layout has 2 on 2"
    ):
        launch(lambda: pieces_of([nn.Parameter(torch.ones(3))], [layout_of([(2, 2)], 2)]), ranks=1)


# ---- LAMB ----


def lamb_steps(shapes: list, layout: FlatLayout, num_steps: int) -> Tensor:
    shard = nn.Parameter(shard_of(numbers(shapes, 0), layout, dist.get_rank()))
    lamb = ShardedLAMB(pieces_of([shard], [layout]), lr=0.1)
    for step in range(1, num_steps + 1):
        shard.grad = shard_of(numbers(shapes, step), layout, dist.get_rank())
        lamb.step()
    return shard.detach()


@few
@given(shapes=matrices, ranks=st.integers(1, 5))
def test_sharded_lamb_equals_lamb_and_sends_two_numbers_a_parameter(shapes, ranks):
    layout, params = layout_of(shapes, ranks), [nn.Parameter(tensor) for tensor in numbers(shapes, 0)]
    lamb = LAMB(params, lr=0.1)
    for step in range(1, 4):
        for param, grad in zip(params, numbers(shapes, step), strict=True):
            param.grad = grad
        lamb.step()
    run = launch(lamb_steps, shapes, layout, 3, ranks=ranks)
    torch.testing.assert_close(
        torch.cat(run.values), flat([p.detach() for p in params], layout), rtol=1e-12, atol=1e-14
    )
    assert run.traffic.count("all_reduce") == 3
    again = launch(lamb_steps, shapes, layout, 3, ranks=ranks)
    assert torch.equal(torch.cat(run.values), torch.cat(again.values))


def test_lamb_sends_what_the_formula_says():
    """All ranks together, as so small an all-reduce goes in a tree, of which the middle sends more than the leaves."""
    shapes = [(4, 5)] * 30
    run = launch(lamb_steps, shapes, layout_of(shapes, 4), 2, ranks=4, cluster="dgx-a100")
    all_reduce = 2 * 3 / 4 * 2 * 30 * 8  # of two numbers per parameter
    assert sum(run.traffic.sent_bytes(rank) for rank in range(4)) == 2 * 4 * all_reduce


@pytest.mark.thorough
def test_sharded_lamb_is_the_same_on_gloo():
    shapes = [(3, 4), (5,), (2, 2)]
    here, there = (launch(lamb_steps, shapes, layout_of(shapes, 2), 2, ranks=2, backend=b) for b in ("sim", "gloo"))
    torch.testing.assert_close(torch.cat(there.values), torch.cat(here.values), rtol=1e-13, atol=0)
