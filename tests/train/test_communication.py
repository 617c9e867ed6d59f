"""Communication of each step as metrics: on the simulator against the timeline, on gloo with a slow rank, in alerts."""

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import SlowRank, find_cluster, launch
from lablib.cli.main import main
from lablib.hardware import Cluster, Device, Link
from lablib.train import CommunicationMeter, JsonLines, Monitor, PrometheusExporter, TensorBoard, Trainer, build
from lablib.train.monitor import record
from tests.train.test_run import EXAMPLE, SMALL
from tests.train.test_trainer import config_of, loader_of, text

NAMES = ("communication_share", "synchronization_s")
LAYOUTS = [
    (2, []),
    (3, ["data.batch_size=6", "data.micro_batch=1", "parallel.bucket_bytes=500"]),
    (2, ["parallel.library=torch"]),
    (4, ["parallel.zero_stage=1"]),
    (2, ["parallel.zero_stage=3"]),
    (2, ["parallel.library=torch", "parallel.zero_stage=3"]),
    (2, ["parallel.tensor=2"]),
    (4, ["parallel.pipeline=2"]),
    (2, ["parallel.context=2"]),
    (2, ["parallel.expert=2", "model.num_experts=4"]),
]


def measured(words: list[str], num_steps: int = 3, before: Callable[[], Any] = lambda: None) -> list[dict[str, Any]]:
    """The numbers of each step; `before` is called before its gradients."""
    config, found = config_of(*words), list[dict[str, Any]]()
    trainer = build(config, loader=loader_of(config, text()))
    backward, meter = trainer.step.backward, CommunicationMeter(trainer.step)

    def late(*args: Any) -> Any:
        before()
        return backward(*args)

    trainer.step.backward = late  # type: ignore[method-assign]
    trainer.phase = meter
    trainer.on_step += [meter.add_to, lambda metrics: found.append({**metrics, "at_s": now_s()})]
    with meter:
        trainer.train(num_steps)
    return found


def now_s() -> float:
    group = dist.group.WORLD
    return group.rank_clock.clock_s if hasattr(group, "rank_clock") else 0.0  # pyright: ignore


# ---- the simulator ----


@settings(max_examples=10, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    cluster=st.sampled_from(["dgx-h100", "pcie-a100", "laptop"]),
    slowdown=st.sampled_from([1.0, 3.0]),
)
def test_steps_have_the_times_of_the_timeline(layout: tuple[int, list[str]], cluster: str, slowdown: float):
    """Share and waiting of each step are `exposed_s` and `waiting_s` of that part of the finished timeline."""
    ranks, words = layout
    faults = [SlowRank(ranks - 1, slowdown)] if slowdown > 1 else []
    run = launch(measured, words, ranks=ranks, cluster=cluster, faults=faults)
    for rank, steps in enumerate(run.values):
        for before, step in zip(steps, steps[1:], strict=False):
            part = run.timeline.between(before["at_s"], step["at_s"])
            assert step[NAMES[0]] == pytest.approx(part.exposed_s(rank) / part.makespan_s, rel=1e-9, abs=1e-12)
            assert step[NAMES[1]] == pytest.approx(part.waiting_s(rank), rel=1e-9, abs=1e-15)
            assert 0 < step[NAMES[0]] < 1
    if slowdown > 1 and cluster != "laptop":  # ranks of a laptop share its cores
        assert sum(step[NAMES[1]] for step in run.values[0]) > sum(step[NAMES[1]] for step in run.values[-1])


def flat_cluster() -> Cluster:
    """A GFLOP per second, and wires without latency."""
    device = Device("one gigaflop", {"float32": 1e9, "float64": 1e9}, 1e12, 1e15)
    return find_cluster("dgx-a100").replace(device=device, intra=Link("wire", 0.0, 1e9))


