"""Quantized collectives: the right numbers to the right ranks, few roundings, and bytes to the last one.

With `Exact`, which sends float32 numbers as they are, a quantized collective is the plain one: whole numbers come out
exactly. With real quantizers the result is that of the same roundings on one device, to the bit.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from lablib import RankError, find_cluster, launch
from lablib.compress import (
    Asymmetric,
    Fp8,
    InSequence,
    Int4,
    Int8,
    QuantizedMessage,
    Rotated,
    comm_hook,
    error_growth,
    hierarchical_reduce_scatter,
    quantized_all_gather,
    quantized_all_reduce,
    quantized_reduce_scatter,
    quantized_ring_all_reduce,
    ring_mean,
    two_phase_bytes,
    two_phase_mean,
)
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import DataParallel, node_mesh

few = settings(max_examples=6, deadline=None)
rank_counts = st.integers(1, 5)
kinds = st.sampled_from([Int8(block=4), Int4(block=5), Asymmetric(block=7), Fp8(block=3), Rotated(size=4)])


class Exact:
    """Sends float32 numbers as they are: 4 bytes each."""

    def quantize(self, x: Tensor) -> QuantizedMessage:
        return QuantizedMessage(
            x.detach().float(), x.new_empty(*x.shape[:-1], 0, dtype=torch.float32), None, x.shape[-1]
        )

    def dequantize(self, quantized: QuantizedMessage) -> Tensor:
        return quantized.codes

    def message_bytes(self, numel: int) -> int:
        return 4 * numel

    def from_message(self, message: Tensor, numel: int) -> QuantizedMessage:
        codes = message.flatten().view(torch.float32).view(*message.shape[:-1], numel)
        return QuantizedMessage(codes, codes[..., :0], None, numel)


EXACT = Exact()


def of_rank(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What this rank comes with: whole numbers, so that sums are exact in any order."""
    return torch.randint(-50, 50, (numel,), generator=torch.Generator().manual_seed(rank)).to(dtype)


# ---- exact: the same as the plain collectives ----


@few
@given(rank_counts, st.integers(0, 23), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_without_rounding_they_are_the_plain_collectives(n, numel, dtype):
    def program():
        rank = dist.get_rank()
        buffer, ring = of_rank(rank, numel, dtype), of_rank(rank, numel, dtype)
        quantized_all_reduce(buffer, None, EXACT).wait()
        quantized_ring_all_reduce(ring, None, EXACT)
        shard, full = torch.empty(numel, dtype=dtype), torch.empty(n * numel, dtype=dtype)
        quantized_all_gather(of_rank(rank, numel, dtype), full, None, EXACT).wait()
        quantized_reduce_scatter(of_rank(rank, n * numel, dtype), shard, None, EXACT).wait()
        return buffer, ring, full, shard

    mean = torch.stack([of_rank(rank, numel) for rank in range(n)]).sum(0) / n
    pieces = torch.stack([of_rank(rank, n * numel) for rank in range(n)]).sum(0) / n
    for rank, (buffer, ring, full, shard) in enumerate(launch(program, ranks=n).values):
        assert torch.equal(buffer, mean.to(dtype)) and torch.equal(ring, mean.to(dtype))
        assert torch.equal(full, torch.cat([of_rank(r, numel, dtype) for r in range(n)]))
        assert torch.equal(shard, pieces[rank * numel :][:numel].to(dtype))


@few
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9))
def test_two_hops_bring_each_piece_to_its_rank(nodes, local, numel):
    n = nodes * local

    def program():
        shard = torch.empty(numel)
        hierarchical_reduce_scatter(of_rank(dist.get_rank(), n * numel), shard, node_mesh(local), EXACT).wait()
        return shard

    sums = torch.stack([of_rank(rank, n * numel) for rank in range(n)]).double().mean(0)
    found = launch(program, ranks=n).values
    torch.testing.assert_close(torch.cat(found).double(), sums, rtol=1e-6, atol=1e-6)


# ---- rounded: equal to the same roundings on one device, within their bounds ----


@few
@given(rank_counts, st.integers(1, 40), kinds)
def test_all_reduces_round_as_on_one_device_and_all_ranks_get_the_same(n, numel, quantizer):
    def program():
        two, ring = (torch.randn(numel, generator=torch.Generator().manual_seed(dist.get_rank())) for _ in range(2))
        quantized_all_reduce(two, None, quantizer).wait()
        quantized_ring_all_reduce(ring, None, quantizer)
        return two, ring

    parts = [torch.randn(numel, generator=torch.Generator().manual_seed(rank)) for rank in range(n)]
    for two, ring in launch(program, ranks=n).values:
        assert torch.equal(two, two_phase_mean(parts, quantizer))
        assert torch.equal(ring, ring_mean(parts, quantizer))


