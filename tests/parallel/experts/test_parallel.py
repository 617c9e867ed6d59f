"""Experts spread over ranks: outputs and raw gradients of the same routing on one device, on meshes too."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import LaunchError, RankError, launch
from lablib.errors import ValueNeededError
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import (
    GPT_PLAN,
    GPT_SEQUENCE_PLAN,
    SCORE,
    SEQUENCE,
    DataParallel,
    ExpertMLPs,
    ExpertParallel,
    ExpertReduce,
    Mesh,
    OfExperts,
    Vocabulary,
    average_expert_gradients,
    balancing_loss,
    check_experts,
    combine,
    dispatch,
    expert_parallel,
    full_gradients,
    gradient_norm,
    group_load,
    mixtures,
    naive_expert_parallel,
    own_load,
    padded_product,
    parallelize,
    route,
    router_z_loss,
    sigmoid_gates,
    sort_by_expert,
    update_bias_,
    with_experts,
)
from tests.parallel.drawn import drawn

EXACT: Any = {"rtol": 1e-9, "atol": 1e-12}
D, F = 3, 4


# ---- one layer ----


def layer_inputs(num_experts: int, lengths: list[int], skew: float) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Tokens of each rank, the router, and the experts. With skew, all first choices are the last expert's."""
    xs = list(drawn(sum(lengths), D).split(lengths))
    router = drawn(num_experts, D, seed=1)
    up, down = drawn(num_experts, D, F, seed=2), drawn(num_experts, F, D, seed=3)
    return [torch.cat([x, torch.full((len(x), 1), skew).double()], 1) for x in xs], router, up, down


def logits_of(x_NI: Tensor, router: Tensor) -> Tensor:
    logits = x_NI[:, :D] @ router.T
    return torch.cat([logits[:, :-1], logits[:, -1:] + x_NI[:, D:]], 1)


def weighed(y: Tensor, rank: int) -> Tensor:
    return (y * drawn(*y.shape, seed=10 + rank)).sum()


def on_ranks(way: str, inputs: Any, k: int, capacity: int | None) -> list[Tensor]:
    xs, router, up, down = inputs
    n, rank = dist.get_world_size(), dist.get_rank()
    x, router = xs[rank].clone().requires_grad_(), router.clone().requires_grad_()
    experts = ExpertMLPs(up.chunk(n)[rank].clone(), down.chunk(n)[rank].clone())
    routing = route(logits_of(x, router), k)
    if way == "naive":
        y = naive_expert_parallel(x[:, :D], routing, experts, capacity or 99)
    else:
        y = expert_parallel(x[:, :D], routing, experts, sort_by_expert(routing, capacity))
    weighed(y, rank).backward()
    return [y.detach(), *(part.grad for part in (x, router, experts.up, experts.down) if part.grad is not None)]


def one_device(inputs: Any, k: int, capacity: int | None) -> list[Any]:
    """Each rank's tokens in turn, as each fills its own slots; gradients add up."""
    xs, router, up, down = inputs
    router, experts = router.clone().requires_grad_(), ExpertMLPs(up.clone(), down.clone())
    ys, x_grads = [], []
    for rank, x in enumerate(xs):
        x = x.clone().requires_grad_()
        routing = route(logits_of(x, router), k)
        permutation = sort_by_expert(routing, capacity)
        rows = experts(dispatch(x[:, :D], permutation), permutation.counts)
        y = combine(rows, permutation, routing.weights_Nk)
        weighed(y, rank).backward()
        ys.append(y.detach())
        x_grads.append(x.grad)
    return [ys, x_grads, router.grad, experts.up.grad, experts.down.grad]


def same(values: list[list[Tensor]], expected: list[Any]) -> None:
    ys, x_grads, router, up, down = expected
    for rank, found in enumerate(values):
        torch.testing.assert_close(found[:2], [ys[rank], x_grads[rank]], **EXACT)
        torch.testing.assert_close(found[3:], [up.chunk(len(values))[rank], down.chunk(len(values))[rank]], **EXACT)
    torch.testing.assert_close(sum(found[2] for found in values), router, **EXACT)


@given(
    way=st.sampled_from(["real", "naive"]),
    n=st.integers(1, 6),
    per_rank=st.integers(1, 3),
    k=st.integers(1, 3),
    lengths=st.lists(st.integers(0, 7), min_size=6, max_size=6),
    capacity=st.none() | st.integers(1, 4),
    skew=st.sampled_from([0.0, 60.0]),
)
@settings(max_examples=30)
def test_outputs_and_gradients_are_those_of_the_same_routing_on_one_device(
    way: str, n: int, per_rank: int, k: int, lengths: list[int], capacity: int | None, skew: float
):
    """Uneven loads, ranks without a token, experts without one, all first choices to one expert; drops."""
    num_experts = n * per_rank
    k, inputs = min(k, num_experts), layer_inputs(num_experts, lengths[:n], skew)
    values = launch(on_ranks, way, inputs, k, capacity, ranks=n, trace=False).values
    same(values, one_device(inputs, k, capacity))