@pytest.mark.parametrize("size", [100, 200])
@pytest.mark.parametrize("words", [[], ["parallel.zero_stage=2"]], ids=str)
def test_all_others_wait_for_a_product_of_one_rank(size: int, words: list[str]):
    """A product of 2 size^3 FLOPs before the gradients, at 1e9 per second: the other ranks wait for its seconds."""

    def late_product() -> None:
        if dist.get_rank() == 2:
            x = torch.zeros(size, size)
            torch.mm(x, x)

    run = launch(measured, words, 3, late_product, ranks=4, cluster=flat_cluster())
    for rank, steps in enumerate(run.values):
        for step in steps[1:]:
            assert step[NAMES[1]] == pytest.approx(0.0 if rank == 2 else 2 * size**3 / 1e9, rel=0.01, abs=1e-6)


# ---- real ranks ----


@pytest.mark.parametrize("words", [[], ["parallel.library=torch"], ["parallel.zero_stage=3"]], ids=str)
def test_the_other_rank_waits_for_a_slow_one(words: list[str]):
    """Over the steps, the rank that sleeps before its gradients waits less than the other."""

    def late() -> None:
        time.sleep(dist.get_rank())

    first, slow = launch(measured, words, 3, late, ranks=2, backend="gloo").values
    assert sum(step[NAMES[1]] for step in first) > sum(step[NAMES[1]] for step in slow) >= 0
    for one, other in zip(first, slow, strict=True):
        assert all(0 <= step[NAMES[0]] < 1 for step in (one, other))
        assert min(one[NAMES[1]], other[NAMES[1]]) >= 0


def test_the_functions_of_torch_are_restored_after_an_exception():
    def program() -> bool:
        before = dist.all_reduce, dist.Work.wait
        config = config_of()
        trainer = build(config, loader=loader_of(config, text()))
        with pytest.raises(ArithmeticError), CommunicationMeter(trainer.step):
            assert dist.all_reduce is not before[0]
            raise ArithmeticError
        return (dist.all_reduce, dist.Work.wait) == before

    assert launch(program, ranks=2, backend="gloo").values == [True, True]


def test_one_device_communicates_with_none():
    config = config_of()
    trainer: Trainer = build(config, loader=loader_of(config, text()))
    trainer.on_step.append(CommunicationMeter(trainer.step).add_to)
    metrics = trainer.train_step()
    assert [metrics[name] for name in NAMES] == [0.0, 0.0]


# ---- the stream of metrics ----


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "data"))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("is_on", [True, False])
def test_lab_train_records_them_and_evaluates_their_rules(
    is_on: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    limits = dict(zip(NAMES, ("0.01%", 9), strict=True))
    rules = [f"- {{name: {name}, threshold: {limit}, alert_when: above}}\n" for name, limit in limits.items()]
    (tmp_path / "rules.yaml").write_text("metrics:\n" + "".join(rules))
    words = [f"monitor.rules={tmp_path / 'rules.yaml'}", f"monitor.folder={tmp_path / 'told'}"]
    words += [f"monitor.communication={str(is_on).lower()}"]
    assert main(["train", EXAMPLE, *SMALL, "--ranks", "2", *words]) == 0
    lines = [json.loads(line) for line in (tmp_path / "told" / "metrics.jsonl").read_text().splitlines()]
    assert all((name in line["metrics"]) == is_on for line in lines for name in NAMES)
    states = [(alert["name"], alert["state"]) for line in lines for alert in line["alerts"]]
    assert states == [("CommunicationShareAbove", "firing")] * is_on
    if is_on:  # virtual seconds, from the start of the run
        assert 0 < lines[0]["time_s"] < lines[-1]["time_s"] < 1
    assert ("an alert still fires at the end: CommunicationShareAbove" in capsys.readouterr().out) == is_on


def test_each_writer_exports_them(tmp_path: Path):
    metrics = launch(measured, [], ranks=2).values[0][-1]
    exporter = PrometheusExporter()
    with Monitor((), [JsonLines(tmp_path / "m.jsonl"), TensorBoard(tmp_path / "board"), exporter]) as monitor:
        record(monitor, metrics)
        served = {gauge.name: gauge.samples[0].value for gauge in exporter.collect()}
    (line,) = (tmp_path / "m.jsonl").read_text().splitlines()
    (board,) = (tmp_path / "board").iterdir()
    content = board.read_bytes()
    for name in NAMES:
        assert served[name] == json.loads(line)["metrics"][name] == metrics[name]
        assert name.encode() + b"\x15" + struct.pack("<f", metrics[name]) in content
