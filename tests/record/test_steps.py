"""Steps of a program, found by its optimizer."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import Span, Timeline, launch
from lablib.record.steps import step_ends_s, step_metrics


def span(rank: int, start_s: float, end_s: float, phase: str, stream: str = "compute") -> Span:
    return Span(rank, stream, "op", phase, start_s, end_s, 0.0, 0.0)


def test_a_step_ends_with_the_last_operator_of_the_optimizer_on_the_last_rank():
    spans = [
        *(span(0, start, start + 1, phase) for start, phase in enumerate(["forward", "backward", "optimizer"] * 2)),
        span(0, 6, 6.5, "optimizer"),  # the same step goes on
        span(1, 0, 2, "backward"),
        span(1, 2, 4.5, "optimizer"),
        span(1, 4.5, 5, "forward"),
        span(1, 5, 6, "optimizer"),
        span(1, 6, 9, "optimizer", "comm:world"),
        span(2, 0, 9, "forward"),  # a rank without an optimizer
    ]
    assert step_ends_s(Timeline(tuple(spans), 3)) == [4.5, 6.5]
    assert step_ends_s(Timeline((span(0, 0, 1, "forward"),), 1)) == []


def program(steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(64, 512)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


def test_equal_steps_have_equal_numbers_and_add_up():
    run = launch(program, 5, ranks=3)
    ends_s = step_ends_s(run.timeline)
    assert len(ends_s) == 5
    found = list(step_metrics(run))
    assert [end_s for end_s, _ in found] == ends_s[1:]
    last = [metrics for _, metrics in found[1:]]
    assert last[1]["step_s"] == pytest.approx(last[0]["step_s"], rel=1e-9)
    for metrics in last:
        # A ring all-reduce sends 2 (n - 1) / n of the bytes from each rank, whatever the algorithm's order.
        assert metrics["sent_bytes"] == pytest.approx(2 * (3 - 1) * (512 * 512 + 512) * 4, rel=0.3)
        shares = [metrics[f"{name}_share"] for name in ("busy", "exposed", "waiting", "idle")]
        assert sum(shares) == pytest.approx(1)
        # Weights, gradients and two states, and the peak of the run at most.
        assert 4 * 4 * 512 * 512 < metrics["peak_bytes"] <= run.memory.peak_bytes()
    assert max(metrics["peak_bytes"] for _, metrics in found) == run.memory.peak_bytes()
    assert list(step_metrics(launch(program, 1, ranks=2))) == []


def test_the_numbers_of_steps_go_to_tensorboard(tmp_path: Path):
    run = launch(program, 3, ranks=2)
    assert run.to_tensorboard(tmp_path / "board") == tmp_path / "board"
    (file,) = (tmp_path / "board").iterdir()
    content = file.read_bytes()
    for _, metrics in step_metrics(run):
        for name, value in metrics.items():
            assert name.encode() + b"\x15" + struct.pack("<f", value) in content  # the tag, then field 2 of the value


def test_the_numbers_of_steps_go_to_weights_and_biases(monkeypatch: pytest.MonkeyPatch):
    """A stand-in for the package, which needs an account or a folder; `mode="offline"` of the real one was tried."""
    run, said = launch(program, 3, ranks=2), []

    class Logged:
        def __enter__(self) -> "Logged":
            return self

        def __exit__(self, *error: object) -> None:
            said.append("end")

        def log(self, metrics: dict[str, float], step: int) -> None:
            said.append((step, metrics))

    def init(**options: Any) -> Logged:
        said.append(options)
        return Logged()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # pyright: ignore[reportArgumentType]
    run.to_wandb(project="sim")
    assert said[0]["project"] == "sim" and said[0]["config"]["ranks"] == 2
    assert said[1:] == [*enumerate((metrics for _, metrics in step_metrics(run)), 2), "end"]
    monkeypatch.setitem(sys.modules, "wandb", None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModuleNotFoundError) as raised:
        run.to_wandb()
    assert "pip install 'lablib[thirdparty]'" in raised.value.__notes__[0]


def test_a_run_without_two_steps_has_no_numbers_to_write(tmp_path: Path):
    run = launch(program, 1, ranks=1)
    for write in (run.to_wandb, lambda: run.to_tensorboard(tmp_path)):
        with pytest.raises(ValueError, match="need two steps of a torch optimizer or more"):
            write()
    assert not list(tmp_path.iterdir())
