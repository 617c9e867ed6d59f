"""Accumulated gradients are the large batch's: raw, in float64, whatever the parts, the padding, the ranks, the scale.

Equal to the rounding of sums in another order (1e-12). The mean of means is not, unless all parts have as many tokens.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import launch
from lablib.batches.accumulation import IGNORED, accumulate, accumulate_mean_of_means, count_tokens, summed_loss
from lablib.data import Batch
from lablib.parallel import DataParallel, Zero
from lablib.precision.loss_scaling import LossScaler, static_scale

V, T = 11, 6
few = settings(max_examples=25)


class Tiny(nn.Module):
    """Tokens to logits, with a nonlinearity between."""

    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.embedding = nn.Embedding(V, 5, dtype=dtype)
        self.head = nn.Linear(5, V, dtype=dtype)
        generator = torch.Generator().manual_seed(0)
        for param in self.parameters():
            param.data = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(dtype)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.head(self.embedding(tokens_BT).tanh())


def padded(lengths: list[int], seed: int = 0) -> Batch:
    """Sequences of these lengths, padded to T."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randint(V, (len(lengths), T), generator=generator) for _ in range(2))
    for row, length in enumerate(lengths):
        targets[row, length:] = IGNORED
    return Batch(inputs, targets)


def cut(batch: Batch, sizes: list[int]) -> list[Batch]:
    return [Batch(*parts) for parts in zip(batch.inputs.split(sizes), batch.targets.split(sizes), strict=True)]


def gradients(module: nn.Module) -> list[Tensor]:
    return [param.grad.clone() for param in module.parameters() if param.grad is not None]


def of_the_large_batch(batch: Batch) -> tuple[float, list[Tensor]]:
    """By torch alone: one forward, one mean over tokens, one backward."""
    model = Tiny()
    loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
    loss.backward()
    return loss.item(), gradients(model)


@few
@given(
    parts=st.lists(st.lists(st.integers(0, T), min_size=1, max_size=4), min_size=1, max_size=5), seed=st.integers(0, 99)
)
def test_accumulated_gradients_are_the_large_batchs(parts, seed):
    parts[0][0] = max(1, parts[0][0])  # at least one token
    batch = padded(sum(parts, []), seed)
    loss, expected = of_the_large_batch(batch)
    model = Tiny()
    got = accumulate(model, cut(batch, [len(part) for part in parts]))
    assert got == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(gradients(model), expected, rtol=1e-12, atol=1e-14)


@few
@given(size=st.integers(1, 3), num=st.integers(1, 5))
def test_mean_of_means_is_exact_for_parts_of_as_many_tokens(size, num):
    batch = padded([T] * size * num)
    model = Tiny()
    loss, expected = of_the_large_batch(batch)
    assert accumulate_mean_of_means(model, cut(batch, [size] * num)) == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(gradients(model), expected, rtol=1e-12, atol=1e-14)


def test_mean_of_means_gives_a_lone_token_the_weight_of_all_others():
    model, batch = Tiny(), padded([6, 6, 1])
    parts = cut(batch, [2, 1])
    accumulate_mean_of_means(model, parts)
    # By hand: 12 tokens and 1 token have half the weight each.
    reference = Tiny()
    for part in parts:
        loss = F.cross_entropy(reference(part.inputs).flatten(0, 1), part.targets.flatten())
        (loss / 2).backward()
    torch.testing.assert_close(gradients(model), gradients(reference), rtol=1e-12, atol=1e-14)
    _, exact = of_the_large_batch(batch)
    errors = [((g - e).norm() / e.norm()).item() for g, e in zip(gradients(model), exact, strict=True)]
    assert min(errors) > 0.1


def test_gradients_are_added_to_those_that_are_there():
    model, batch = Tiny(), padded([3, 6])
    accumulate(model, [batch])
    once = gradients(model)
    accumulate(model, cut(batch, [1, 1]))
    torch.testing.assert_close(gradients(model), [2 * g for g in once], rtol=1e-12, atol=1e-14)


@few
@given(power=st.integers(0, 16), lengths=st.lists(st.integers(1, T), min_size=1, max_size=4))
def test_under_loss_scaling_the_unscaled_gradients_are_the_same_to_the_bit(power, lengths):
    parts = cut(padded(lengths), [1] * len(lengths))
    model, scaled = Tiny(), Tiny()
    scaler = LossScaler(static_scale(2.0**power))
    assert accumulate(model, parts) == accumulate(scaled, parts, scaler)
    if power:
        assert not torch.equal(gradients(model)[0], gradients(scaled)[0])
    scaler.unscale_(torch.optim.SGD(scaled.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(scaled), strict=True))