def test_real_processes_give_what_the_simulator_gives_and_the_simulator_repeats_to_the_bit():
    inputs = layer_inputs(4, [5, 2], 0.0)

    def both() -> list[Tensor]:
        load = group_load(route(inputs[0][dist.get_rank()][:, :3], 2))
        loads = [load.counts_E, load.num_tokens]
        return on_ranks("real", inputs, 2, None) + on_ranks("naive", inputs, 2, 3) + loads

    first, again = (launch(both, ranks=2).values for _ in range(2))
    assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    real = launch(both, ranks=2, backend="gloo").values
    same([found[:5] for found in real], one_device(inputs, 2, None))
    same([found[5:10] for found in real], one_device(inputs, 2, 3))
    assert all(torch.equal(a, b) for x, y in zip(real, first, strict=True) for a, b in zip(x[10:], y[10:], strict=True))


# ---- a whole GPT ----

CONFIG = GPTConfig(2, 12, 2, vocab_size=12, max_seq_len=8, d_ff=8)


def gpt(**options: Any) -> GPT:
    """Biases and norms away from 0 and 1; routers far enough from 0 to choose."""
    model = with_experts(GPT(CONFIG, dtype=torch.float64), 4, 2, **options)
    generator = torch.Generator().manual_seed(7)
    for param in model.parameters():
        param.data += 0.2 * torch.randn(param.shape, generator=generator, dtype=param.dtype)
    return model


def batch(rows: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    found = torch.randint(0, 12, (rows, 9), generator=torch.Generator().manual_seed(seed))
    return found[:, :-1], found[:, 1:].clone()


def grads_of(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): grad for name, grad in full_gradients(model).items()}


def losses_of(model: nn.Module, load: Any) -> Tensor:
    """Of balance and logits, with factors that show."""
    parts = [
        balancing_loss(mixture.routing, load(mixture.routing))
        + 0.3 * router_z_loss(mixture.routing, load(mixture.routing))
        for mixture in mixtures(model)
        if mixture.routing is not None
    ]
    return sum(parts, torch.zeros((), dtype=torch.float64))


def whole_gpt(rows: int, **options: Any) -> tuple[float, dict[str, Tensor]]:
    model, (tokens, targets) = gpt(**options), batch(rows)
    loss = next_token_loss(model(tokens), targets) + losses_of(model, own_load)
    loss.backward()
    grads = grads_of(model)
    return loss.item(), grads | {"norm": torch.cat([grad.flatten() for grad in grads.values()]).norm()}


def data_step(mesh: Mesh, way: str, **options: Any) -> tuple[float, dict[str, Tensor]]:
    data, everyone = mesh.group("data"), mesh.group("data", "expert")
    model: Any = ExpertParallel(mesh.group("expert")).parallelize(gpt(**options))
    replica = model
    if way == "buckets":
        replica = DataParallel(model, data, bucket_bytes=1000, reduce=ExpertReduce(model, everyone))
    own = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    tokens, targets = (part[own] for part in batch(8))
    loss = next_token_loss(replica(tokens), targets) + losses_of(model, partial(group_load, group=everyone))
    loss.backward()
    if way == "naive":
        average_expert_gradients(model, data, everyone)
    norm = gradient_norm(model, Mesh(rest=1, one=dist.get_world_size()).group("rest"))  # nothing else is cut
    return loss.item(), grads_of(model) | {"norm": norm}


@pytest.mark.parametrize("way", ["naive", "buckets"])
@pytest.mark.parametrize("sizes", [(2, 2), (1, 4), (4, 1)])
def test_a_gpt_on_a_mesh_of_data_and_experts_has_the_gradients_of_one_device(way: str, sizes: tuple[int, int]):
    """With the losses of balance over all ranks' tokens, and shared experts."""
    mesh = Mesh(data=sizes[0], expert=sizes[1])
    expected = whole_gpt(8, num_shared=1)
    values = launch(partial(data_step, num_shared=1), mesh, way, ranks=4).values
    assert sum(loss for loss, _ in values) / 4 == pytest.approx(expected[0], rel=1e-12)
    for _, grads in values:
        torch.testing.assert_close(grads, expected[1], **EXACT)


