"""A script on two nodes leaves one measured run: two agents of torchrun on this machine, with gloo on loopback."""

import json
import os
import random
import subprocess
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib import Reconciliation, Run, simulate_script
from lablib.cli.main import main
from lablib.cli.nodes import checked
from lablib.course.errors import CourseError
from lablib.real.measurement.calls import Call
from lablib.real.measurement.measure import Measurement
from lablib.real.measurement.spans import RawSpan
from lablib.real.nodes import _ask, rebuilt, shifted

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch.profiler import record_function

def main():
    with record_function("setup"):
        dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        halves = [dist.new_group(list(range(first, ranks, 2))) for first in (0, 1)]
        x, w = torch.full((1000,), float(rank)), torch.ones(64, 64)
    for _ in range(int(sys.argv[1])):
        with record_function("step"):
            w @ w
            dist.all_reduce(x)
            dist.broadcast(x, rank % 2, group=halves[rank % 2])
    if rank == 0:
        dist.send(x, ranks - 1)
    if rank == ranks - 1:
        dist.recv(x, 0)
    assert x[0] == ranks * (ranks - 1) / 2 * ranks ** (int(sys.argv[1]) - 1), x
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_two_nodes_leave_a_run_that_a_prediction_is_held_against(script: Path, capfd: pytest.CaptureFixture[str]):
    out = script.parent / "out"
    assert main(["run", str(script), "--nnodes", "2", "--ranks", "4", "--out", str(out), "--", "3"]) == 0
    told = capfd.readouterr().out
    for node in (0, 1):
        assert f"node {node} (here): torchrun --nnodes 2 --nproc-per-node 2 --node-rank {node} --master-addr" in told
    measured = Run.load(out / "run.json")
    assert (measured.ranks, measured.backend) == (4, "gloo") and measured.cluster.startswith("2 nodes, 4 ranks (")
    assert any("rank 0's clock, known to within" in note for note in measured.notes)
    assert measured.timeline.makespan_s > 0 and {span.rank for span in measured.timeline.spans} == set(range(4))

    predicted = simulate_script(script, ["3"], ranks=4)
    calls = lambda run: sorted((t.name, t.ranks, t.tensor_bytes) for t in run.traffic.transfers)  # noqa: E731
    assert calls(measured) == calls(predicted) and len(measured.traffic) == 3 + 2 * 3 + 1
    rows = Reconciliation.of(predicted, [measured], without="setup").table().to_dict("records")
    for row in rows:
        if row["kind"] == "communication":
            assert row["predicted_calls"] == row["measured_calls"] > 0
            # The one message may be shorter than what is known of the two clocks: then it took no time that is known.
            assert row["measured_s"] > 0 or row["name"] == "send"
    assert {"all_reduce", "broadcast", "send", "step"} <= {row["name"] for row in rows}


