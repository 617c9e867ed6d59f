"""ZeRO stage 3: odd modules and odd programs, when parameters are gathered and freed, and torch's FSDP2 beside it."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from lablib import RankError, launch, parallel
from lablib.models import GPT, GPTConfig, next_token_loss

sgd = partial(torch.optim.SGD, lr=0.1)


def seeded(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for param in module.parameters():
        param.data = torch.randn(param.shape, generator=generator, dtype=torch.float64)
    return module


class Stack(nn.Module):
    """Blocks between a first and a last layer: `order` says which block runs when, `is_checkpointed` how."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2), reentrant: bool | None = None, segment: int = 1):
        super().__init__()
        self.order, self.reentrant, self.segment = order, reentrant, segment
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)) for _ in range(3))
        seeded(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for start in range(0, len(self.order), self.segment):
            blocks = [self.blocks[i] for i in self.order[start : start + self.segment]]
            x = x + self.run(nn.Sequential(*blocks), x)
        return self.last(x)

    def run(self, blocks: nn.Module, x: Tensor) -> Tensor:
        return blocks(x) if self.reentrant is None else checkpoint(blocks, x, use_reentrant=self.reentrant)


class TwoUses(Stack):
    """Every block is used on two inputs before any of the results is used."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) + block(torch.tanh(x))
        return self.last(x)


class Nested(Stack):
    """Inputs by keyword and outputs in tuples and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pair() for _ in range(2))
        seeded(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            (x,), rest = block({"x": x}, scale=x.sum(-1, keepdim=True))
            x = x + rest["product"]
        return self.last(x)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, inputs: dict[str, Tensor], scale: Tensor) -> Any:
        y = self.linear(inputs["x"])
        return (torch.tanh(y),), {"product": y * torch.tanh(scale), "unused": 3}


