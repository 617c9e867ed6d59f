"""Averages that leave something out: what is said and what is kept always adds up; bytes are the planner's.

Ranks hand over drawn gradients in float64, by hand or from a model, so that nothing hides a wrong scale. References
are computed in one process from all ranks' gradients.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from lablib import RankError, launch
from lablib.compress import (
    Bucket,
    ErrorFeedback,
    Int4,
    Int8,
    LossyAverage,
    OneBit,
    PowerSGD,
    QuantizedAverage,
    RandomK,
    StaleAverage,
    TopK,
    comm_hook,
    pack_signs,
    top_k,
    unpack_signs,
)
from lablib.parallel import DataParallel, all_reduce_average
from lablib.plan.gradient_compression import find_compression

few = settings(max_examples=12, deadline=None)
Make = Callable[[], LossyAverage]
COMPRESSORS: dict[str, Make] = {
    "top-k": lambda: TopK(0.2),
    "random-k": lambda: RandomK(0.2, is_unbiased=False),
    "powersgd": lambda: PowerSGD(1),
    "one bit": OneBit,
    "int8": lambda: QuantizedAverage(Int8(block=16)),
    "int4": lambda: QuantizedAverage(Int4(block=16)),
}


def gradient(numel: int, rank: int, step: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype)


class Heard(LossyAverage):
    """A compressor, and all that its messages said so far."""

    def __init__(self, compressor: LossyAverage):
        self.compressor, self.said = compressor, torch.zeros(())

    def exchange(self, buffer, group, bucket):
        own = yield from self.compressor.exchange(buffer, group, bucket)
        self.said = self.said + own
        return own


# ---- error feedback ----


@settings(max_examples=16, deadline=None)
@given(
    name=st.sampled_from(sorted(COMPRESSORS)), ranks=st.integers(1, 4), rows=st.integers(1, 9), steps=st.integers(1, 4)
)
def test_what_was_said_and_what_is_kept_are_all_gradients(name, ranks, rows, steps):
    """On every rank: c_1 + ... + c_t + e = g_1 + ... + g_t. And the mean of what is said is what all apply, but for
    one bit, whose owners keep a part too, and codes, whose mean is rounded again."""
    numel = 5 * rows

    def program():
        heard = Heard(COMPRESSORS[name]())
        feedback, applied = ErrorFeedback(heard), torch.zeros(numel, dtype=torch.float64)
        bucket = Bucket(0, (torch.Size((rows, 5)),))
        for step in range(steps):
            buffer = gradient(numel, dist.get_rank(), step)
            feedback(buffer, bucket=bucket).wait()
            applied += buffer
        return heard.said, feedback.residuals[0], applied

    values = launch(program, ranks=ranks).values
    for rank, (said, residual, applied) in enumerate(values):
        total = sum(gradient(numel, rank, step) for step in range(steps))
        torch.testing.assert_close(said + residual, total, rtol=1e-12, atol=1e-12)
        assert torch.equal(applied, values[0][2]), "replicas stay equal"
    if name in ("top-k", "random-k", "powersgd"):
        mean = torch.stack([said for said, _, _ in values]).mean(0)
        torch.testing.assert_close(values[0][2], mean, rtol=1e-9, atol=1e-12)


def test_feedback_on_both_sides_loses_nothing():
    """One bit, 3 ranks, 20 numbers in pieces of 8, 8 and 4: applied + mean of residuals + owners' residuals."""

    def program():
        one_bit = OneBit()
        feedback, applied = ErrorFeedback(one_bit), torch.zeros(20, dtype=torch.float64)
        for step in range(5):
            buffer = gradient(20, dist.get_rank(), step)
            feedback(buffer).wait()
            applied += buffer
        return applied, feedback.residuals[0], one_bit.server_residuals[0]

    values = launch(program, ranks=3).values
    kept = torch.stack([residual for _, residual, _ in values]).mean(0) + torch.cat([piece for *_, piece in values])
    total = sum(gradient(20, rank, step) for rank in range(3) for step in range(5)) / 3
    torch.testing.assert_close(values[0][0] + kept, total, rtol=1e-12, atol=1e-12)