def tensor_step(mesh: Mesh, cuts_experts: bool, cuts_sequence: bool, **options: Any) -> tuple[float, dict[str, Tensor]]:
    plan = {
        name: style
        for name, style in (GPT_SEQUENCE_PLAN if cuts_sequence else GPT_PLAN).items()
        if ".mlp." not in name and (cuts_sequence or name not in ("head", "token_embedding"))
    }
    if cuts_sequence:
        plan |= {"blocks.*.mlp": OfExperts(), "head": Vocabulary(SEQUENCE, gathers=True)}
    tensor, data, everyone = mesh.group("tensor"), mesh.group("data"), mesh.group("data", "expert")
    group = mesh.group("expert") if cuts_experts else mesh.group("expert", "tensor")
    model: Any = parallelize(gpt(**options), tensor, plan)
    ExpertParallel(group, tensor, cuts_experts=cuts_experts, cuts_sequence=cuts_sequence).parallelize(model)
    replica = DataParallel(model, data, reduce=ExpertReduce(model, everyone))
    at = mesh.coordinates(dist.get_rank())
    number = at["data"] * mesh.sizes["expert"] + at["expert"]
    rows = 8 // (mesh.sizes["data"] * mesh.sizes["expert"])
    tokens, targets = (part[number * rows : (number + 1) * rows] for part in batch(8))
    loss = next_token_loss(replica(tokens), targets) + losses_of(model, partial(group_load, group=everyone))
    loss.backward()
    return loss.item(), grads_of(model) | {"norm": gradient_norm(model, tensor)}


@pytest.mark.parametrize("cuts", [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 1, 2), (2, 2, 2)])
def test_a_gpt_on_a_mesh_with_tensor_parallelism_has_the_gradients_of_one_device(
    cuts: tuple[bool, bool], sizes: tuple[int, int, int]
):
    """Experts cut over the tensor ranks, or whole on one of them; sequences cut or whole; shared experts."""
    mesh = Mesh(data=sizes[0], expert=sizes[1], tensor=sizes[2])
    expected = whole_gpt(8, num_shared=1)
    for _, grads in launch(partial(tensor_step, num_shared=1), mesh, *cuts, ranks=mesh.num_ranks).values:
        torch.testing.assert_close(grads, expected[1], **EXACT)


def test_three_steps_with_a_bias_leave_the_parameters_and_the_bias_of_one_device():
    """Loss-free balancing: the bias follows the load of all ranks, and so does the next choice."""
    options: Any = {"gates": sigmoid_gates, "scale": 2.5, "has_bias": True}

    def train(model: Any, replica: Any, rows: slice, load: Any) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(3):
            optimizer.zero_grad()
            tokens, targets = (part[rows] for part in batch(8, seed))
            next_token_loss(replica(tokens), targets).backward()
            optimizer.step()
            for mixture in mixtures(model):
                assert mixture.bias_E is not None
                update_bias_(mixture.bias_E, load(mixture.routing), rate=0.05)
        found = [mixture.bias_E for mixture in mixtures(model) if mixture.bias_E is not None]
        return [*found, model.blocks[1].mlp.router.weight.detach(), model.token_embedding.weight.detach()]

    def program() -> list[Tensor]:
        mesh = Mesh(data=2, expert=2)
        model: Any = ExpertParallel(mesh.group("expert")).parallelize(gpt(**options))
        replica = DataParallel(model, mesh.group("data"), reduce=ExpertReduce(model))
        return train(model, replica, slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2), group_load)

    plain = gpt(**options)
    expected = train(plain, plain, slice(0, 8), own_load)
    assert any(bias.any() for bias in expected[:2])
    for found in launch(program, ranks=4).values:
        torch.testing.assert_close(found, expected, **EXACT)


def test_under_shapes_many_ranks_run_a_balanced_step_and_others_are_refused():
    def program(balanced: bool) -> int:
        mesh = Mesh(data=16, expert=8)
        config = GPTConfig(1, 64, 2, vocab_size=16, max_seq_len=32)
        model: Any = with_experts(GPT(config), 16, 2, balanced=balanced, product=padded_product)
        model = ExpertParallel(mesh.group("expert")).parallelize(model)
        replica = DataParallel(model, mesh.group("data"), reduce=ExpertReduce(model))
        tokens = torch.zeros(2, 32, dtype=torch.long)
        next_token_loss(replica(tokens), tokens).backward()
        return model.blocks[0].mlp.experts.num_experts

    run = launch(program, True, ranks=128, fidelity="shapes", simulate=range(8))
    assert run.values[0] == 2 and run.timeline.makespan_s > 0
    with pytest.raises((ValueNeededError, LaunchError), match="use balanced=True"):
        launch(program, False, ranks=128, fidelity="shapes", simulate=range(8))


def test_under_shapes_the_naive_way_runs_whatever_the_routing():
    def program() -> tuple[int, ...]:
        experts = ExpertMLPs(torch.zeros(2, 5, 4), torch.zeros(2, 4, 5))
        return naive_expert_parallel(torch.zeros(12, 5), route(torch.randn(12, 6), 2), experts, 3).shape

    assert launch(program, ranks=3, fidelity="shapes").values == [(12, 5)] * 3