@few
@given(st.integers(2, 9), kinds, st.integers(1, 41))
def test_two_phases_equal_those_on_one_device_to_the_bit_for_every_size(n, quantizer, first):
    """torch adds rows in an order that depends on the shape: with 5 ranks and 16 numbers the last bit differed."""
    parts = {
        numel: [torch.randn(numel, generator=torch.Generator().manual_seed(rank + numel)) for rank in range(n)]
        for numel in range(first, first + 20)
    }

    def program():
        own = [some[dist.get_rank()].clone() for some in parts.values()]
        for buffer in own:
            quantized_all_reduce(buffer, None, quantizer).wait()
        return own

    wanted = [two_phase_mean(some, quantizer) for some in parts.values()]
    for found in launch(program, ranks=n).values:
        assert all(map(torch.equal, found, wanted))


@few
@given(st.integers(2, 6), st.integers(1, 60), st.integers(1, 9), st.sampled_from([(Int8, 127), (Int4, 7)]))
def test_the_error_of_two_phases_is_half_a_step_of_each(n, numel, block, kind):
    quantizer = kind[0](block=block)
    parts = torch.randn(n, numel, generator=torch.Generator().manual_seed(numel))
    error = (two_phase_mean(list(parts), quantizer).double() - parts.double().mean(0)).abs().max()
    first = parts.abs().amax(dim=1).mean() / kind[1]  # no block's step is larger than that of the largest number
    second = (parts.mean(0).abs().max() + first / 2) / kind[1]
    assert error <= (first + second) / 2 * (1 + 2**-10)


def test_a_ring_grows_worse_with_ranks_as_the_formula_says():
    """sqrt(2) q against sqrt((n+1)/2) q. 256 blocks of each rank's piece: within a tenth."""
    ranks = [2, 4, 8, 16, 32]
    for quantizer in (Int8(block=16), Int4(block=16, rounding="stochastic")):
        growth = error_growth(ranks, quantizer)
        for n, two, ring in zip(ranks, growth["two-phase"], growth["ring"], strict=True):
            assert two == pytest.approx(growth["two-phase"][0], rel=0.1)
            assert ring / two == pytest.approx(((n + 1) / 4) ** 0.5, rel=0.15)


# ---- bytes ----


@few
@given(st.integers(1, 6), st.integers(1, 300), kinds)
def test_traffic_is_the_closed_form_to_the_byte(n, numel, quantizer):
    def program():
        two, ring, shard, full = (torch.randn(size) for size in (numel, numel, numel, n * numel))
        quantized_all_reduce(two, None, quantizer).wait()
        quantized_ring_all_reduce(ring, None, quantizer)
        quantized_all_gather(shard, full, None, quantizer).wait()
        quantized_reduce_scatter(full, shard, None, quantizer).wait()

    sent = launch(program, ranks=n).traffic.sent_bytes()
    a_rank = 2 * two_phase_bytes(numel, n, quantizer) + 2 * (n - 1) * quantizer.message_bytes(numel)
    assert sent == n * a_rank


# ---- in data parallelism ----


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def gradients(wrap, steps: int = 1) -> Tensor:
    module = mlp()
    replica = wrap(module)
    for _ in range(steps):
        module.zero_grad()
        data = torch.randn(4, 5, generator=torch.Generator().manual_seed(dist.get_rank()), dtype=torch.float64)
        replica(data).square().mean().backward()
    return torch.cat([param.grad.flatten() for param in module.parameters() if param.grad is not None])


def hooked(module: nn.Module, quantizer) -> nn.Module:
    ddp = DistributedDataParallel(module, bucket_cap_mb=0.0005)
    ddp.register_comm_hook(None, comm_hook(InSequence(partial(quantized_all_reduce, quantizer=quantizer))))
    return ddp


WRAPS = {
    "plain": lambda module: DataParallel(module, bucket_bytes=500),
    "exact": lambda module: DataParallel(
        module, bucket_bytes=500, reduce=partial(quantized_all_reduce, quantizer=EXACT)
    ),
    "exact, in turn": lambda module: DataParallel(
        module, bucket_bytes=500, reduce=InSequence(partial(quantized_all_reduce, quantizer=EXACT))
    ),
    "exact, hook": lambda module: hooked(module, EXACT),
    "int8": lambda module: DataParallel(module, bucket_bytes=500, reduce=InSequence(quantized_all_reduce)),
    "int8, hook": lambda module: hooked(module, Int8()),
    "int4": lambda module: DataParallel(module, reduce=partial(quantized_all_reduce, quantizer=Int4(block=16))),
}
TOLERANCE = {"exact": 1e-6, "int8": 0.02, "int4": 0.2}  # of the largest gradient: 2^-24, and about a step of 1/127, 1/7