def test_residuals_belong_to_buckets():
    """Two buckets of one size by turns, as each by itself; a residual that is shared carries one into the other."""

    def program(together: bool):
        feedbacks = [ErrorFeedback(TopK(0.1))] * 2 if together else [ErrorFeedback(TopK(0.1)), ErrorFeedback(TopK(0.1))]
        reduces = [feedback.for_bucket(index, [torch.empty(30)]) for index, feedback in enumerate(feedbacks)]
        applied = torch.zeros(2, 30, dtype=torch.float64)
        for step in range(4):
            for index, reduce in enumerate(reduces):
                buffer = gradient(30, dist.get_rank(), 10 * step + index)
                reduce(buffer, None).wait()
                applied[index] += buffer
        return applied

    together, alone = (launch(program, way, ranks=2).values[0] for way in (True, False))
    assert torch.equal(together, alone)


# ---- as a `reduce` of DataParallel, and as a hook of DDP ----


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 8)).double()


def gradients_of_steps(replica: nn.Module, steps: int = 4) -> list[Tensor]:
    found = []
    for step in range(steps):
        replica.zero_grad()
        replica(gradient(24, dist.get_rank(), step).view(2, 12)).square().mean().backward()
        found.append(torch.cat([param.grad.flatten() for param in replica.parameters() if param.grad is not None]))
    return found


@pytest.mark.parametrize(("ranks", "bucket_bytes"), [(1, 1000), (3, 1), (4, 2**20)])
def test_a_message_that_leaves_nothing_out_gives_the_gradients_of_plain_averaging(ranks, bucket_bytes):
    makes = (lambda: all_reduce_average, lambda: TopK(1.0), lambda: RandomK(1.0), lambda: PowerSGD(8))

    def program():
        reduces = [make() for make in makes] + [ErrorFeedback(TopK(1.0)), StaleAverage(0)]
        return [gradients_of_steps(DataParallel(mlp(), None, bucket_bytes, reduce), 2) for reduce in reduces]

    for plain, *others in launch(program, ranks=ranks).values:
        for found in others:
            torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_the_hook_averages_as_the_reduce_does_from_the_second_step_on(name):
    """In one bucket, as torch lays it out: by hand, exact first, then compressed."""

    def hooked():
        ddp = DistributedDataParallel(mlp())
        ddp.register_comm_hook(None, comm_hook(ErrorFeedback(COMPRESSORS[name]())))
        return gradients_of_steps(ddp)

    def by_hand():
        own, feedback, found = gradients_of_steps(mlp()), ErrorFeedback(COMPRESSORS[name]()), []
        params = list(mlp().parameters())[::-1]  # torch fills buckets from the last parameter on
        sizes = [param.numel() for param in mlp().parameters()]
        for step, flat in enumerate(own):
            buffer = torch.cat(flat.split(sizes)[::-1])
            reduce = feedback.for_bucket(0, params) if step else all_reduce_average
            reduce(buffer, None).wait()
            found.append(torch.cat(buffer.split(sizes[::-1])[::-1]))
        return found

    torch.testing.assert_close(launch(hooked, ranks=3).values, launch(by_hand, ranks=3).values, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_gloo_gives_the_gradients_of_the_simulator_and_a_run_repeats_to_the_bit():
    def program():
        found = []
        for make in COMPRESSORS.values():
            found += gradients_of_steps(DataParallel(mlp(), bucket_bytes=1000, reduce=ErrorFeedback(make())))
        ddp = DistributedDataParallel(mlp())
        ddp.register_comm_hook(None, comm_hook(ErrorFeedback(OneBit())))
        stale = StaleAverage(2)
        found += gradients_of_steps(ddp) + gradients_of_steps(DataParallel(mlp(), reduce=stale))
        stale.finish()
        return found

    simulated, again, real = (
        launch(program, ranks=3),
        launch(program, ranks=3),
        launch(program, ranks=3, backend="gloo"),
    )
    torch.testing.assert_close(real.values, simulated.values, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(again.values, simulated.values, rtol=0, atol=0)
    names = ("all_reduce", "all_gather", "all_to_all")
    sent = [
        sum(sum(each.sent_bytes) for each in run.traffic.transfers if each.name.startswith(names))
        for run in (real, simulated)
    ]
    assert sent[0] == pytest.approx(sent[1])


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_without_values_messages_have_the_same_bytes(name):
    """A model that this machine could not hold can still be asked what it would send."""

    def program():
        replica = DataParallel(nn.Linear(64, 128), reduce=ErrorFeedback(COMPRESSORS[name]()))
        for _ in range(2):
            replica(torch.ones(2, 64)).square().mean().backward()

    runs = [launch(program, ranks=3, fidelity=fidelity) for fidelity in ("values", "shapes")]
    assert runs[0].traffic.sent_bytes() == runs[1].traffic.sent_bytes() > 0


# ---- top-k and random-k ----


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), share=st.floats(0, 1))
def test_top_k_takes_the_largest(values, share):
    gradients = torch.tensor(values, dtype=torch.float64)
    k = max(1, math.ceil(share * len(values)))
    found, indices = top_k(gradients, k)
    assert torch.equal(gradients[indices.long()], found) and len(set(indices.tolist())) == k
    assert sorted(found.abs().tolist()) == sorted(np.abs(values).tolist())[len(values) - k :]