# ---- hostile ----


def test_a_copy_no_grad_and_frozen_parameters_stay_what_they_are():
    def program() -> list[bool]:
        model: Any = gpt(num_shared=1)
        model.blocks[0].mlp.router.requires_grad_(False)
        model.blocks[1].mlp.experts.requires_grad_(False)
        model = ExpertParallel().parallelize(model)
        tokens, targets = batch(2)
        copied = copy.deepcopy(model)
        with torch.no_grad():
            same_bits = torch.equal(copied(tokens), model(tokens))
        replica = DataParallel(model, Mesh(data=1, expert=2).group("data"), reduce=ExpertReduce(model))
        next_token_loss(replica(tokens), targets).backward()
        missing = [name for name, param in model.named_parameters() if param.grad is None]
        names = ["blocks.0.mlp.router.weight", "blocks.1.mlp.experts.up", "blocks.1.mlp.experts.down"]
        return [same_bits, missing == names]

    assert launch(program, ranks=2).values == [[True, True]] * 2


def test_bfloat16_on_ranks_is_bfloat16_on_one_device_up_to_the_last_bits():
    model = gpt().bfloat16()
    tokens, _ = batch(4)
    with torch.no_grad():
        expected = model(tokens)

    def program() -> Tensor:
        parallel: Any = ExpertParallel().parallelize(gpt().bfloat16())
        with torch.no_grad():
            return parallel(tokens)

    for found in launch(program, ranks=2).values:
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_capacity_on_ranks_drops_by_rank_what_each_ranks_tokens_overfill():
    """All tokens to expert 0, 2 slots on each rank: closed form, by score too."""

    def program() -> tuple[int, int]:
        model: Any = ExpertParallel().parallelize(gpt(capacity_factor=0.5, drop=SCORE, normalized=False))
        for mixture in mixtures(model):
            mixture.router.weight.data.zero_()
        tokens, _ = batch(1)
        model(tokens)
        return tuple(mixture.num_dropped for mixture in mixtures(model))  # pyright: ignore

    # 8 tokens x 2 choices over 4 experts with factor 0.5: 2 slots; experts 0 and 1 get 8 choices each.
    assert launch(program, ranks=2).values == [(12, 12)] * 2


def test_what_cannot_be_is_refused_before_any_rank_starts():
    assert check_experts(8, 2, 4) == 2 and check_experts(8, 2, 2, tensor_ranks=2, cuts_experts=False) == 2
    refused: list[tuple[Any, str]] = [
        (lambda: check_experts(6, 2, 4), "got 6 experts on 4 ranks; try 3 ranks, or 8 experts"),
        (lambda: check_experts(8, 9, 4), "k must be at most the number of experts: got 9 of 8"),
        (lambda: check_experts(4, 2, 8), "got 4 experts on 8 ranks; try 4 ranks, or 8 experts"),
        (lambda: check_experts(8, 2, 4, d_ff=10, tensor_ranks=4), "got 10 on 4 ranks; try d_ff=12"),
        (lambda: check_experts(8, 2, 4, tensor_ranks=4, cuts_experts=False), "got 8 experts on 16 ranks; try 8 ranks"),
        (
            lambda: check_experts(8, 1, 4, num_tokens=4, capacity_factor=1.0),
            "room for at least one token: got factor 1 of 4",
        ),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


def test_what_does_not_fit_is_refused_on_the_rank():
    def uneven() -> None:
        ExpertParallel().parallelize(gpt())

    def plain() -> None:
        ExpertParallel().parallelize(GPT(CONFIG))

    def twice() -> None:
        parallel = ExpertParallel(Mesh(rest=3, expert=1).group("expert"))
        parallel.parallelize(parallel.parallelize(gpt()))

    def reduce() -> None:
        ExpertReduce(GPT(CONFIG))

    def balanced() -> None:
        tensor = Mesh(tensor=3).group("tensor")
        model = with_experts(GPT(CONFIG), 3, 1, balanced=True)
        ExpertParallel(None, tensor, cuts_experts=False).parallelize(model)(batch(1)[0])

    refused: list[tuple[Any, str]] = [
        (lambda: ExpertParallel(cuts_experts=False, cuts_sequence=True), "needs cut experts: got cuts_experts=False"),
        (uneven, "got 4 experts on 3 ranks; try 2 ranks, or 6 experts"),
        (plain, "for a model with mixtures: got none; call with_experts first"),
        (twice, "spread already: call parallelize once"),
        (reduce, "got none; use DataParallel without it"),
        (balanced, "got 8 tokens x 1 choices on 3 ranks for 3 experts; try a multiple of 9 tokens"),
    ]
    for program, message in refused:
        with pytest.raises(RankError, match=message):
            launch(program, ranks=3)
