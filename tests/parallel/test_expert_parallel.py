"""Experts spread over ranks: outputs and raw gradients of the same routing on one device, on meshes too."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import LaunchError, launch
from lablib.errors import ValueNeededError
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import (
    GPT_PLAN,
    DataParallel,
    ExpertMLPs,
    ExpertParallel,
    ExpertReduce,
    Mesh,
    average_expert_gradients,
    balancing_loss,
    combine,
    dispatch,
    expert_parallel,
    full_gradients,
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

EXACT: Any = {"rtol": 1e-9, "atol": 1e-12}
D, F = 3, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
        return on_ranks("real", inputs, 2, None) + on_ranks("naive", inputs, 2, 3)

    first, again = (launch(both, ranks=2).values for _ in range(2))
    assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    real = launch(both, ranks=2, backend="gloo").values
    same([found[:5] for found in real], one_device(inputs, 2, None))
    same([found[5:] for found in real], one_device(inputs, 2, 3))


def test_a_rank_sends_what_leaves_it_and_the_numbers_of_its_rows():
    """Even routing: (n-1)/n N k D w twice forward, twice backward, and (n-1)/n E numbers of 8 bytes."""

    def program() -> None:
        x = torch.zeros(12, 5, dtype=torch.float64, requires_grad=True)
        routing = route(torch.zeros(12, 6), 2, balanced=True)
        experts = ExpertMLPs(torch.zeros(2, 5, 4).double(), torch.zeros(2, 4, 5).double())
        expert_parallel(x, routing, experts, sort_by_expert(routing)).sum().backward()

    for fidelity in ("values", "shapes"):
        calls = launch(program, ranks=3, fidelity=fidelity).traffic.transfers
        found = [bytes_of_rank for call in calls if "all_to_all" in call.name for bytes_of_rank in call.sent_bytes]
        assert found == [2 / 3 * 6 * 8] * 3 + [2 / 3 * 12 * 2 * 5 * 8] * 3 * 4


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
    return loss.item(), grads_of(model)


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
    return loss.item(), grads_of(model)


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


def tensor_step(mesh: Mesh, cuts_experts: bool, **options: Any) -> tuple[float, dict[str, Tensor]]:
    plan = {
        name: style for name, style in GPT_PLAN.items() if "mlp" not in name and name not in ("head", "token_embedding")
    }
    tensor, data, everyone = mesh.group("tensor"), mesh.group("data"), mesh.group("data", "expert")
    group = mesh.group("expert") if cuts_experts else mesh.group("expert", "tensor")
    model: Any = parallelize(gpt(**options), tensor, plan)
    ExpertParallel(group, tensor, cuts_experts=cuts_experts).parallelize(model)
    replica = DataParallel(model, data, reduce=ExpertReduce(model, everyone))
    at = mesh.coordinates(dist.get_rank())
    number = at["data"] * mesh.sizes["expert"] + at["expert"]
    rows = 8 // (mesh.sizes["data"] * mesh.sizes["expert"])
    tokens, targets = (part[number * rows : (number + 1) * rows] for part in batch(8))
    loss = next_token_loss(replica(tokens), targets) + losses_of(model, partial(group_load, group=everyone))
    loss.backward()
    return loss.item(), grads_of(model)


@pytest.mark.parametrize("cuts_experts", [True, False])
@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 1, 2), (2, 2, 2)])
def test_a_gpt_on_a_mesh_with_tensor_parallelism_has_the_gradients_of_one_device(
    cuts_experts: bool, sizes: tuple[int, int, int]
):
    """Experts cut over the tensor ranks, or whole on one of them; shared experts beside."""
    mesh = Mesh(data=sizes[0], expert=sizes[1], tensor=sizes[2])
    expected = whole_gpt(8, num_shared=1)
    for _, grads in launch(partial(tensor_step, num_shared=1), mesh, cuts_experts, ranks=mesh.num_ranks).values:
        torch.testing.assert_close(grads, expected[1], **EXACT)


def test_the_two_classic_mistakes_give_other_gradients():
    """Experts averaged over all ranks add up different experts; divided by the data ranks they are too large."""

    def program(mistake: str) -> dict[str, Tensor]:
        mesh = Mesh(data=2, expert=2)
        model = ExpertParallel(mesh.group("expert")).parallelize(gpt())
        own = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
        tokens, targets = (part[own] for part in batch(8))
        (next_token_loss(model(tokens), targets)).backward()
        if mistake == "all ranks":
            for param in model.parameters():
                param.grad /= 4
                dist.all_reduce(param.grad)
        else:
            average_expert_gradients(model, mesh.group("data"))
            for mixture in mixtures(model):
                for param in mixture.experts.parameters():
                    assert param.grad is not None
                    param.grad *= 2
        return grads_of(model)

    model, (tokens, targets) = gpt(), batch(8)
    next_token_loss(model(tokens), targets).backward()
    expected, name = grads_of(model), "blocks.0.mlp.experts.up"
    for found in launch(program, "data ranks", ranks=4).values:
        torch.testing.assert_close(found[name], 2 * expected[name], **EXACT)
    for found in launch(program, "all ranks", ranks=4).values:
        torch.testing.assert_close(found[name][:2], expected[name][:2] + expected[name][2:], **EXACT)


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
    with pytest.raises((ValueNeededError, LaunchError), match="say balanced=True"):
        launch(program, False, ranks=128, fidelity="shapes", simulate=range(8))
