"""Data parallelism: naive, in buckets, overlapped, accumulated, hierarchical. All give the gradients of one device.

Gradients are compared raw, in float64, after plain averaging: an adaptive optimizer would hide a wrong scale. They are
equal to the rounding of sums in another order (1e-12), and to the bit where the same sums are done twice.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.profiler import record_function

from lablib import CLUSTERS, RankError, find_cluster, launch, parallel
from lablib.hardware import Cluster, Device, Link
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.studies import StepProfile, predict_step, profile_step, scaling_efficiency
from tests.parallel.drawn import mlp

METHODS = ("naive", "bucketed", "overlapped", "hierarchical")
few = settings(max_examples=12, deadline=None)
ranks_of_any_number = st.integers(1, 6)
bucket_sizes = st.sampled_from([1, 64, 500, 1000, 4096, 2**20])
widths = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def data(num_samples: int, size: int) -> Tensor:
    return torch.randn(num_samples, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(module: nn.Module) -> list[Tensor]:
    return [param.grad.clone() for param in module.parameters() if param.grad is not None]


def one_device(sizes: list[int], num_samples: int) -> list[Tensor]:
    module = mlp(sizes)
    module(data(num_samples, sizes[0])).square().mean().backward()
    return gradients(module)


def averaged(method: str, module: nn.Module, bucket_bytes: int, ranks_per_node: int = 1) -> tuple[nn.Module, Callable]:
    """The replica to call, and what must be called after backward."""
    if method == "overlapped":
        return parallel.DataParallel(module, bucket_bytes=bucket_bytes), lambda: None
    if method == "hierarchical":
        reduce = parallel.HierarchicalAverage(parallel.node_mesh(ranks_per_node))
        return parallel.DataParallel(module, bucket_bytes=bucket_bytes, reduce=reduce), lambda: None
    if method == "bucketed":
        return module, lambda: parallel.average_gradients_in_buckets(module, bucket_bytes=bucket_bytes)
    return module, lambda: parallel.average_gradients(module)


def one_step(method: str, sizes: list[int], bucket_bytes: int, samples_a_rank: int = 2, ranks_per_node: int = 1):
    """One backward on this rank's part of the batch."""
    rank, module = dist.get_rank(), mlp(sizes)
    replica, synchronize = averaged(method, module, bucket_bytes, ranks_per_node)
    part = data(samples_a_rank * dist.get_world_size(), sizes[0])[samples_a_rank * rank :][:samples_a_rank]
    replica(part).square().mean().backward()
    synchronize()
    return gradients(module)


def assert_same(runs: list[list[Tensor]], expected: list[Tensor]) -> None:
    for gradients_of_rank in runs:
        torch.testing.assert_close(gradients_of_rank, expected, rtol=1e-12, atol=1e-14)


# ---- equal to one device ----


@few
@given(ranks=ranks_of_any_number, bucket_bytes=bucket_sizes, sizes=widths, method=st.sampled_from(METHODS[:3]))
def test_gradients_equal_one_device(ranks, bucket_bytes, sizes, method):
    run = launch(one_step, method, sizes, bucket_bytes, ranks=ranks)
    assert_same(run.values, one_device(sizes, 2 * ranks))


@few
@given(nodes=st.integers(1, 3), local=st.integers(1, 3), bucket_bytes=bucket_sizes, sizes=widths)
def test_hierarchical_gradients_equal_one_device(nodes, local, bucket_bytes, sizes):
    run = launch(one_step, "hierarchical", sizes, bucket_bytes, 2, local, ranks=nodes * local)
    assert_same(run.values, one_device(sizes, 2 * nodes * local))


@few
@given(
    ranks=ranks_of_any_number,
    num_micro_batches=st.integers(1, 4),
    bucket_bytes=bucket_sizes,
    method=st.sampled_from(["overlapped", "hierarchical"]),
)
def test_accumulated_gradients_equal_one_device(ranks, num_micro_batches, bucket_bytes, method):
    sizes = [3, 5, 2]

    def program():
        module = mlp(sizes)
        replica, _ = averaged(method, module, bucket_bytes)
        part = data(2 * num_micro_batches * ranks, 3).chunk(ranks)[dist.get_rank()]
        for number, micro_batch in enumerate(part.chunk(num_micro_batches)):
            is_last = number == num_micro_batches - 1
            with nullcontext() if is_last else replica.no_sync():  # pyright: ignore[reportCallIssue]
                (replica(micro_batch).square().mean() / num_micro_batches).backward()
        return gradients(module)

    run = launch(program, ranks=ranks)
    assert_same(run.values, one_device(sizes, 2 * num_micro_batches * ranks))
    assert run.traffic.count("all_reduce") == len(parallel.plan_buckets(list(mlp(sizes).parameters()), bucket_bytes))