@pytest.mark.parametrize("name", [name for name in WRAPS if name != "plain"])
def test_gradients_are_the_mean_up_to_rounding(name):
    plain = launch(gradients, WRAPS["plain"], ranks=3).values[0]
    for found in launch(gradients, WRAPS[name], 2, ranks=3).values:
        assert (found - plain).abs().max() <= TOLERANCE[name.split(",")[0]] * plain.abs().max()


def test_one_rank_rounds_nothing():
    plain = launch(gradients, WRAPS["plain"], ranks=1).values[0]
    assert torch.equal(launch(gradients, WRAPS["int4"], ranks=1).values[0], plain)


def gpt_step(reduce) -> None:
    with record_function("setup"):
        module = GPT(GPTConfig(3, 64, 4, vocab_size=256, max_seq_len=32))
        replica = DataParallel(module, bucket_bytes=2**18, reduce=reduce())
        dist.barrier()
    tokens = torch.arange(4 * 32).reshape(4, 32)
    next_token_loss(replica(tokens), tokens).backward()


def test_buckets_in_turn_hide_their_second_phase_behind_backward():
    cluster = find_cluster("pcie-a100")
    alone, in_turn = (
        launch(gpt_step, reduce, ranks=4, cluster=cluster).timeline.without("setup")
        for reduce in (lambda: quantized_all_reduce, lambda: InSequence(quantized_all_reduce))
    )
    starts_s = [
        {name: [s.start_s for s in timeline.select(0, "comm") if name in s.name] for name in ("all_to_all", "gather")}
        for timeline in (alone, in_turn)
    ]
    early = [sum(second < max(of["all_to_all"]) for second in of["gather"]) for of in starts_s]
    assert len(starts_s[1]["gather"]) > 3
    assert early == [0, len(starts_s[1]["gather"]) - 1]  # the last bucket has nothing left to hide behind
    assert in_turn.exposed_s(0) < alone.exposed_s(0)


def all_of_them(nodes_of: int) -> list[Tensor]:
    rank, n = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    found = []
    for quantizer in (Int8(), Int4(rounding="stochastic", generator=generator), Fp8(), Rotated()):
        buffer, shard, full = (
            torch.randn(1003, generator=generator),
            torch.randn(77, generator=generator),
            torch.empty(77 * n),
        )
        quantized_all_reduce(buffer, None, quantizer).wait()
        quantized_all_gather(shard, full, None, quantizer).wait()
        again, hops = torch.empty(77), torch.empty(77)
        quantized_reduce_scatter(full, again, None, quantizer).wait()
        hierarchical_reduce_scatter(full, hops, node_mesh(nodes_of), quantizer).wait()
        found += [buffer, full, again, hops]
    found += [gradients(WRAPS["int8"]), gradients(WRAPS["int8, hook"])]
    return found


@pytest.mark.slow
def test_gloo_gives_the_same_bits_as_the_simulator():
    real, simulated = launch(all_of_them, 2, ranks=2, backend="gloo"), launch(all_of_them, 2, ranks=2)
    torch.testing.assert_close(real.values, simulated.values, rtol=0, atol=0)
    assert real.traffic.sent_bytes() == pytest.approx(simulated.traffic.sent_bytes())


# ---- bad input ----


def one_bad(value: float, call) -> None:
    x = torch.ones(6)
    if dist.get_rank() == 1:
        x[4] = value
    call(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: quantized_all_reduce(x).wait(),
        lambda x: quantized_ring_all_reduce(x),
        lambda x: quantized_all_gather(x, torch.empty(12)).wait(),
        lambda x: quantized_reduce_scatter(x, torch.empty(3)).wait(),
        lambda x: hierarchical_reduce_scatter(x, torch.empty(3), node_mesh(2)).wait(),
    ],
)
def test_what_is_not_finite_is_an_error_that_names_the_rank(call):
    with pytest.raises(RankError, match="on rank 1: quantized numbers must be finite in float32: number . is nan"):
        launch(one_bad, float("nan"), call, ranks=2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: quantized_all_gather(torch.ones(3), torch.empty(7)),
        lambda: quantized_reduce_scatter(torch.ones(7), torch.empty(3)),
        lambda: hierarchical_reduce_scatter(torch.ones(7), torch.empty(3), node_mesh(1)),
    ],
)
def test_sizes_that_do_not_fit_are_an_error(call):
    with pytest.raises(RankError, match="full must hold 2 shards: got 7 numbers for shards of 3; pad"):
        launch(call, ranks=2)


def test_whole_numbers_are_refused():
    with pytest.raises(RankError, match="the tensor on rank 0: only rows of floating-point numbers are quantized"):
        launch(lambda: quantized_all_reduce(torch.arange(4)), ranks=2)