def sent_per_rank(make: Make, shape: tuple[int, ...], ranks: int, dtype: torch.dtype = torch.float32) -> float:
    def program():
        buffer = gradient(math.prod(shape), dist.get_rank(), 0, dtype)
        make()(buffer, bucket=Bucket(0, (torch.Size(shape),))).wait()

    return launch(program, ranks=ranks).traffic.sent_bytes() / ranks


@few
@given(ranks=st.integers(1, 5), hundreds=st.integers(1, 9))
def test_sparse_messages_have_the_planners_bytes(ranks, hundreds):
    numel, planned = 100 * hundreds, find_compression("top-k")
    assert sent_per_rank(lambda: TopK(0.01), (numel,), ranks) == planned.sent_bytes(planned.wire_bytes(numel), ranks)
    assert sent_per_rank(lambda: TopK(0.01), (numel,), ranks, torch.bfloat16) == (ranks - 1) * hundreds * (2 + 4)
    k_floats = 2 * (ranks - 1) / ranks * 4 * hundreds
    assert sent_per_rank(lambda: RandomK(0.01), (numel,), ranks) == pytest.approx(k_floats)


def test_random_k_is_right_on_average_and_as_noisy_as_its_formula():
    """1,000 draws of 10 of 50: the mean within 5 standard errors, E|C(g) - g|^2 = (N/k - 1) |g|^2 within 5%."""

    def program():
        compressor, total, error = RandomK(0.2, seed=3), torch.zeros(50, dtype=torch.float64), 0.0
        for _ in range(1000):
            buffer = gradient(50, 0, 0)
            compressor(buffer).wait()
            assert int((buffer != 0).sum()) == 10
            total += buffer
            error += float((buffer - gradient(50, 0, 0)).square().sum())
        return total / 1000, error / 1000

    [(mean, error)] = launch(program, ranks=1, trace=False).values
    g = gradient(50, 0, 0)
    assert bool(((mean - g).abs() <= 5 * 2 * g.abs() / 1000**0.5).all())
    assert error == pytest.approx(4 * float(g.square().sum()), rel=0.05)


def test_ranks_draw_the_same_places_and_each_step_and_bucket_others():
    def program():
        compressor, places = RandomK(0.1), []
        for step, index in ((0, 0), (0, 1), (1, 0)):
            buffer = gradient(100, dist.get_rank(), step)
            compressor(buffer, bucket=Bucket(index)).wait()
            places.append(tuple(buffer.nonzero().flatten().tolist()))
        return places

    first, second = launch(program, ranks=2).values
    assert first == second and len(set(first)) == 3 and all(len(places) == 10 for places in first)


# ---- PowerSGD ----


