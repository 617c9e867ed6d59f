"""Sharded Muon: all three ways equal Muon on one device to the bit; bytes and FLOPs are those of the closed forms."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, Run, launch
from lablib.optim.muon import Muon
from lablib.parallel.zero.optimizers import pieces_of
from lablib.parallel.zero.sharded_muon import OwnerMuon, ShardedMuon
from lablib.parallel.zero.sharded_muon_cost import WAYS, muon_cost, newton_schulz_flops, owners
from lablib.parallel.zero.shards import FlatLayout
from tests.parallel.zero.test_optimizers import flat, layout_of, numbers, shard_of

few = settings(max_examples=6, deadline=None)
SETTINGS = {"lr": 0.1, "weight_decay": 0.1, "ns_steps": 3}
some_matrices = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6)


def one_device(shapes: list, num_steps: int, **options) -> list[Tensor]:
    params = [nn.Parameter(tensor) for tensor in numbers(shapes, 0)]
    muon = Muon(params, **SETTINGS, **options)
    for step in range(1, num_steps + 1):
        for param, grad in zip(params, numbers(shapes, step), strict=True):
            param.grad = grad
        muon.step()
    return [param.detach() for param in params]


def take_steps(way: str, shapes: list, num_steps: int, options: dict, is_apart: bool = False) -> tuple[Tensor, int]:
    """All parameters flat (of "owner") or this rank's shards, and the numbers of momentum that it keeps.

    Shards of one unit, or with `is_apart` of a unit for each matrix.
    """
    rank, units = dist.get_rank(), [[i] for i in range(len(shapes))] if is_apart else [list(range(len(shapes)))]
    layouts = [layout_of([shapes[i] for i in unit], dist.get_world_size()) for unit in units]

    def shards_of(tensors: list[Tensor]) -> list[Tensor]:
        return [shard_of([tensors[i] for i in unit], each, rank) for unit, each in zip(units, layouts, strict=True)]

    if way == "owner":
        params = [nn.Parameter(tensor) for tensor in numbers(shapes, 0)]
        muon = OwnerMuon(params, **SETTINGS, **options)
    else:
        params = [nn.Parameter(shard) for shard in shards_of(numbers(shapes, 0))]
        muon = ShardedMuon(pieces_of(params, layouts), way, **SETTINGS, **options)
    for step in range(1, num_steps + 1):
        grads = numbers(shapes, step) if way == "owner" else shards_of(numbers(shapes, step))
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        muon.step()
    return torch.cat([param.detach().flatten() for param in params]), muon.state_bytes() // 8


def whole(way: str, run: Run) -> Tensor:
    return run.values[0][0] if way == "owner" else torch.cat([shard for shard, _ in run.values])


@pytest.mark.parametrize("way", WAYS)
@few
@given(shapes=some_matrices, ranks=st.integers(1, 5), nesterov=st.booleans())
def test_every_way_equals_one_device_to_the_bit(way, shapes, ranks, nesterov):
    """And the momentum is kept once: by each rank what the closed form says."""
    run = launch(take_steps, way, shapes, 2, {"nesterov": nesterov}, ranks=ranks)
    expected, layout = one_device(shapes, 2, nesterov=nesterov), layout_of(shapes, ranks)
    assert torch.equal(whole(way, run)[: layout.numel], flat(expected, layout)[: layout.numel])
    if way == "owner":
        assert all(torch.equal(params, run.values[0][0]) for params, _ in run.values)
    kept = tuple(numbers for _, numbers in run.values)
    assert kept == muon_cost(way, shapes, counts_of(shapes, ranks)).state_numbers and sum(kept) == layout.numel


def counts_of(shapes: list, ranks: int) -> list[tuple[int, ...]]:
    layout = layout_of(shapes, ranks)
    by_rank = [{piece.name: piece.numel for piece in layout.pieces(rank)} for rank in range(ranks)]
    return [tuple(pieces.get(name, 0) for pieces in by_rank) for name in layout.names]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_bytes_and_flops_are_those_of_the_closed_form(way, ranks, monkeypatch):
    """Bytes of the exchange are counted by its split sizes: the simulator takes the fullest rank's for every rank."""
    shapes, exchanged = [(8, 8), (16, 8), (8, 24), (5, 7), (30, 4)], [0] * ranks
    all_to_all = dist.all_to_all_single

    def counted(output, input, output_splits, input_splits, **kwargs):
        assert input.element_size() == 2
        exchanged[dist.get_rank()] += 2 * (sum(input_splits) - input_splits[dist.get_rank()])
        return all_to_all(output, input, output_splits, input_splits, **kwargs)

    monkeypatch.setattr(dist, "all_to_all_single", counted)
    cost = muon_cost(way, shapes, counts_of(shapes, ranks), SETTINGS["ns_steps"])
    run = launch(take_steps, way, shapes, 2, {}, ranks=ranks, cluster="dgx-a100")
    sent = exchanged if way == "exchange" else [run.traffic.sent_bytes(rank) for rank in range(ranks)]
    assert sent == [2 * sent_bytes for sent_bytes in cost.sent_bytes]
    for rank in range(ranks):
        products = [span for span in run.timeline.select(rank=rank) if span.name in ("aten.mm", "aten.addmm")]
        assert sum(span.flops for span in products) == 2 * cost.flops[rank]