@few
@given(parts=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any))
def test_uneven_parts_are_weighted_by_their_samples(parts):
    """The mean of unequal parts' means is not the mean: each rank's sum counts n/N of it, N over all ranks."""
    sizes, total = [3, 4, 2], sum(parts)

    def program():
        rank, module = dist.get_rank(), mlp(sizes)
        replica = parallel.DataParallel(module)
        part = data(total, 3).split(parts)[rank]
        squares = replica(part).square().sum()
        (squares / (2 * total) * dist.get_world_size()).backward()
        return gradients(module)

    assert_same(launch(program, ranks=len(parts)).values, one_device(sizes, total))


@pytest.mark.slow
def test_gloo_gives_the_gradients_of_the_simulator():
    def program():
        return [one_step(method, [5, 7, 3], 200, ranks_per_node=2) for method in METHODS]

    real, simulated = launch(program, ranks=2, backend="gloo"), launch(program, ranks=2)
    torch.testing.assert_close(real.values, simulated.values, rtol=1e-12, atol=1e-15)
    assert real.traffic.sent_bytes() == pytest.approx(simulated.traffic.sent_bytes())


# ---- odd modules ----


def test_a_tied_parameter_is_sent_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.down.weight = self.up.weight
            self.double()

        def forward(self, x):
            return self.down(torch.tanh(self.up(x)))

    def program(wrapped):
        torch.manual_seed(0)
        module = Tied()
        x = data(4, 4)
        part = x.chunk(2)[dist.get_rank()] if wrapped else x
        (parallel.DataParallel(module) if wrapped else module)(part).square().mean().backward()
        return gradients(module)

    run = launch(program, True, ranks=2)
    assert_same(run.values, launch(program, False, ranks=1).values[0])
    sent = [t.tensor_bytes for t in run.traffic.transfers if t.name == "all_reduce"]
    assert sent == [4 * 4 * 8]


def test_a_bucket_holds_one_dtype_and_both_are_averaged():
    def program():
        rank = dist.get_rank()
        single, double = mlp([3, 4], torch.float32), mlp([4, 4, 2])
        module = nn.Sequential(single, double)
        replica = parallel.DataParallel(module)

        def forward(x):
            return double(single(x.float()).double())

        module.forward = forward  # type: ignore[method-assign]
        replica(data(4, 3).chunk(2)[rank]).square().mean().backward()
        return [bucket[0].dtype for bucket in replica.buckets], gradients(module)

    run = launch(program, ranks=2)
    assert [value[0] for value in run.values] == [[torch.float64, torch.float32]] * 2
    first, second = mlp([3, 4], torch.float32), mlp([4, 4, 2])
    alone = nn.Sequential(first, second)
    second(first(data(4, 3).float()).double()).square().mean().backward()
    for _, got in run.values:
        assert [g.dtype for g in got] == [p.dtype for p in alone.parameters()]
        torch.testing.assert_close(got, gradients(alone), rtol=1e-5, atol=1e-6)


def test_replicas_start_equal_buffers_included():
    def program():
        torch.manual_seed(dist.get_rank())
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        module[1].running_mean.normal_()  # pyright: ignore[reportCallIssue]
        parallel.DataParallel(module)
        return [tensor.clone() for tensor in module.state_dict().values()]

    first, *others = launch(program, ranks=3).values
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def test_a_frozen_parameter_is_left_out():
    def program():
        module = mlp([3, 4, 2])
        module[0].weight.requires_grad_(False)
        parallel.DataParallel(module)(data(2, 3)).sum().backward()
        return module[0].weight.grad is None, module[2].weight.grad is not None

    assert launch(program, ranks=2).values == [(True, True)] * 2


@pytest.mark.parametrize("method", METHODS)
def test_an_unused_parameter_is_an_error_that_names_it(method):
    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.forgotten = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    def program():
        replica, synchronize = averaged(method, Forgetful(), 100)
        replica(torch.ones(1, 3)).sum().backward()
        synchronize()

    with pytest.raises(RankError, match=r"forgotten.weight, .*forgotten.bias got none; let the loss depend on it"):
        launch(program, ranks=2)


def test_nothing_to_train_is_an_error():
    with pytest.raises(RankError, match="needs a parameter to train"):
        launch(lambda: parallel.DataParallel(nn.ReLU()), ranks=1)