class Detached(nn.Module):
    """Backward passes through a matrix whose own gradient is complete before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(x @ self.linear.weight.detach()))


def detached() -> nn.Module:
    model = Stack()
    model.blocks = nn.ModuleList(Detached() for _ in range(3))
    return seeded(model)


def tied_across_units() -> nn.Module:
    model = Stack()
    model.blocks[2][0].weight = model.blocks[0][0].weight  # pyright: ignore
    model.blocks[1][2] = model.blocks[0][2]  # pyright: ignore
    return model


def frozen_in_places() -> nn.Module:
    model = Stack()
    model.first.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    model.blocks[1][0].weight.requires_grad_(False)  # pyright: ignore
    model.blocks[2][2].bias.requires_grad_(False)  # pyright: ignore
    return model


def frozen_below() -> nn.Module:
    """What the first gradient needs is behind frozen parameters of the same unit."""
    model = Stack()
    for block in model.blocks:
        block[0].requires_grad_(False)  # pyright: ignore
    return model


MODULES: dict[str, Callable[[], nn.Module]] = {
    "blocks": Stack,
    "a block twice": partial(Stack, (0, 1, 0, 2, 2)),
    "in another order": partial(Stack, (2, 0, 1)),
    "two uses at once": TwoUses,
    "nested inputs": Nested,
    "detached": detached,
    "tied": tied_across_units,
    "frozen": frozen_in_places,
    "frozen below": frozen_below,
    "checkpointed": partial(Stack, reentrant=False),
    "segments checkpointed": partial(Stack, (0, 1, 2, 0), reentrant=False, segment=2),
    "reentrant": partial(Stack, reentrant=True),
    "reentrant segments": partial(Stack, (0, 1, 2, 0), reentrant=True, segment=2),
}


def batch(ranks: int) -> Tensor:
    return torch.randn(2 * ranks, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def one_device(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    module(x).square().mean().backward()
    return {name: param.grad for name, param in module.named_parameters() if param.grad is not None}


def part(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def gathered_bytes(zero: parallel.Zero) -> int:
    """Memory of full buffers."""
    return sum(unit.full.untyped_storage().nbytes() for unit in zero.units)


SIMPLE = ("blocks", "detached", "tied", "frozen", "frozen below", "checkpointed", "reentrant")
CASES = [
    pytest.param(
        *(module, options), id=f"{name}-{options}", marks=[pytest.mark.thorough] if options and name in SIMPLE else []
    )
    for name, module in MODULES.items()
    for options in ({}, {"reshard_after_forward": False}, {"prefetch": False})
]


@pytest.mark.parametrize(("module", "options"), CASES)
def test_gradients_equal_one_device_and_nothing_stays_gathered(module: Callable[[], nn.Module], options: dict):
    def program() -> list[dict[str, Tensor]]:
        zero, found = parallel.Zero(module(), sgd, 3, **options), []
        for _ in range(2):  # the second time in the order of the first
            zero.zero_grad()
            zero(part(batch(3))).square().mean().backward()
            assert gathered_bytes(zero) == 0
            found.append(zero.full_gradients())
        return found

    expected = one_device(module(), batch(3))
    for first, second in launch(program, ranks=3).values:
        torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(second, first, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["blocks", "checkpointed", "two uses at once"])
def test_a_step_gathers_every_unit_twice_and_the_root_once(name: str):
    """Also recomputed: backward has it already."""

    def program() -> tuple[list[int], int]:
        zero = parallel.Zero(MODULES[name](), sgd, 3)
        zero(part(batch(2))).square().mean().backward()
        numels = [unit.layout.padded_numel for unit in zero.units]
        return numels[1:], numels[0]

    run = launch(program, ranks=2)
    blocks, root = run.values[0]
    gathers = sorted(t.tensor_bytes for t in run.traffic.transfers if t.name.startswith("all_gather"))
    uses = 2 if name == "two uses at once" else 1  # each gathers for itself
    assert gathers == sorted(8 * numel for numel in (root, *blocks * (2 * uses)))
    scatters = [t.tensor_bytes for t in run.traffic.transfers if t.name.startswith("reduce_scatter")]
    assert sorted(scatters) == sorted(8 * numel for numel in (root, *blocks))
    if uses == 1:
        sent = parallel.zero_sent_bytes(3, blocks, 2, parallel.TrainingPrecision(8, 8, 0, 0), root_numel=root)
        assert sum(t.sent_bytes[0] for t in run.traffic.transfers if t.name != "broadcast") == pytest.approx(sent)


@pytest.mark.parametrize("name", ["checkpointed", "reentrant", "two uses at once", "tied", "frozen"])
@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2_take_the_same_modules(stage: int, name: str):
    def program() -> dict[str, Tensor]:
        zero = parallel.Zero(MODULES[name](), sgd, stage, bucket_bytes=300)
        zero(part(batch(2))).square().mean().backward()
        return zero.full_gradients()

    for gradients in launch(program, ranks=2).values:
        torch.testing.assert_close(gradients, one_device(MODULES[name](), batch(2)), rtol=1e-12, atol=1e-14)


def replica(module: nn.Module) -> nn.Module:
    return parallel.DataParallel(module)


@pytest.mark.parametrize(
    "wrap", [replica, partial(parallel.Zero, optimizer_fn=sgd, stage=1)], ids=["data parallel", "stage 1"]
)
def test_a_second_gradient_in_one_backward_is_refused_where_the_first_has_been_sent(wrap: Callable):
    def program() -> None:
        wrap(MODULES["reentrant segments"]())(part(batch(2))).square().mean().backward()

    with pytest.raises(RankError, match="a parameter must get its gradient once.*use_reentrant=False"):
        launch(program, ranks=2)


def test_backward_gathers_in_its_own_way():
    """As ZeRO++ does, from a second shard within the node."""

    def program() -> tuple[list[str], dict[str, Tensor]]:
        calls: list[str] = []

        def gather(name: str, shard: Tensor, full: Tensor, group: Any = None) -> Any:
            calls.append(name)
            return parallel.all_gather_shards(shard, full, group)

        ways: dict[str, Any] = {
            "all_gather": partial(gather, "forward"),
            "backward_all_gather": partial(gather, "backward"),
        }
        zero = parallel.Zero(Stack(), sgd, 3, **ways)
        zero(part(batch(2))).square().mean().backward()
        return calls, zero.full_gradients()

    for calls, gradients in launch(program, ranks=2).values:
        assert calls == ["forward"] * 4 + ["backward"] * 3
        torch.testing.assert_close(gradients, one_device(Stack(), batch(2)), rtol=1e-12, atol=1e-14)


# ---- odd programs ----


def test_evaluation_gathers_and_frees_also_between_forward_and_backward():
    def program() -> tuple[Tensor, dict[str, Tensor]]:
        zero = parallel.Zero(Stack(), sgd, 3)
        loss = zero(part(batch(2))).square().mean()
        with torch.no_grad():
            evaluated = zero(batch(2))
        assert gathered_bytes(zero) == 0
        loss.backward()
        return evaluated, zero.full_gradients()

    for evaluated, gradients in launch(program, ranks=2).values:
        torch.testing.assert_close(evaluated, Stack()(batch(2)).detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradients, one_device(Stack(), batch(2)), rtol=1e-12, atol=1e-14)


def test_a_forward_without_backward_leaves_the_next_step_unharmed():
    def program() -> dict[str, Tensor]:
        zero = parallel.Zero(Stack(), partial(torch.optim.SGD, lr=0.0), 3)
        zero(part(batch(2)) + 1)
        kept = zero(part(batch(2)) + 2)
        zero(part(batch(2))).square().mean().backward()
        zero.step()  # what is still gathered is out of date
        del kept
        zero.zero_grad()
        zero(part(batch(2))).square().mean().backward()
        return zero.full_gradients()

    for gradients in launch(program, ranks=2).values:
        torch.testing.assert_close(gradients, one_device(Stack(), batch(2)), rtol=1e-12, atol=1e-14)


def test_a_step_after_forward_without_backward_is_seen_by_the_next_forward():
    def program() -> Tensor:
        zero = parallel.Zero(Stack(), sgd, 3, reshard_after_forward=False)
        zero(part(batch(2))).square().mean().backward()
        zero(part(batch(2)))  # gathers, and keeps
        zero.step()
        with torch.no_grad():
            return zero(batch(2))

    alone = Stack()
    one_device(alone, batch(2))
    sgd(alone.parameters()).step()
    for seen in launch(program, ranks=2).values:
        torch.testing.assert_close(seen, alone(batch(2)).detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_backward_that_raised_leaves_the_next_step_unharmed(stage: int):
    class Explosive(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
            raise ArithmeticError

    class Model(Stack):
        explodes = True

        def run(self, blocks: nn.Module, x: Tensor) -> Tensor:
            x = blocks(x)
            return Explosive.apply(x) if self.explodes and blocks[0] is self.blocks[1] else x  # pyright: ignore

    def program() -> dict[str, Tensor]:
        model = Model()
        options: dict[str, Any] = {} if stage == 3 else {"bucket_bytes": 300}
        zero = parallel.Zero(model, sgd, stage, **options)
        with pytest.raises(ArithmeticError):
            zero(part(batch(2))).square().mean().backward()
        model.explodes = False
        zero.zero_grad()
        zero(part(batch(2))).square().mean().backward()
        return zero.full_gradients()

    for gradients in launch(program, ranks=2).values:
        torch.testing.assert_close(gradients, one_device(Stack(), batch(2)), rtol=1e-12, atol=1e-14)


def test_backward_may_run_twice_through_one_graph():
    def program() -> dict[str, Tensor]:
        zero = parallel.Zero(Stack(), sgd, 3)
        loss = zero(part(batch(2))).square().mean() / 2
        loss.backward(retain_graph=True)
        loss.backward()
        return zero.full_gradients()

    for gradients in launch(program, ranks=2).values:
        torch.testing.assert_close(gradients, one_device(Stack(), batch(2)), rtol=1e-12, atol=1e-14)


def test_outside_of_forward_parameters_are_pieces_that_together_are_the_parameter():
    def program() -> list[Tensor]:
        zero = parallel.Zero(Stack(), sgd, 3)
        return [param.detach().clone() for param in zero.module.parameters()]

    pieces = zip(*launch(program, ranks=4).values, strict=True)
    for parts, param in zip(pieces, Stack().parameters(), strict=True):
        assert torch.equal(torch.cat(parts), param.detach().flatten())


def test_default_units_are_the_members_of_lists():
    model = GPT(GPTConfig(3, 8, 2, vocab_size=8, max_seq_len=8), device="meta")
    assert parallel.default_units(model) == list(model.blocks)
    assert parallel.default_units(nn.Linear(2, 2)) == []


# ---- time and memory ----

CONFIG = GPTConfig(3, 256, 4, vocab_size=64, max_seq_len=16)


def gpt_steps(shard: Callable[[nn.Module], tuple[nn.Module, Any]], num_steps: int = 2) -> list[dict[str, Tensor]]:
    """Steps of a GPT, each after a barrier; the gradients of the last, gathered."""
    model = GPT(CONFIG)
    replica, optimizer = shard(model)
    tokens = torch.arange(17, device=torch.get_default_device())[None] + dist.get_rank()
    found: dict[str, Tensor] = {}
    for _ in range(num_steps):
        dist.barrier()
        optimizer.zero_grad()
        next_token_loss(replica(tokens[:, :-1]), tokens[:, 1:]).backward()
        if isinstance(replica, parallel.Zero):
            found = replica.full_gradients() if _ == num_steps - 1 else {}
        elif _ == num_steps - 1:
            found = {name: param.grad.full_tensor() for name, param in replica.named_parameters()}  # pyright: ignore
        optimizer.step()
    return [{name: grad.cpu() for name, grad in found.items()}]


def ours(model: nn.Module, **options: Any) -> tuple[parallel.Zero, parallel.Zero]:
    zero = parallel.Zero(model, sgd, 3, **options)
    return zero, zero


def fsdp2(model: Any) -> tuple[nn.Module, Any]:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model), sgd(model.parameters())


def step_s(run: Any) -> float:
    """Seconds between the first barrier and the second."""
    first, second = [t.start_s for t in run.traffic.transfers if t.name == "barrier"][:2]
    return second - first


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:barrier")  # which GPU, where each rank has one
@pytest.mark.parametrize("device", [None, "cuda"])
def test_stage_3_gives_the_gradients_of_fsdp2_in_the_same_time(device: str | None):
    mine, theirs = (
        launch(partial(gpt_steps, one), ranks=2, device=device, cluster="dgx-h100") for one in (ours, fsdp2)
    )
    torch.testing.assert_close(mine.values, theirs.values, rtol=1e-5, atol=1e-7)
    assert step_s(mine) == pytest.approx(step_s(theirs), rel=0.05)


@settings(deadline=None, max_examples=8)
@given(
    width=st.sampled_from([512, 2048, 8192]),
    num_layers=st.integers(2, 5),
    rows=st.sampled_from([64, 1024, 8192]),
    ranks=st.sampled_from([2, 3, 64]),
    cluster=st.sampled_from(["dgx-h100", "perlmutter", "pcie-a100"]),
)
def test_fsdp2_takes_the_time_of_stage_3_at_any_size(width, num_layers, rows, ranks, cluster):
    """To 5%, and one gather: FSDP2 starts the first of backward during forward's last layer."""

    def step(is_ours: bool) -> None:
        module: Any = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
        if not is_ours:
            for layer in module:
                fully_shard(layer)
        module = parallel.Zero(module, sgd, 3) if is_ours else fully_shard(module)
        for _ in range(2):  # in the first stage 3 records the order of its units
            dist.barrier()
            module(torch.ones(rows, width)).sum().backward()
        dist.barrier()

    how: Any = {"ranks": ranks, "simulate": [0], "fidelity": "shapes", "cluster": cluster}
    mine, theirs = (launch(step, is_ours, **how) for is_ours in (True, False))
    gather_s = max(t.end_s - t.start_s for t in theirs.traffic.transfers if "gather" in t.name)
    mine_s, theirs_s = ([t.start_s for t in run.traffic.transfers if t.name == "barrier"] for run in (mine, theirs))
    mine_s, theirs_s = mine_s[2] - mine_s[1], theirs_s[2] - theirs_s[1]
    assert 0.95 * mine_s - gather_s <= theirs_s <= 1.05 * mine_s