@few
@given(ranks=st.integers(1, 4), rank=st.integers(1, 3), rows=st.integers(8, 12), columns=st.integers(8, 12))
def test_powersgd_is_exact_where_the_mean_has_its_rank_and_sends_the_planners_bytes(ranks, rank, rows, columns):
    left, right = gradient(rows * rank, 98, 0).view(rows, rank), gradient(rank * columns, 99, 0).view(rank, columns)

    def program():
        matrix = (dist.get_rank() + 1) * left @ right
        PowerSGD(rank)(matrix).wait()
        return matrix

    for found in launch(program, ranks=ranks).values:
        torch.testing.assert_close(found, (ranks + 1) / 2 * left @ right, rtol=1e-9, atol=1e-9)
    planned = dataclasses.replace(find_compression("powersgd"), rank=rank)
    message = planned.wire_bytes(rows * columns, rows=rows, columns=columns)
    if rank * (rows + columns) >= rows * columns:
        message = 4 * rows * columns  # two factors would be larger: it goes as it is
    sent = sent_per_rank(lambda: PowerSGD(rank), (rows, columns), ranks)
    assert sent == pytest.approx(planned.sent_bytes(message, ranks))


def program_of_both_powersgds(rank: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Torch's hook and ours on the same gradients of every step: averages, and means of residuals over the ranks."""
    state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=2, min_compression_rate=1, random_seed=7)
    ours = PowerSGD(rank)
    feedback, found = ErrorFeedback(ours), []

    def hook(state: powerSGD_hook.PowerSGDState, bucket) -> torch.futures.Future[Tensor]:
        buffer, is_compressed = bucket.buffer().clone(), state.iter >= 2
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        theirs = future.wait()
        if is_compressed:
            shapes = tuple(param.shape for param in bucket.parameters())
            if not ours.factors:  # torch's own first Q
                generator = torch.Generator().manual_seed(np.random.RandomState(7).randint(1_000_000_000))
                matrices = [shape for shape in shapes if len(shape) == 2]
                ours.factors[0] = [
                    torch.randn(1, shape[1], rank, generator=generator, dtype=torch.float64)[0] for shape in matrices
                ]
            feedback(buffer, bucket=Bucket(0, shapes)).wait()
            residuals = [feedback.residuals[0].clone(), state.error_dict[0].clone()]
            for residual in residuals:
                all_reduce_average(residual).wait()
            found.append((buffer, theirs.clone(), *residuals))
        return future

    model = DistributedDataParallel(mlp())
    model.register_comm_hook(state, hook)
    gradients_of_steps(model, 6)
    return found


@pytest.mark.parametrize(
    ("backend", "rank"), [("sim", 1), ("sim", 2), ("sim", 4), pytest.param("gloo", 2, marks=pytest.mark.slow)]
)
def test_powersgd_equals_torchs_hook_from_the_same_first_factor(backend, rank):
    """Warm start, orthogonal factors, feedback, vectors as they are: 4 compressed steps, in float64."""
    for found in launch(program_of_both_powersgds, rank, ranks=3, backend=backend).values:
        assert len(found) == 4
        for ours, theirs, our_residual, their_residual in found:
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)
            torch.testing.assert_close(our_residual, their_residual, rtol=1e-8, atol=1e-11)


def test_a_matrix_of_zeros_does_not_stop_powersgd():
    def program():
        compressor, found = PowerSGD(1), []
        for scale in (0.0, 1.0, 1.0):
            matrix = scale * torch.outer(gradient(6, 0, 0), gradient(7, 1, 0))
            compressor(matrix).wait()
            found.append(matrix)
        return found

    zero, _, second = launch(program, ranks=2).values[0]
    assert not zero.any()
    torch.testing.assert_close(second, torch.outer(gradient(6, 0, 0), gradient(7, 1, 0)), rtol=1e-9, atol=1e-12)


# ---- one bit ----


@given(num_bytes=st.integers(0, 9), rows=st.integers(1, 3))
def test_signs_are_packed_as_numpy_packs_them(num_bytes, rows):
    x = gradient(8 * num_bytes * rows, 0, 0).view(rows, 8 * num_bytes)
    packed = pack_signs(x)
    assert np.array_equal(packed.numpy(), np.packbits(x.numpy() >= 0, axis=-1, bitorder="little"))
    assert torch.equal(unpack_signs(packed, torch.float64), torch.where(x >= 0, 1.0, -1.0).double())