def test_a_job_for_slurm_starts_the_same_commands(
    script: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """With stand-ins for Slurm's two commands: `srun` writes down the words of the task of each node."""
    job, folder = script.parent / "a job.sbatch", script.parent / "bin"
    asked = {"ranks": "4", "out": str(script.parent / "the run")}
    words = ["--nnodes", "2", "--ranks", "4", "--out", asked["out"], "--slurm", str(job), "--", "3", "a b"]
    assert main(["run", str(script), *words]) == 0
    assert f"sbatch '{job}'" in capfd.readouterr().out
    lines = {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=2"}
    assert lines <= set(job.read_text().splitlines())
    folder.mkdir()
    write = f"""for node in 0 1; do SLURM_NODEID=$node "$2" "$3" "printf '%s\\n' $4" >{folder}/$node; done"""
    hosts = '[ "$*" = "show hostnames a[1-2]" ] && printf "127.0.0.1\\nanother\\n"'
    for name, text in (("srun", write), ("scontrol", hosts)):
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a[1-2]")
    assert subprocess.run(["bash", str(job)]).returncode == 0
    there = {"master": "127.0.0.1:29500", "node": 0, "passed_on": ["3", "a b"]}
    for node in (0, 1):
        assert (folder / str(node)).read_text().splitlines() == checked(options(script, **asked, **there)).command(node)


def test_a_rank_that_fails_ends_all_nodes_and_leaves_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = tmp_path / "broken.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('broken')\ntime.sleep(600)\n"
    )
    assert main(["run", str(script), "--nnodes", "2", "--ranks", "2", "--out", str(tmp_path)]) == 1
    told = capfd.readouterr().err
    assert "ValueError: broken" in told and "broken.py failed: node" in told and "exit code 1" in told
    assert not (tmp_path / "run.json").exists()


# ---- what is asked for ----


def options(script: Path, **others: Any) -> Namespace:
    given: dict[str, Any] = {"lab": str(script), "nnodes": 2, "backend": None, "ranks": None, "out": str(script.parent)}
    return Namespace(**{**given, "master": None, "node": None, "slurm": None, "passed_on": [], **others})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"lab": "09"}, "several nodes run a script, a Python file: got 09"),
    ({"nnodes": 0}, "--nnodes must be 1 to 1024: got 0"),
    ({"ranks": "3"}, "multiple of --nnodes, .*: got 3 for 2 nodes; try --ranks 4"),
    ({"ranks": "four"}, "multiple of --nnodes, .*: got four"),
    ({"node": 1}, "--node 1 needs --master"),
    ({"master": "here", "node": 0}, "--master must be HOST:PORT: got here"),
    ({"master": "here:70000", "node": 0}, "--master must be HOST:PORT: got here:70000"),
    ({"master": "here:29500"}, "--master needs --node, .* from 0 to 1: got None"),
    ({"master": "here:29500", "node": 2}, "from 0 to 1: got 2"),
    ({"backend": "nccl"}, "leave out --backend"),
    ({"slurm": "job", "master": "here:1", "node": 0}, "finds its nodes itself: leave out --master"),
]


@pytest.mark.parametrize(("others", "said"), WRONG)
def test_what_makes_no_sense_starts_nothing(script: Path, others: dict[str, Any], said: str):
    with pytest.raises(CourseError, match=said):
        checked(options(script, **others))


def test_a_job_never_replaces_the_script_and_a_file_that_cannot_be_written_is_one_sentence(
    script: Path, capsys: pytest.CaptureFixture[str]
):
    folder, before = script.parent, script.read_text()
    (folder / "link.sbatch").symlink_to(script)
    for job in ("", str(script), f"{folder}/../{folder.name}/{script.name}", str(folder / "link.sbatch")):
        assert main(["run", str(script), "--nnodes", "2", "--out", str(folder / "out"), "--slurm", job]) == 2
        assert "--slurm must be a file for the job" in capsys.readouterr().err and script.read_text() == before
    for job in (folder, script / "job", "/dev/full"):
        assert main(["run", str(script), "--nnodes", "2", "--out", str(folder / "out"), "--slurm", str(job)]) == 1
        told = capsys.readouterr().err
        assert "cannot be written" in told and len(told.splitlines()) == 1


@pytest.mark.parametrize("words", [["--node", "1"], ["--master", "here:1"], ["--slurm", "job"], ["--", "3"]])
def test_options_of_nodes_without_nodes_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["run", "00", *words]) == 2
    assert "add --nnodes 2" in capsys.readouterr().err


def test_each_of_two_machines_starts_its_own_command(script: Path):
    commands = []
    for node in (0, 1):
        nodes = checked(options(script, master="10.0.0.1:29500", node=node, ranks="16", passed_on=["--steps", "9"]))
        assert nodes.node == node and "GLOO_SOCKET_IFNAME" not in nodes.environment(node).keys() - os.environ.keys()
        commands.append([nodes.command(0), nodes.command(1)])
    assert commands[0] == commands[1], "what is printed is the same on both"
    first = " ".join(commands[0][0])
    assert "--nproc-per-node 8 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500" in first
    assert first.endswith("train.py --steps 9")