def test_ranks_that_do_not_fill_nodes_are_an_error():
    with pytest.raises(RankError, match="must be a multiple of ranks_per_node: got 3 and 2"):
        launch(lambda: parallel.node_mesh(2), ranks=3)


def test_a_backward_that_raised_leaves_the_next_step_unharmed():
    def program():
        module = mlp([3, 4, 2])
        replica = parallel.DataParallel(module)

        def explode(_):
            raise ArithmeticError

        hook = module[0].weight.register_hook(explode)  # pyright: ignore[reportCallIssue]
        with pytest.raises(ArithmeticError):
            replica(data(2, 3)).square().mean().backward()
        hook.remove()
        module.zero_grad()
        replica(data(4, 3).chunk(2)[dist.get_rank()]).square().mean().backward()
        return gradients(module)

    assert_same(launch(program, ranks=2).values, one_device([3, 4, 2], 4))


# ---- kept buckets ----


@few
@given(bucket_bytes=bucket_sizes, sizes=widths, sets_to_none=st.booleans(), keeps=st.sampled_from(["no", "one", "all"]))
def test_gradients_that_are_kept_are_not_overwritten(bucket_bytes, sizes, sets_to_none, keeps):
    """A bucket's memory is used again only if nothing refers to it."""

    def program():
        module = mlp(sizes)
        replica, kept, copies = parallel.DataParallel(module, bucket_bytes=bucket_bytes), [], []
        for step in range(3):
            module.zero_grad(set_to_none=sets_to_none)
            replica(data(4, sizes[0]).chunk(2)[dist.get_rank()] + step).square().mean().backward()
            found = [param.grad for param in module.parameters()]
            chosen = {"no": [], "one": found[step % len(found) :][:1], "all": found}[keeps]
            if sets_to_none:  # otherwise torch itself writes zeros into them
                kept += chosen
                copies += [one.clone() for one in chosen if one is not None]
        return kept, copies, gradients(module)

    alone = mlp(sizes)
    alone(data(4, sizes[0]) + 2).square().mean().backward()
    for kept, copies, last in launch(program, ranks=2).values:
        torch.testing.assert_close(kept, copies, rtol=0, atol=0)
        torch.testing.assert_close(last, gradients(alone), rtol=1e-12, atol=1e-14)


def storage_of(param: nn.Parameter) -> int:
    assert param.grad is not None
    return param.grad.untyped_storage().data_ptr()


def test_a_bucket_keeps_its_memory_from_step_to_step_and_is_the_gradients():
    def program():
        module = mlp([16, 16, 16])
        replica, places = parallel.DataParallel(module), set()
        for _ in range(3):
            module.zero_grad()
            replica(data(2, 16)).square().mean().backward()
            places.add(tuple(storage_of(param) for param in module.parameters()))
        return places

    for places in launch(program, ranks=2).values:
        assert len(places) == 1 and len(set(*places)) == 1


# ---- the plan ----


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    bucket_bytes=st.integers(1, 400),
    seed=st.integers(0, 2**16),
)
def test_a_plan_holds_every_parameter_once_in_reverse_and_within_its_bytes(sizes, bucket_bytes, seed):
    dtypes = [torch.float32, torch.bfloat16]
    params = [torch.empty(size, dtype=dtypes[seed >> i & 1], device="meta") for i, size in enumerate(sizes)]
    plan = parallel.plan_buckets(params, bucket_bytes)
    assert sorted(i for bucket in plan for i in bucket) == list(range(len(params)))
    assert [bucket[-1] for bucket in plan] == sorted((bucket[-1] for bucket in plan), reverse=True)
    for bucket in plan:
        assert bucket == sorted(bucket, reverse=True)
        assert len({params[i].dtype for i in bucket}) == 1
        assert len(bucket) == 1 or sum(params[i].nbytes for i in bucket) <= bucket_bytes


def test_the_plan_in_the_docstring():
    layers = [torch.empty(1, device="meta")] * 5  # embedding, block 0, block 1, norm, head
    assert parallel.plan_buckets(layers, bucket_bytes=8) == [[4, 3], [2, 1], [0]]


# ---- bytes, calls and seconds ----


@few
@given(ranks=st.integers(2, 8), bucket_bytes=bucket_sizes, method=st.sampled_from(METHODS))
def test_a_step_sends_the_closed_form(ranks, bucket_bytes, method):
    """2 (n-1)/n S a rank on average, by whatever algorithm and in whatever pieces; hierarchical pads its shards."""
    sizes = [16, 16, 16]
    local = 2 if ranks % 2 == 0 else 1
    run = launch(one_step, method, sizes, bucket_bytes, 1, local, ranks=ranks)
    gradient_bytes = sum(p.nbytes for p in mlp(sizes).parameters())
    sent = sum(sum(t.sent_bytes) for t in run.traffic.transfers if t.name != "broadcast")
    assert sent / ranks == pytest.approx(2 * (ranks - 1) / ranks * gradient_bytes)