def test_under_autocast_the_parts_give_what_the_large_batch_gives():
    batch = padded([6, 2, 5, 1])
    results = []
    for sizes in ([4], [1, 2, 1]):
        model = Tiny(torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            accumulate(model, cut(batch, sizes))
        results.append(gradients(model))
        assert all(g.dtype == torch.float32 for g in results[-1])
    torch.testing.assert_close(results[0], results[1], rtol=2**-6, atol=1e-4)  # BF16 keeps 8 bits


def over_ranks(lengths_of_ranks: list[list[list[int]]], scale: float = 1.0):
    """A program: rank r accumulates over its micro-batches. The global batch is all of them, in order."""

    def program():
        batch = padded(sum((sum(parts, []) for parts in lengths_of_ranks), []))
        of_ranks = [[len(part) for part in parts] for parts in lengths_of_ranks]
        mine = cut(batch, [sum(sizes) for sizes in of_ranks])[dist.get_rank()]
        model = Tiny()
        scaler = LossScaler(static_scale(scale))
        loss = accumulate(DataParallel(model), cut(mine, of_ranks[dist.get_rank()]), scaler)
        scaler.unscale_(torch.optim.SGD(model.parameters()))
        return loss, gradients(model)

    return program


parts_of_a_rank = st.lists(st.lists(st.integers(0, T), min_size=1, max_size=2), min_size=1, max_size=3)


@settings(max_examples=10)
@given(ranks=st.lists(parts_of_a_rank, min_size=1, max_size=4), scale=st.sampled_from([1.0, 1024.0]))
def test_over_ranks_with_uneven_tokens_the_gradients_are_the_large_batchs(ranks, scale):
    ranks[-1][-1][-1] = T
    loss, expected = of_the_large_batch(padded(sum((sum(parts, []) for parts in ranks), [])))
    for got, grads in launch(over_ranks(ranks, scale), ranks=len(ranks)).values:
        assert got == pytest.approx(loss, rel=1e-12)
        torch.testing.assert_close(grads, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_sharded_replica_accumulates_as_a_whole_one(stage):
    batch = padded([6, 2, 3, 1, 5, 4])
    loss, expected = of_the_large_batch(batch)

    def program():
        rank, model = dist.get_rank(), Zero(Tiny(), torch.optim.SGD, stage=stage)
        mine = cut(batch, [4, 2])[rank]
        loss = accumulate(model, cut(mine, [[1, 3], [1, 1]][rank]))
        full = model.full_gradients()
        return loss, [full[name] for name, _ in Tiny().named_parameters()]

    for got, grads in launch(program, ranks=2).values:
        assert got == pytest.approx(loss, rel=1e-12)
        torch.testing.assert_close(grads, expected, rtol=1e-12, atol=1e-14)


def test_gradients_are_sent_once_a_step():
    run = launch(over_ranks([[[6], [2], [3]], [[1], [6], [2]]]), ranks=2)
    gradient_bytes = 8 * sum(param.numel() for param in Tiny().parameters())
    sizes = [t.tensor_bytes for t in run.traffic.transfers if t.name == "all_reduce"]
    assert sizes.count(gradient_bytes) == 1


def test_gloo_gives_the_gradients_of_the_simulator():
    program = over_ranks([[[6], [2]], [[1, 0], [5]]], scale=256.0)
    real, simulated = launch(program, ranks=2, backend="gloo"), launch(program, ranks=2)
    for (loss, grads), (expected_loss, expected) in zip(real.values, simulated.values, strict=True):
        assert loss == expected_loss
        assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))


def test_summed_loss_leaves_padding_out_and_is_in_float32_at_least():
    batch = padded([2, 0, 5])
    logits = Tiny()(batch.inputs)
    each = F.cross_entropy(logits.flatten(0, 1), batch.targets.clamp(min=0).flatten(), reduction="none")
    expected = each[batch.targets.flatten() != IGNORED].sum()
    torch.testing.assert_close(summed_loss(logits, batch.targets), expected)
    assert summed_loss(logits.half(), batch.targets).dtype == torch.float32
    assert count_tokens(batch.targets) == 7


def test_bad_input_is_one_clear_error():
    with pytest.raises(ValueError, match="micro_batches must be .*; give at least one micro-batch on every rank"):
        accumulate(Tiny(), [])
    with pytest.raises(ValueError, match="must have a token with a loss: number 1 has none; leave it out"):
        accumulate_mean_of_means(Tiny(), [padded([2, 1]), padded([0, 0])])
    with pytest.raises(ValueError, match="a token with a target that is not IGNORED: got none"):
        accumulate(Tiny(), [padded([0, 0])])