def shapes(ranks: int = 8, num_under_way: int | None = None, **options: Any) -> Any:
    """Two steps of four wide layers without values, so that gathers take about as long as computing.

    With `num_under_way`, hybrid sharding over nodes of 8.
    """

    def program() -> None:
        module = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(4)))
        if num_under_way is not None:
            mesh = parallel.node_mesh(ranks_per_node=8)
            reduce_scatter = parallel.HybridReduceScatter(mesh.get_group("node"))
            reduce_scatter.num_under_way = num_under_way
            zero = parallel.Zero(module, sgd, group=mesh.get_group("local"), reduce_scatter=reduce_scatter, **options)
        else:
            zero = parallel.Zero(module, sgd, **options)
        for _ in range(2):
            dist.barrier()
            zero(torch.ones(2048, 8192)).sum().backward()
            dist.barrier()
            zero.step()
            zero.zero_grad()

    simulated = [0] if num_under_way is None else range(ranks)  # a node's groups are made by its ranks
    return launch(program, ranks=ranks, simulate=simulated, fidelity="shapes", cluster="dgx-h100")


def test_the_next_gather_runs_while_a_unit_computes():
    with_prefetch, without = (shapes(stage=3, prefetch=prefetch) for prefetch in (True, False))
    assert exposed_s(with_prefetch) < 0.6 * exposed_s(without)
    spans = [s for s in with_prefetch.timeline.spans if s.rank == 0]
    products = [s for s in spans if s.stream == "compute" and "mm" in s.name][-11:]  # the input has no gradient
    gathers = [s for s in spans if "all_gather" in s.name][-8:]
    # Forward of layer k covers the gather of layer k + 1, backward that of layer k - 1.
    for gather, product in zip(gathers[1:4], products[:3], strict=True):
        assert gather.start_s < product.end_s and product.start_s < gather.end_s
    for gather, product in zip(gathers[5:], products[4::2], strict=False):
        assert gather.start_s < product.end_s
    assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(gathers))


