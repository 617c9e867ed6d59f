"""Local SGD, DiLoCo, streaming DiLoCo, stale gradients: what H = 1 and s = 0 must be, bytes over H, and time hidden.

All in float64 with SGD inside, whose steps are the gradients themselves.
"""

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, compress, launch
from lablib.parallel import DataParallel, average_gradients

few = settings(max_examples=8, deadline=None)
RATE = 0.1


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def batch(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(3, 4, generator=generator, dtype=torch.float64)


def state(module: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in module.parameters()]


def train(method: str, num_steps: int, **options) -> list[list[Tensor]]:
    """The parameters of this rank after every step."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    after = {
        "local": lambda: compress.LocalSGD(module, **options),
        "diloco": lambda: compress.DiLoCo(module, **options),
        "streaming": lambda: compress.StreamingDiLoCo(
            module,
            compress.layer_fragments(module, [module[0], module[2], module[4]], options.pop("num_fragments")),
            **options,
        ),
    }.get(method, lambda: None)()
    found = []
    for step in range(num_steps):
        optimizer.zero_grad()
        module(batch(dist.get_rank(), step)).square().mean().backward()
        if method == "data parallel":
            average_gradients(module)
        optimizer.step()
        if after is not None:
            after.step()
        found.append(state(module))
    if isinstance(after, compress.StreamingDiLoCo):
        after.finish()
        found.append(state(module))
    return found


def plain_sgd(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1.0)


# ---- local SGD and DiLoCo ----


@few
@given(ranks=st.integers(1, 5), steps=st.integers(1, 4))
def test_one_local_step_is_data_parallelism(ranks, steps):
    """mean(w - lr g_r) = w - lr mean(g_r): local SGD of H = 1, and DiLoCo with an outer SGD of rate 1."""
    expected = launch(train, "data parallel", steps, ranks=ranks).values
    for program in (
        lambda: train("local", steps, every=1),
        lambda: train("diloco", steps, every=1, outer=plain_sgd),
        lambda: train("streaming", steps, every=1, outer=plain_sgd, overlap=0, keep=0.0, num_fragments=1),
    ):
        for found, wanted in zip(launch(program, ranks=ranks).values, expected, strict=True):
            torch.testing.assert_close(found[:steps], wanted, rtol=1e-12, atol=1e-13)


@few
@given(ranks=st.integers(1, 4), every=st.integers(1, 4), steps=st.integers(1, 9))
def test_bytes_are_a_share_of_those_of_every_step(ranks, every, steps):
    """2 (n-1)/n S for each whole H, beside the broadcast at the start; replicas agree after a synchronization."""
    size = sum(param.nbytes for param in model().parameters())
    for method in ("local", "diloco"):
        run = launch(lambda method=method: train(method, steps, every=every), ranks=ranks)
        sent = sum(sum(each.sent_bytes) for each in run.traffic.transfers if each.name == "all_reduce")
        assert sent / ranks == pytest.approx(2 * (ranks - 1) / ranks * size * (steps // every))
        for step in range(every - 1, steps, every):
            for found in run.values:
                torch.testing.assert_close(found[step], run.values[0][step], rtol=0, atol=0)


def test_ranks_drift_apart_between_synchronizations_and_the_mean_of_their_ways_is_kept():
    first, second = launch(lambda: train("local", 3, every=3), ranks=2).values
    assert not torch.equal(first[1][0], second[1][0])
    expected = []
    for rank in range(2):  # each alone
        module = model()
        for step in range(3):
            grads = torch.autograd.grad(module(batch(rank, step)).square().mean(), list(module.parameters()))
            for param, grad in zip(module.parameters(), grads, strict=True):
                param.data -= RATE * grad
        expected.append(state(module))
    means = [(a + b) / 2 for a, b in zip(*expected, strict=True)]
    torch.testing.assert_close(first[2], means, rtol=1e-12, atol=1e-13)


def test_diloco_is_nesterov_on_the_way_that_all_went():
    """By hand: b = 0.9 b + delta, w = w - 0.7 (delta + 0.9 b); H = 2, three synchronizations, 3 ranks."""
    w, momentum = state(model()), [torch.zeros_like(param) for param in model().parameters()]
    for number in range(3):
        ends = []
        for rank in range(3):
            local = model()
            for param, value in zip(local.parameters(), w, strict=True):
                param.data.copy_(value)
            for step in (2 * number, 2 * number + 1):
                grads = torch.autograd.grad(local(batch(rank, step)).square().mean(), list(local.parameters()))
                for param, grad in zip(local.parameters(), grads, strict=True):
                    param.data -= RATE * grad
            ends.append(state(local))
        for i, value in enumerate(w):
            delta = value - torch.stack([end[i] for end in ends]).mean(0)
            momentum[i] = 0.9 * momentum[i] + delta
            w[i] = value - 0.7 * (delta + 0.9 * momentum[i])
    for found in launch(lambda: train("diloco", 6, every=2), ranks=3).values:
        torch.testing.assert_close(found[-1], w, rtol=1e-12, atol=1e-13)


# ---- streaming DiLoCo ----


@pytest.mark.parametrize("every", [1, 2, 3])
def test_one_fragment_without_overlap_is_diloco(every):
    streamed = launch(lambda: train("streaming", 6, every=every, overlap=0, keep=0.0, num_fragments=1), ranks=2).values
    plain = launch(lambda: train("diloco", 6, every=every), ranks=2).values
    for found, wanted in zip(streamed, plain, strict=True):
        torch.testing.assert_close(found[:6], wanted, rtol=0, atol=0)


def test_fragments_leave_in_turn_and_send_no_more_than_diloco():
    """Three fragments, H = 6: one leaves every 2 steps; in two rounds, each has been sent twice."""
    run = launch(lambda: train("streaming", 12, every=6, overlap=1, num_fragments=3), ranks=3)
    layers = [model()[0], model()[2], model()[4]]
    sizes = [sum(param.nbytes for param in layer.parameters()) for layer in layers]
    assert [each.tensor_bytes for each in run.traffic.transfers if each.name == "all_reduce"] == sizes * 2


def test_a_fragment_arrives_late_and_is_mixed_with_what_was_learned_meanwhile():
    """It leaves after step 2 and arrives after step 3: half of what came, half of what the rank has by then."""

    def program():
        module = nn.Linear(1, 1, bias=False).double()
        module.weight.data.fill_(10.0)
        outer = compress.StreamingDiLoCo(
            module, [list(module.parameters())], every=2, overlap=1, keep=0.5, outer=plain_sgd
        )
        seen = []
        for _ in range(3):
            module.weight.data -= 1.0 + 2 * dist.get_rank()  # 1 on rank 0, 3 on rank 1
            outer.step()
            seen.append(module.weight.item())
        return seen

    # Leaving: ranks at 8 and 4, mean 6. Arriving: ranks at 7 and 1, half of each and of 6.
    assert launch(program, ranks=2).values == [[9.0, 8.0, 6.5], [7.0, 4.0, 3.5]]


def test_layers_are_dealt_out_and_every_parameter_is_in_one_fragment():
    module = model()
    fragments = compress.layer_fragments(module, [module[0], module[2], module[4]], 2)
    names = {param: name for name, param in module.named_parameters()}
    assert [[names[param] for param in fragment] for fragment in fragments] == [
        ["0.weight", "0.bias", "4.weight", "4.bias"],
        ["2.weight", "2.bias"],
    ]


def test_outer_gradients_may_be_compressed_to_four_bits():
    """Bytes per synchronization are those of 4-bit codes; replicas stay equal, and near those of exact means."""

    def program(reduce):
        options = {} if reduce is None else {"reduce": reduce()}
        return train("diloco", 4, every=2, **options)[-1]

    exact = launch(program, None, ranks=2)
    four_bits = launch(
        program, lambda: compress.ErrorFeedback(compress.QuantizedAverage(compress.Int4(block=16))), ranks=2
    )
    sent = [
        sum(sum(each.sent_bytes) for each in run.traffic.transfers if each.name != "broadcast")
        for run in (exact, four_bits)
    ]
    assert sent[1] < sent[0] / 8
    torch.testing.assert_close(four_bits.values[0], four_bits.values[1], rtol=0, atol=0)
    torch.testing.assert_close(four_bits.values[0], exact.values[0], rtol=0, atol=0.1)


# ---- stale gradients ----


@few
@given(ranks=st.integers(1, 4), staleness=st.integers(0, 3), bucket_bytes=st.sampled_from([1, 2**20]))
def test_step_t_has_the_mean_gradient_of_step_t_less_s(ranks, staleness, bucket_bytes):
    """To the bit: the same sums. Parameters stay as they are, so the synchronous gradients are those of each step."""

    def program(staleness: int):
        stale = compress.StaleAverage(staleness)
        replica, found = DataParallel(model(), bucket_bytes=bucket_bytes, reduce=stale), []
        for step in range(5):
            replica.zero_grad()
            replica(batch(dist.get_rank(), step)).square().mean().backward()
            found.append([param.grad.clone() for param in replica.parameters() if param.grad is not None])
        stale.finish()
        return found

    now, late = (launch(program, s, ranks=ranks).values[0] for s in (0, staleness))
    for step in range(5):
        wanted = now[step - staleness] if step >= staleness else [torch.zeros_like(grad) for grad in now[0]]
        torch.testing.assert_close(late[step], wanted, rtol=0, atol=0)


def test_gradients_of_the_step_before_hide_their_communication():
    """Wide layers on a slow network: one step of computation covers part of what the synchronous step waits for."""

    def program(staleness: int):
        stale = compress.StaleAverage(staleness)
        replica = DataParallel(nn.Linear(512, 512), reduce=stale)
        for _ in range(4):
            replica(torch.ones(2048, 512)).sum().backward()
        stale.finish()

    exposed_s = [launch(program, s, ranks=4, cluster="laptop").timeline.exposed_s(0) for s in (0, 1)]
    assert exposed_s[1] < 0.8 * exposed_s[0]


# ---- real processes ----


@pytest.mark.slow
def test_gloo_trains_to_the_parameters_of_the_simulator():
    def program():
        return [
            train("local", 4, every=2)[-1],
            train("diloco", 4, every=2)[-1],
            train("streaming", 6, every=3, overlap=2, num_fragments=3)[-1],
        ]

    real, simulated = launch(program, ranks=2, backend="gloo"), launch(program, ranks=2)
    torch.testing.assert_close(real.values, simulated.values, rtol=1e-12, atol=1e-13)


# ---- bad input ----


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: compress.LocalSGD(nn.ReLU(), 1), "needs a parameter to train"),
        (lambda: compress.layer_fragments(model(), [nn.Linear(1, 1)], 2), "at most the number of layers: got 2 of 1"),
        (lambda: compress.StreamingDiLoCo(model(), [[], []], 3), "`every` to be a multiple of the number of fragments"),
        (lambda: compress.StreamingDiLoCo(model(), [[]], 3, overlap=3), "`overlap` below it"),
        (lambda: compress.StreamingDiLoCo(model(), [[]], 3), "fragments must hold every parameter that is trained"),
    ],
)
def test_bad_input_is_one_error(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("method", [compress.LocalSGD, compress.DiLoCo])
def test_parameters_that_are_not_finite_are_one_error(method):
    def program():
        module = nn.Linear(2, 2)
        outer = method(module, every=1)
        module.weight.data.fill_(math.inf)
        outer.step()

    with pytest.raises(RankError, match=f"{method.__name__}: parameters must be finite"):
        launch(program, ranks=1)
