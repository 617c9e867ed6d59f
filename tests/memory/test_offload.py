"""Offloaded activations: the same gradients, less of the device's memory, and exposed seconds of the closed form."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lablib import CLUSTERS, Run, launch
from lablib.memory.checkpointing import checkpoint_every, keep_all, run
from lablib.memory.offload import exposed_s, naive_offload, offload
from lablib.models import GPT, GPTConfig
from lablib.models.gpt import next_token_loss

CONTEXTS = {
    "none": lambda kept, ahead: nullcontext(),
    "naive": lambda kept, ahead: naive_offload(kept, min_numel=1),
    "offload": lambda kept, ahead: offload(kept, num_ahead=ahead, min_numel=1),
}


# The closed forms leave the host's launches out: here they take next to no time.
NODE = CLUSTERS["dgx-v100"].replace(device=replace(CLUSTERS["dgx-v100"].device, launch_s=1e-15))


def on_gpu(program, *args) -> Run:
    return launch(program, *args, ranks=1, cluster=NODE, device="cuda")


# ---- the same gradients ----


def gpt_gradients(kind: str, num_ahead: int, checkpoint_layers: int, device: str = "cuda") -> list[torch.Tensor]:
    model = GPT(GPTConfig(3, 8, 2, 32, 8), dtype=torch.float64, device=device)
    tokens = torch.arange(16, device=device).reshape(2, 8) % 32
    plan = checkpoint_every(3, checkpoint_layers) if checkpoint_layers else keep_all(3)
    torch.manual_seed(0)
    with CONTEXTS[kind](list(model.parameters()), num_ahead):
        x = model.token_embedding(tokens) + model.position_embedding(torch.arange(8, device=device))
        x = F.dropout(run(plan, list(model.blocks), x), 0.3)
        loss = next_token_loss(model.head(model.final_norm(x)), tokens)
    return [g.cpu() for g in torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("checkpoint_layers", [0, 1, 2])
@pytest.mark.parametrize(("kind", "num_ahead"), [("naive", 1), ("offload", 1), ("offload", 3), ("offload", 100)])
def test_gradients_are_those_without_it_to_the_bit(kind, num_ahead, checkpoint_layers):
    want = on_gpu(gpt_gradients, "none", 1, 0).values[0]
    got = on_gpu(gpt_gradients, kind, num_ahead, checkpoint_layers).values[0]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "num_ahead"), [("naive", 1), ("offload", 1), ("offload", 3)])
def test_the_same_program_runs_on_a_gpu(kind, num_ahead):
    want = gpt_gradients("none", 1, 0)
    for _ in range(5):  # a copy that is not waited for may be right by luck
        for a, b in zip(gpt_gradients(kind, num_ahead, 0), want, strict=True):
            torch.testing.assert_close(a, b)


def test_backward_in_another_order_twice_or_never():
    def program() -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 8, dtype=torch.float64, requires_grad=True)
        with offload(num_ahead=1, min_numel=1):
            first, second = x.exp().tanh().sin(), x.sigmoid().exp()
            x.exp().exp()  # nobody asks for its gradient
        (late,) = torch.autograd.grad(second.sum(), x, retain_graph=True)
        (early,) = torch.autograd.grad(first.sum(), x)
        (again,) = torch.autograd.grad(second.sum(), x)
        want = torch.autograd.grad(x.exp().tanh().sin().sum(), x) + torch.autograd.grad(x.sigmoid().exp().sum(), x)
        return [g.cpu() for g in (early, late, again, *want)]

    early, late, again, want_early, want_late = on_gpu(program).values[0]
    assert torch.equal(early, want_early) and torch.equal(late, want_late) and torch.equal(again, want_late)


# ---- time and memory: a chain of equal layers, each keeping its result ----


def chain(kind: str, num_layers: int, tokens: int, width: int, num_ahead: int) -> None:
    w, dy = torch.ones(width, width) / width, torch.ones(tokens, width)
    x = first = torch.ones(tokens, width, requires_grad=True)
    with CONTEXTS[kind]([w, first], num_ahead):
        for _ in range(num_layers):
            x = (x @ w).tanh()
    x.backward(dy)


def layer_s(plain: Run, phase: str, num_layers: int) -> float:
    return sum(s.duration_s for s in plain.timeline.select(phase=phase) if s.name in LAYER) / num_layers


LAYER = {"aten.mm", "aten.tanh", "aten.tanh_backward"}
PCIE3 = 15.75e9  # bytes a second: 16 lanes of 8 GT/s, 128 of 130 bits


def copy_s(naive: Run, size_bytes: int) -> float:
    copies = [s for s in naive.timeline if s.name.startswith("copy")]
    assert {s.name for s in copies} == {"copy device to host", "copy host to device"}
    assert {s.stream for s in copies} == {"compute"} and {s.size_bytes for s in copies} == {size_bytes}
    assert size_bytes / PCIE3 < copies[0].duration_s < size_bytes / PCIE3 + 10e-6
    return copies[0].duration_s


@settings(max_examples=25)
@given(
    num_layers=st.integers(1, 9),
    tokens=st.sampled_from([16, 256, 600, 900, 1100, 2000, 4096]),
    num_ahead=st.integers(1, 6),
)
def test_the_seconds_exposed_are_those_of_the_closed_form(num_layers, tokens, num_ahead):
    """From copies shorter than a layer (16 tokens) to four times as long (4096)."""
    width = 32
    runs = {kind: on_gpu(chain, kind, num_layers, tokens, width, num_ahead) for kind in CONTEXTS}
    plain_s = runs["none"].timeline.makespan_s
    one_way_s = copy_s(runs["naive"], 4 * tokens * width)
    assert runs["naive"].timeline.makespan_s == pytest.approx(plain_s + 2 * num_layers * one_way_s, rel=1e-9)
    form = exposed_s(
        num_layers,
        num_ahead,
        one_way_s,
        layer_s(runs["none"], "forward", num_layers),
        layer_s(runs["none"], "backward", num_layers),
    )
    computed = runs["offload"].timeline.select(stream="compute")  # the last copies may outlast it: nobody waits
    end_s = max(s.end_s for s in computed)
    assert end_s == pytest.approx(plain_s + form, rel=1e-9)
    assert end_s - runs["offload"].timeline.busy_s(0, "compute") == pytest.approx(form, rel=1e-6, abs=1e-12)
    assert {s.stream for s in runs["offload"].timeline if s.name == "copy device to host"} == {"comm:host:send"}
    back = [s for s in runs["offload"].timeline if s.name == "copy host to device"]
    assert len(back) == max(0, num_layers - num_ahead)  # the last ones are still there
    assert {s.stream for s in back} <= {"comm:host:recv"}


@settings(max_examples=15)
@given(num_layers=st.integers(1, 12), num_ahead=st.integers(1, 4))
def test_the_peak_is_that_of_the_tensors_that_are_on_their_way(num_layers, num_ahead):
    tokens, width = 256, 32
    size_bytes, weight_bytes = 4 * tokens * width, 4 * width * width
    peaks = {
        kind: (on_gpu(chain, kind, num_layers, tokens, width, num_ahead).memory.peak_bytes(0) - weight_bytes)
        / size_bytes
        for kind in CONTEXTS
    }
    assert peaks["none"] == num_layers + 4  # input, dy, n results; a gradient that comes and one that is made
    assert peaks["offload"] <= min(num_layers, num_ahead + 2) + 4
    assert peaks["naive"] <= 6


def test_the_form_of_many_layers():
    """A layer exposes what its copy takes longer, once each way."""
    one = exposed_s(1001, 1, 3.0, 1.0, 2.0) - exposed_s(1000, 1, 3.0, 1.0, 2.0)
    assert one == pytest.approx((3.0 - 1.0) + (3.0 - 2.0))
    assert exposed_s(50, 1, 1.0, 1.0, 2.0) == 0.0 == exposed_s(5, 5, 9.0, 1.0, 1.0)
    assert exposed_s(4, 2, 3.0, 1.0, 1.0) == 2 * (2 * 3.0 - 3 * 1.0)


# ---- what stays, and what is refused ----


def test_parameters_small_tensors_and_whole_numbers_stay():
    def program() -> None:
        linear, norm = nn.Linear(64, 64), nn.LayerNorm(64)
        x = torch.ones(32, 64, requires_grad=True)
        with offload([*linear.parameters(), *norm.parameters()]):
            loss = norm(linear(x))[torch.tensor([1, 2])].sum()
        loss.backward()

    copies = [s.size_bytes for s in on_gpu(program).timeline if s.name == "copy device to host"]
    assert copies == [4 * 32 * 64] * 2  # the input of the layer and of the norm; not its 32 means and deviations


def test_bad_input():
    def program() -> None:
        with offload():
            pass

    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match='got no GPU. On the simulator, launch.program, ranks=1, device="cuda".'):
            offload()
        with pytest.raises(ValueError, match="got no GPU"):
            naive_offload()
    with pytest.raises(ValueError, match='device must be "cuda", or None'):
        launch(program, ranks=1, device="cpu")
    with pytest.raises(ValueError, match="gloo has none"):
        launch(program, ranks=1, device="cuda", backend="gloo")
    with pytest.raises(ValueError, match="computes with values"):
        launch(program, ranks=1, device="cuda", fidelity="shapes")
