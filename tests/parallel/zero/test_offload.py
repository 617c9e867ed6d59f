"""ZeRO-Offload and shards on the host: the steps of the device, what the timeline shows, and the closed forms."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import CLUSTERS, RankError, Run, launch
from lablib.optim.lion import Lion
from lablib.parallel.zero.module import Zero
from lablib.parallel.zero.offload import ZeroInfinity, ZeroOffload, offload_time
from lablib.phases import host_work

few = settings(max_examples=5, deadline=None)
KINDS = {"offload": ZeroOffload, "infinity": ZeroInfinity}
ADAMW = partial(torch.optim.AdamW, lr=0.01, fused=True)


def mlp(sizes: list[int], dtype: torch.dtype, device: str = "cpu") -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(a, b, dtype=dtype, device=device) for a, b in zip(sizes, sizes[1:], strict=False)]
    for param in (param for layer in layers for param in layer.parameters()):
        param.data.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64))
    return nn.Sequential(*(module for layer in layers for module in (layer, nn.Tanh())))


def train(
    kind: str, optimizer_fn, sizes: list[int], num_micro: int = 1, device: str = "cpu", **options
) -> list[Tensor]:
    """Two steps; the parameters in full."""
    dtype = torch.float32 if options else torch.float64
    module = mlp(sizes, dtype, device)
    zero = KINDS[kind](module, optimizer_fn, **options) if kind in KINDS else None
    plain = Zero(module, optimizer_fn, 2, **options) if zero is None else None
    for step in range(2):
        for micro in range(num_micro):
            seed = torch.Generator().manual_seed(100 * step + 10 * micro + dist.get_rank())
            x = torch.randn(3, sizes[0], generator=seed, dtype=torch.float64).to(dtype).to(device)
            (zero or plain)(x).square().mean().backward()  # pyright: ignore[reportOptionalCall]
        (zero or plain).step()  # pyright: ignore[reportOptionalMemberAccess]
        (zero or plain).zero_grad()  # pyright: ignore[reportOptionalMemberAccess]
    units = (zero or plain).units  # pyright: ignore[reportOptionalMemberAccess]
    full = [(unit.layout.names, unit.gather(unit.shard.detach().to(device))) for unit in units]
    by_name = {name: view for names, views in full for name, view in zip(names, views, strict=True)}
    return [by_name[name].cpu() for name in sorted(by_name)]


def assert_equal(runs: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    for found, wanted in zip(runs, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


# ---- the same steps ----


@pytest.mark.parametrize("kind", KINDS)
@few
@example(ranks=4, sizes=[3, 3, 6, 5], num_micro=2, optimizer="adamw")
@given(
    ranks=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    num_micro=st.integers(1, 2),
    optimizer=st.sampled_from(["adamw", "lion", "sgd"]),
)
def test_steps_on_the_host_are_those_on_the_device_to_the_bit(kind, ranks, sizes, num_micro, optimizer):
    # Not the fused AdamW: on a CPU the numbers at a shard's end are rounded otherwise than those before them.
    loop = partial(torch.optim.AdamW, lr=0.01, fused=False, foreach=False)
    make = {"adamw": loop, "lion": Lion, "sgd": partial(torch.optim.SGD, lr=0.1)}[optimizer]
    runs = [launch(train, each, make, sizes, num_micro, ranks=ranks).values for each in (kind, "on the device")]
    assert_equal(*runs)


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision_on_the_simulated_gpu_is_the_same_to_the_bit(kind):
    def program(each: str) -> list[Tensor]:
        return train(each, ADAMW, [4, 8, 8, 2], device="cuda", param_dtype=torch.bfloat16)

    assert_equal(*(launch(program, each, ranks=2, device="cuda").values for each in (kind, "on the device")))


@pytest.mark.parametrize("kind", ["offload", pytest.param("infinity", marks=pytest.mark.thorough)])
def test_gloo_gives_what_the_simulator_gives(kind):
    here, there = (
        launch(train, kind, ADAMW, [3, 5, 2], ranks=2, backend=backend).values for backend in ("sim", "gloo")
    )
    assert_equal(here, there)


def test_a_step_without_gradients_is_refused():
    def program(kind: str) -> None:
        KINDS[kind](mlp([2, 2], torch.float32), ADAMW).step()

    for kind in KINDS:
        with pytest.raises(
            RankError, match="a step needs reduced gradients: there are none for 0.(weight|bias); run backward"
        ):
            launch(program, kind, ranks=1)


# ---- time and memory on the simulated GPU ----

WIDTH, LAYERS, HOST = 128, 6, 20e9


def one_step(kind: str) -> int:
    """A step of equal layers, each a unit; returns the bytes that are on the device at rest."""
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(LAYERS)))
    options: dict[str, Any] = {"param_dtype": torch.bfloat16}
    if kind != "infinity":
        options["bucket_bytes"] = 4 * WIDTH**2
    if kind in KINDS:
        zero = KINDS[kind](module, ADAMW, host_bytes_per_s=HOST, **options)
    else:
        zero = Zero(module, ADAMW, 2, **options)
    del module
    x = torch.randn(64, WIDTH, device="cuda", requires_grad=True)
    for _ in range(2):
        with torch.profiler.record_function("forward"):
            loss = zero(x).sum()
        loss.backward()
        with torch.profiler.record_function("optimizer"):
            zero.step()
        zero.zero_grad()
        x.grad = loss = None
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - x.nbytes


# The closed forms leave the host's launches out: here they take next to no time.
NODE = CLUSTERS["dgx-a100"].replace(device=replace(CLUSTERS["dgx-a100"].device, launch_s=1e-12))


def run_of(kind: str, ranks: int = 2) -> Run:
    return launch(one_step, kind, ranks=ranks, cluster=NODE, device="cuda")


def test_the_timeline_shows_the_link_and_the_hosts_step():
    run, numbers = run_of("offload"), LAYERS * WIDTH**2 / 2
    by_stream = {
        stream: [span for span in run.timeline.select(rank=0, stream=stream) if span.size_bytes]
        for stream in ("comm:host:send", "comm:host:recv", "host")
    }
    assert sum(span.size_bytes for span in by_stream["comm:host:send"][-LAYERS:]) == 2 * numbers
    assert sum(span.size_bytes for span in by_stream["comm:host:recv"][-LAYERS:]) == 2 * numbers
    step = [span for span in by_stream["host"] if span.name == "aten._fused_adamw_"][-LAYERS:]
    assert sum(span.size_bytes for span in step) == pytest.approx(28 * numbers, rel=1e-3)
    assert all(span.duration_s == pytest.approx(span.size_bytes / HOST) for span in step)
    assert {span.phase for span in step} == {"optimizer"}
    backward = run.timeline.select(rank=0, stream="compute", phase="backward")
    assert by_stream["comm:host:send"][-LAYERS].start_s < backward[-1].end_s  # the first leaves while backward goes on
    assert by_stream["comm:host:recv"][-LAYERS].end_s < step[-1].end_s  # the first is back before the last is stepped
    assert run.timeline.figure() is not None


def test_gradients_leave_are_stepped_and_come_back_as_a_pipeline():
    """From when each shard was reduced: copy out, step, and copy in once backward is over, one unit after the other."""
    timeline = run_of("offload").timeline
    reduced, out, back = (
        [span for span in timeline.select(rank=0, stream=stream) if name in span.name][-LAYERS:]
        for stream, name in (("comm:world", "reduce_scatter"), ("comm:host:send", "copy"), ("comm:host:recv", "copy"))
    )
    host = [span for span in timeline.select(rank=0, stream="host") if span.start_s > reduced[0].start_s]
    backward_end_s = timeline.select(rank=0, stream="compute", phase="backward")[-1].end_s
    step_s = sum(span.duration_s for span in host) / LAYERS
    copied = stepped = returned = 0.0
    for unit in range(LAYERS):
        copied = max(copied, reduced[unit].end_s) + out[0].duration_s
        stepped = max(stepped, copied) + step_s
        returned = max(returned, stepped, backward_end_s) + back[0].duration_s
        assert (out[unit].end_s, back[unit].end_s) == pytest.approx((copied, returned), rel=1e-6)
    form = offload_time(LAYERS * WIDTH**2, 2, LAYERS, 0.0, 32e9, HOST)
    assert step_s * LAYERS == pytest.approx(form.host_s, rel=1e-3)


def test_the_device_keeps_two_bytes_a_parameter_or_none():
    numbers = LAYERS * WIDTH**2
    kept = {kind: run_of(kind).values[0] for kind in ("offload", "infinity", "on the device")}
    assert kept["offload"] == 2 * numbers and kept["infinity"] == 0
    saved = kept["on the device"] - kept["offload"]
    assert saved - 4 * LAYERS == 12 * numbers / 2  # and the counts of steps, which a fused AdamW keeps on the device
    assert offload_time(numbers, 2, LAYERS, 0.0, 32e9).saved_bytes == 14 * numbers / 2  # before zero_grad()


def test_host_work_takes_time_inside_its_block_alone():
    def program() -> None:
        torch.zeros(1, device="cuda")
        x = torch.zeros(1000, device="cpu")
        x.add_(1)
        with torch.profiler.record_function("load"), host_work(1e6):
            x.add_(1)
            with host_work(2e6):
                x.add_(1)
        x.add_(1)

    host = launch(program, ranks=1, device="cuda").timeline.select(stream="host")
    assert [span.duration_s for span in host] == pytest.approx([8e-3, 4e-3])
    assert [(span.name, span.phase) for span in host] == [("aten.add_", "load")] * 2
    for bad in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="bandwidth_bytes_per_s must be above 0"), host_work(bad):
            pass


# ---- closed forms ----


@given(
    units=st.integers(1, 40),
    ranks=st.integers(1, 64),
    backward_s=st.floats(0, 3),
    link=st.floats(1e9, 1e11),
    host=st.floats(1e9, 1e12),
)
def test_exposed_seconds_are_those_of_units_played_through(units, ranks, backward_s, link, host):
    form = offload_time(7e9, ranks, units, backward_s, link, host)
    size, copied, stepped, back = 7e9 / ranks / units, 0.0, 0.0, backward_s
    for unit in range(1, units + 1):
        copied = max(copied, unit * backward_s / units) + 2 * size / link
        stepped = max(stepped, copied) + (28 + 6 + 6) * size / host
        back = max(back, stepped) + 2 * size / link
    assert form.exposed_s == pytest.approx(back - backward_s, rel=1e-6, abs=1e-9)
    assert form.saved_bytes == pytest.approx(14 * 7e9 / ranks)