@few
@given(ranks=st.integers(1, 5), numel=st.integers(1, 70))
def test_one_bit_is_two_phases_of_signs_and_sends_their_bytes(ranks, numel):
    """The planner's message has 4 bytes of scale; here every piece has its own, 4 (n-1) bytes more in each phase."""

    def program():
        buffer = gradient(numel, dist.get_rank(), 0)
        OneBit(has_server_feedback=False)(buffer).wait()
        return buffer

    def signs(x: Tensor) -> Tensor:
        scale = x.abs().mean().float().double() if x.numel() else 0.0
        return torch.where(x >= 0, 1.0, -1.0).double() * scale

    width = math.ceil(numel / ranks / 8) * 8
    mean = torch.stack([signs(gradient(numel, rank, 0)) for rank in range(ranks)]).mean(0)
    expected = torch.cat([signs(piece) for piece in mean.split(width)])
    run = launch(program, ranks=ranks)
    for found in run.values:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert run.traffic.sent_bytes() == ranks * 2 * (ranks - 1) * (width / 8 + 4)
    whole = 8 * ranks * 5
    planned = find_compression("one-bit")
    more = sent_per_rank(OneBit, (whole,), ranks) - planned.sent_bytes(planned.wire_bytes(whole), ranks)
    assert more == pytest.approx(8 * (ranks - 1) * (1 - 1 / ranks))


# ---- bad input ----


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: top_k(torch.ones(3), 4), "k must be at most the number of gradients: got 4 of 3"),
        (lambda: top_k(torch.tensor([1.0, math.nan]), 1), "top_k: gradients must be finite: got 1 NaN and 0 inf"),
        (lambda: ErrorFeedback(RandomK()), "without scaling: got RandomK with is_unbiased=True"),
        (lambda: ErrorFeedback(all_reduce_average), "compressor must be a LossyAverage"),  # pyright: ignore
        (lambda: pack_signs(torch.ones(9)), r"must be a multiple of 8: got \(9,\); pad it"),
        (lambda: unpack_signs(torch.ones(8)), "needs uint8 in, floating point out: got torch.float32"),
    ],
)
def test_bad_input_is_one_error(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (torch.tensor([1.0, math.inf, math.nan]), "finite: got 1 NaN and 1 infinite numbers of 3; skip"),
        (torch.ones(3, dtype=torch.int64), r"floating-point numbers: got torch.int64; call .float\(\) first"),
    ],
    ids=["nan", "integer"],
)
def test_gradients_that_cannot_be_compressed_are_one_error(name, gradients, message):
    with pytest.raises(RankError, match=f"ErrorFeedback: gradients must be {message}"):
        launch(lambda: ErrorFeedback(COMPRESSORS[name]())(gradients).wait(), ranks=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ErrorFeedback(TopK(0.5)), "ErrorFeedback: bucket 0 must keep its size: it has 12 numbers, its resid"),
        (OneBit, "OneBit: bucket 0 must keep its size"),
        (lambda: PowerSGD(1), "PowerSGD: bucket 0 must keep its matrices: their factors were 8x1 and would be 3x1"),
        (lambda: StaleAverage(1), "StaleAverage: bucket 0 must keep its size: it has 12 numbers, the gradients under"),
    ],
)
def test_a_bucket_of_another_size_is_one_error(make, message):
    def program():
        compressor = make()
        for shape in ((8, 8), (4, 3)):
            compressor(torch.ones(shape)).wait()

    with pytest.raises(RankError, match=message):
        launch(program, ranks=1)


def test_a_buffer_with_gaps_is_one_error():
    with pytest.raises(RankError, match=r"TopK: a buffer must be contiguous: call .contiguous\(\) first"):
        launch(lambda: TopK(0.5)(torch.ones(4, 5).T).wait(), ranks=1)


def test_another_number_of_ranks_is_one_error():
    """The owner's pieces were those of 4 ranks; a group of 2 has larger ones."""

    def program():
        pair, _ = dist.new_subgroups(2)
        assert isinstance(pair, dist.ProcessGroup)
        compressor = OneBit()
        compressor(torch.ones(64)).wait()
        compressor(torch.ones(64), pair).wait()

    with pytest.raises(RankError, match="it has 32 numbers, its residual 16; after a change of buckets or ranks"):
        launch(program, ranks=4)