def exposed_s(run: Any) -> float:
    """Seconds of the second forward and backward in which rank 0 computes nothing."""
    first, last = [t.end_s for t in run.traffic.transfers if t.name == "barrier"][2:4]
    spans = [s for s in run.timeline.spans if s.rank == 0 and s.stream == "compute" and first <= s.start_s <= last]
    return last - first - sum(s.end_s - s.start_s for s in spans)


def test_reduce_scatters_of_stage_2_hide_behind_backward():
    in_buckets, at_once = (shapes(stage=2, bucket_bytes=size) for size in (2**28, 2**40))
    assert exposed_s(in_buckets) < 0.6 * exposed_s(at_once)


def test_averaging_over_nodes_hides_behind_the_backward_of_the_next_unit():
    two_on_their_way, one = (shapes(ranks=16, num_under_way=number, stage=3) for number in (2, 1))
    assert parallel.HybridReduceScatter.num_under_way == 2
    assert exposed_s(two_on_their_way) < 0.7 * exposed_s(one)


@pytest.mark.parametrize("stage", [2, 3])
def test_while_it_computes_two_units_are_whole_and_no_more(stage: int):
    run = shapes(stage=stage, **({"bucket_bytes": 2**28} if stage == 2 else {}))
    layer = 8192 * 8192 * 4
    _, held = run.memory.curve(0)
    steady = slice(len(held["gradient"]) // 2, None)  # past the whole module, which is there at first
    gradients = (held["gradient"] + held["communication"] + held["other"])[steady].max()
    activation = 2048 * 8192 * 4
    # A gradient and its bucket (or the bucket on its way), the shards, and the gradients of input and output.
    assert gradients <= layer * (2 + 4 / 8) + 2 * activation
    if stage == 3:
        assert held["parameter"][steady].max() <= layer * (2 + 4 / 8)


def test_a_parameter_that_is_frozen_after_it_was_sharded_is_refused():
    def program() -> None:
        zero = parallel.Zero(nn.Linear(3, 4), sgd, 3)
        zero.module.requires_grad_(False)
        zero(torch.ones(2, 3))

    with pytest.raises(RankError, match="must stay as when it was sharded: weight has False instead of True; set it"):
        launch(program, ranks=2)