@pytest.mark.parametrize("way", WAYS)
def test_bytes_of_equal_shards_are_the_runs_traffic(way):
    shapes, ranks = [(8, 8)] * 8, 4
    run = launch(take_steps, way, shapes, 2, {}, True, ranks=ranks, cluster="dgx-a100")
    sent = muon_cost(way, shapes, [(16,) * 4] * 8).sent_bytes
    assert [run.traffic.sent_bytes(rank) for rank in range(ranks)] == [2 * sent_bytes for sent_bytes in sent]


@pytest.mark.parametrize(
    "way",
    [pytest.param("owner", marks=pytest.mark.thorough), pytest.param("gather", marks=pytest.mark.thorough), "exchange"],
)
def test_gloo_gives_what_the_simulator_gives(way):
    shapes = [(3, 4), (5, 2), (4, 4)]
    here, there = (launch(take_steps, way, shapes, 2, {}, ranks=2, backend=backend) for backend in ("sim", "gloo"))
    assert torch.equal(whole(way, here), whole(way, there))


@given(shapes=some_matrices, ranks=st.integers(1, 8))
def test_owners_are_balanced_as_the_largest_first_is(shapes, ranks):
    owner = owners(shapes, ranks)
    flops = [newton_schulz_flops(shape) for shape in shapes]
    load = [sum(f for f, own in zip(flops, owner, strict=True) if own == rank) for rank in range(ranks)]
    best = max(sum(flops) / ranks, max(flops), (sorted(flops)[-ranks - 1] * 2) if len(flops) > ranks else 0)
    assert max(load) <= 4 / 3 * best + 1e-9 or max(load) <= sum(flops) / ranks + max(flops)
    assert muon_cost("owner", shapes, counts_of(shapes, ranks)).flops == tuple(load)


def test_the_most_expensive_matrix_is_dealt_out_first():
    assert owners([(4, 4), (4, 4), (8, 8)], 2) == [1, 1, 0]


def test_the_exchange_sends_least_and_the_gather_computes_most():
    shapes, ranks = [(64, 64)] * 16, 8
    cost = {way: muon_cost(way, shapes, counts_of(shapes, ranks)) for way in WAYS}
    numel = 16 * 64 * 64
    assert cost["owner"].sent_bytes == cost["gather"].sent_bytes == (2 * numel * 7 / 8,) * 8
    assert sum(cost["exchange"].sent_bytes) == pytest.approx(8 * 4 * numel * 7 / 64)
    assert cost["gather"].flops[0] == 8 * cost["exchange"].flops[0] == 8 * cost["owner"].flops[0]
    assert newton_schulz_flops((64, 64)) == 5 * 6 * 64**3 == newton_schulz_flops((64, 64), 1) * 5


def test_a_saved_owner_goes_on_where_it_was():
    shapes = [(4, 4), (3, 5), (6, 2)]

    def program() -> bool:
        straight, _ = take_steps("owner", shapes, 2, {})
        first = [nn.Parameter(tensor) for tensor in numbers(shapes, 0)]
        saved = OwnerMuon(first, **SETTINGS)
        for param, grad in zip(first, numbers(shapes, 1), strict=True):
            param.grad = grad
        saved.step()
        again = [nn.Parameter(param.detach().clone()) for param in first]
        loaded = OwnerMuon(again, **SETTINGS)
        loaded.load_state_dict(saved.state_dict())
        for param, grad in zip(again, numbers(shapes, 2), strict=True):
            param.grad = grad
        loaded.step()
        return torch.equal(torch.cat([param.detach().flatten() for param in again]), straight)

    assert all(launch(program, ranks=2).values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: muon_cost("gather", [(2, 2)], [(3,)]), "counts must add up to each matrix"),
        (lambda: owners([(2,)], 1), "Muon takes matrices: got number 0 of shape"),
    ],
)
def test_bad_questions_get_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pieces_of_vectors_are_refused():
    def program() -> None:
        layout = FlatLayout(("bias",), ((6,),), 1)
        ShardedMuon(pieces_of([nn.Parameter(torch.ones(layout.shard_numel))], [layout]), "gather")

    with pytest.raises(RankError, match="Muon takes matrices: got bias of shape"):
        launch(program, ranks=1)