@given(gpus=st.integers(1, 16), nodes=st.integers(1, 4), ranks=st.integers(1, 32))
def test_nodes_on_one_machine_share_no_gpu(gpus: int, nodes: int, ranks: int):
    """Each rank has a GPU of its own, or nothing starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        asked = options(Path(__file__), nnodes=nodes, ranks=str(ranks))
        if ranks % nodes or ranks > gpus:
            with pytest.raises(CourseError, match="multiple of --nnodes" if ranks % nodes else "a separate GPU"):
                checked(asked)
            return
        plan = checked(asked)
        seen = [plan.environment(node)["CUDA_VISIBLE_DEVICES"].split(",") for node in range(nodes)]
    assert all(len(mine) == ranks // nodes for mine in seen)
    assert len({gpu for mine in seen for gpu in mine}) == ranks


# ---- what travels ----

TIMES = st.integers(0, 2**62)
SPANS = st.builds(RawSpan, st.text(), st.text(), st.text(), TIMES, TIMES, st.floats(0, 1e18), st.floats(0, 1e18))
CALLS = st.builds(
    Call,
    **{name: st.text() for name in ("op", "name", "group", "group_id", "phase")},
    **{name: st.integers(-1, 99) for name in ("sequence", "source", "target", "tag", "thread")},
    **{name: st.floats(0, 1e18) for name in ("size_bytes", "sent_bytes")},
    members=st.lists(st.integers(0, 99)).map(tuple),
    start_ns=TIMES,
    end_ns=st.one_of(st.just(0), TIMES),
)
MEASURED = st.builds(Measurement, TIMES, st.lists(SPANS, max_size=3), st.lists(CALLS, max_size=3))


@given(MEASURED)
def test_a_measurement_is_the_same_behind_the_network(measured: Measurement):
    assert rebuilt(Measurement, json.loads(json.dumps(asdict(measured)))) == measured


@given(MEASURED, st.integers(-(2**60), 2**60))
def test_another_clock_moves_all_times_and_no_duration(measured: Measurement, offset_ns: int):
    moved = shifted(measured, offset_ns)
    assert shifted(moved, -offset_ns).spans == measured.spans and moved.start_ns == measured.start_ns + offset_ns
    for before, after in zip(measured.calls, moved.calls, strict=True):
        assert after.start_ns - before.start_ns == offset_ns
        assert after.end_ns == (before.end_ns + offset_ns if before.end_ns else 0), "0 is: not seen"


@pytest.mark.parametrize("plain", [{}, {"start_ns": 0}, {"start_ns": [], "spans": [], "calls": []}])
def test_what_is_no_measurement_is_refused(plain: dict):
    with pytest.raises((KeyError, TypeError)):
        rebuilt(Measurement, plain)


@pytest.mark.parametrize("ahead_ns", [-3_600_000_000_000, 0, 5_000_000])
def test_the_clock_of_the_other_node_is_found_to_within_what_is_said(ahead_ns: int, monkeypatch: pytest.MonkeyPatch):
    """A store that takes a while each way, and the clock of rank 0 behind it."""
    now, numbers = [10**18], random.Random(0)

    class Store:
        def set(self, name: str, value: str) -> None:
            now[0] += numbers.randrange(1, 10**6)
            self.theirs = now[0] + ahead_ns

        def get(self, name: str) -> bytes:
            now[0] += numbers.randrange(1, 10**6)
            return str(self.theirs).encode()

    monkeypatch.setattr("lablib.real.nodes.time.time_ns", lambda: now[0])
    for _ in range(50):
        within_ns, offset_ns = _ask(Store(), "1/0")  # pyright: ignore[reportArgumentType]
        assert abs(offset_ns - ahead_ns) <= within_ns + 1