def test_no_sync_sends_nothing_until_the_last_micro_batch():
    def program(num_synchronized):
        replica = parallel.DataParallel(mlp([4, 4, 4]))
        with replica.no_sync():
            for _ in range(3):
                replica(data(2, 4)).sum().backward()
        for _ in range(num_synchronized):
            replica(data(2, 4)).sum().backward()

    assert [launch(program, k, ranks=2).traffic.count("all_reduce") for k in (0, 1, 2)] == [0, 1, 2]


def constructed_cluster() -> Cluster:
    """Compute whose time is FLOPs alone (a GFLOP a second), and wires without latency."""
    device = Device("one gigaflop", {"float32": 1e9, "float64": 1e9}, 1e12, 1e15)
    return find_cluster("dgx-a100").replace(device=device, intra=Link("wire", 0.0, 1e9))


@pytest.mark.parametrize("batch", [4, 16, 64, 256, 1024])
def test_hidden_time_is_the_smaller_of_communication_and_backward_left(batch):
    """Two layers, a bucket each. When the second layer's bucket leaves, one matrix product m is left of backward (the
    first layer's weight gradient), so min(c, m) of its c seconds are hidden. The first layer's c is all exposed."""
    width, ranks = 64, 4

    def program():
        with record_function("setup"):
            module = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False))
            replica = parallel.DataParallel(module, bucket_bytes=width * width * 4)
        replica(torch.ones(batch, width)).sum().backward()

    timeline = launch(program, ranks=ranks, cluster=constructed_cluster()).timeline.without("setup")
    m = 2 * batch * width * width / 1e9
    c = 2 * (ranks - 1) / ranks * width * width * 4 / 1e9
    for rank in range(ranks):
        assert timeline.exposed_s(rank) == pytest.approx(2 * c - min(c, m), rel=1e-4)
        assert timeline.busy_s(rank, "comm") == pytest.approx(2 * c, rel=1e-4)


def gpt_step(method: str, bucket_bytes: int, ranks_per_node: int = 2) -> None:
    """One step of a small GPT without its set-up: phase "setup" holds what comes before."""
    with record_function("setup"):
        module = GPT(GPTConfig(3, 64, 4, vocab_size=256, max_seq_len=32))
        replica, synchronize = averaged(method, module, bucket_bytes, ranks_per_node)
        dist.barrier()
    gpt_loss(replica).backward()
    synchronize()


def gpt_loss(module: nn.Module) -> Tensor:
    tokens = torch.arange(4 * 32).reshape(4, 32)
    return next_token_loss(module(tokens), tokens)


@pytest.mark.parametrize("cluster", ["pcie-a100", "dgx-a100", "laptop"])
def test_each_step_from_naive_to_overlapped_exposes_less(cluster):
    exposed_s = {}
    for method in METHODS[:3]:
        timeline = launch(gpt_step, method, 2**18, ranks=4, cluster=cluster).timeline.without("setup")
        exposed_s[method] = timeline.exposed_s(0)
    assert 0 < exposed_s["overlapped"] < exposed_s["bucketed"] < exposed_s["naive"]


def test_all_reduces_start_before_backward_ends():
    timeline = launch(gpt_step, "overlapped", 2**18, ranks=4).timeline.without("setup")
    backward_end_s = max(s.end_s for s in timeline.select(0, "compute", "backward"))
    starts_s = [s.start_s for s in timeline.select(0, "comm")]
    assert len(starts_s) > 2 and all(start_s < backward_end_s for start_s in starts_s[:-1])


def test_hierarchical_buckets_move_through_their_stages_during_backward():
    cluster = find_cluster("dgx-a100").replace(devices_per_node=2)
    timeline = launch(gpt_step, "hierarchical", 2**18, ranks=4, cluster=cluster).timeline.without("setup")
    backward_end_s = max(s.end_s for s in timeline.select(0, "compute", "backward"))
    across = [s for s in timeline.select(0, "comm") if s.name == "all_reduce"]
    assert across and across[0].end_s < backward_end_s
    assert timeline.exposed_s(0) < 0.6 * timeline.busy_s(0, "comm")


@pytest.mark.parametrize("method", METHODS)
def test_the_same_step_twice_is_the_same_to_the_bit(method):
    runs = [launch(one_step, method, [7, 9, 3], 200, 2, 2, ranks=4) for _ in range(2)]
    torch.testing.assert_close(runs[0].values, runs[1].values, rtol=0, atol=0)
    assert runs[0].timeline == runs[1].timeline and runs[0].traffic == runs[1].traffic


# ---- the prediction ----


@pytest.mark.parametrize("cluster", ["pcie-a100", "dgx-h100", "laptop"])
@pytest.mark.parametrize("method", METHODS[:3])
def test_the_prediction_is_the_simulators_time(method, cluster):
    """Both read one cost model, so what could differ is the order of things: it must not, to 1%."""
    machine = find_cluster(cluster)
    module = GPT(GPTConfig(3, 64, 4, vocab_size=256, max_seq_len=32))
    profile = profile_step(module, gpt_loss, machine.device)
    for ranks, bucket_bytes in [(2, 2**16), (4, 2**18), (9, 2**30)]:
        one = {"fidelity": "shapes", "simulate": [0]}  # all ranks do alike
        run = launch(gpt_step, method, bucket_bytes, ranks=ranks, cluster=machine, **one)
        simulated = run.timeline.without("setup")
        predicted = predict_step(profile, machine, ranks, bucket_bytes, method)
        assert predicted.step_s == pytest.approx(simulated.makespan_s, rel=0.01)
        assert predicted.communication_s == pytest.approx(simulated.busy_s(0, "comm"), rel=0.01)


@given(ranks=st.integers(2, 64), bucket_bytes=st.integers(2**10, 2**26), cluster=st.sampled_from(sorted(CLUSTERS)))
@settings(max_examples=30, deadline=None)
def test_overlap_never_loses_to_waiting(ranks, bucket_bytes, cluster):
    machine = CLUSTERS[cluster]
    profile = a_profile(machine.device)
    overlapped, bucketed = (predict_step(profile, machine, ranks, bucket_bytes, m) for m in ("overlapped", "bucketed"))
    assert profile.step_s < overlapped.step_s <= bucketed.step_s * (1 + 1e-12)
    assert 0 < scaling_efficiency(profile, machine, ranks, bucket_bytes) < 1
    assert overlapped.communication_s == bucketed.communication_s


def test_one_rank_is_perfectly_efficient():
    machine = find_cluster("dgx-h100")
    assert [scaling_efficiency(a_profile(machine.device), machine, 1, 1, m) for m in METHODS[:3]] == [1.0] * 3


def test_a_profile_on_meta_has_the_shapes_of_the_model_and_no_values():
    module = GPT(GPTConfig(2, 64, 4, vocab_size=256, max_seq_len=32), device="meta")

    def loss_of(m):
        tokens = torch.zeros(2, 32, dtype=torch.long, device="meta")
        return next_token_loss(m(tokens), tokens)

    profile = profile_step(module, loss_of, find_cluster("dgx-h100").device)
    assert profile.gradient_bytes == sum(p.nbytes for p in module.parameters())
    assert 0 < min(profile.ready_s) and max(profile.ready_s) <= profile.backward_s
    assert all(p.grad is None for p in module.parameters())


def test_a_step_has_one_price_with_values_and_without():
    config = GPTConfig(num_layers=2, d_model=64, num_heads=2, vocab_size=99, max_seq_len=32)
    device = find_cluster("pcie-a100").device

    def profile(where: str) -> StepProfile:
        tokens = torch.zeros(3, 32, dtype=torch.long, device=where)
        module = GPT(config, device=where)
        return profile_step(module, lambda module: next_token_loss(module(tokens), tokens), device)

    real, shapes = profile("cpu"), profile("meta")
    assert shapes.forward_s == pytest.approx(real.forward_s, rel=1e-9)
    assert shapes.ready_s == pytest.approx(real.ready_s, rel=1e-9)


def test_an_unknown_method_is_an_error():
    machine = find_cluster("laptop")
    with pytest.raises(ValueError, match="'naive' or 'bucketed' or 'overlapped': got 'magic'"):
        predict_step(a_profile(machine.device), machine, 2, 1, "magic")  # pyright: ignore[reportArgumentType]


def a_profile(device: Device) -> StepProfile:
    """Eight gradients of a megabyte, ready one after another."""
    params = tuple(torch.empty(2**18, device="meta") for _ in range(8))
    return StepProfile(device, 0.5e-3, 1e-3, params, tuple((8 - i) * 1e-3 / 8 for i in range(8)))
