"""`lab bench`: limits at their edges, the measured numbers, and refusals in one sentence."""

import json
from pathlib import Path

import pytest

from lablib.cli.main import main

FILE = str(Path(__file__).parents[2] / "examples" / "train.toml")
SMALL = ["optimizer.num_warmup=1", "model.num_layers=1", "model.d_model=16", "--steps", "2", "--warm-up", "1"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the machine's own corpora."""
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "data"))


def bench(path: Path, *words: str) -> tuple[int, dict]:
    code = main(["bench", FILE, *SMALL, "--json", str(path), *words])
    return code, json.loads(path.read_text())


def test_a_limit_holds_at_its_edge_and_not_beyond(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Virtual time is the same in every run, so the result of one is the limit of the next."""
    path = tmp_path / "result.json"
    _, first = bench(path, "--ranks", "2")
    assert first["tokens_per_s"] == pytest.approx(16 * 64 / first["step_s"]) and first["broken"] == []
    limits = {"tokens-per-s": "tokens_per_s", "step-s": "step_s", "memory": "memory_bytes"}
    kinds = {option: ("min", 1.001) if option == "tokens-per-s" else ("max", 0.999) for option in limits}
    edges = [f"--{kinds[option][0]}-{option}={first[name]!r}" for option, name in limits.items()]
    of_all = {name: first[name] for name in limits.values()}
    assert bench(path, "--ranks", "2", *edges) == (0, first | {"limits": of_all})
    for option, name in limits.items():  # the last value of an option counts: the others stay at their edges
        kind, beyond = kinds[option]
        code, broken = bench(path, "--ranks", "2", *edges, f"--{kind}-{option}={first[name] * beyond:.9f}")
        assert (code, broken["broken"]) == (1, [name])
        assert capsys.readouterr().out.count("BROKEN") == 1


def test_scaling_is_per_replica_at_the_same_batch_per_replica(tmp_path: Path):
    path, axes = tmp_path / "result.json", ["parallel.tensor=2", "--ranks", "4"]
    code, both = bench(path, *axes, "--min-scaling", "1.01")
    _, one = bench(path, "parallel.tensor=2", "--ranks", "2", "data.batch_size=8")
    assert both["scaling"] == pytest.approx(both["tokens_per_s"] / (2 * one["tokens_per_s"]))
    assert 0.5 < both["scaling"] < 1 and (code, both["broken"]) == (1, ["scaling"])


def test_real_processes_are_measured(tmp_path: Path):
    code, result = bench(tmp_path / "result.json", "--ranks", "2", "--backend", "gloo", "--min-tokens-per-s", "1")
    assert code == 0 and result["step_s"] > 0 and result["memory_bytes"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-memory", "5XB"], "--max-memory must be a number of bytes with a unit: got 5XB; try 24GB"),
        (["--max-memory", "5GB", "--backend", "gloo"], "--max-memory needs a measured memory: gloo has none"),
        (["--steps", "0"], "--steps must be 1 or more: got 0"),
        (["--warm-up", "-1"], "--warm-up must be 0 or more: got -1"),
        (["optimizer.lr=fast"], "optimizer.lr must be"),
        (["--ranks", "3"], "data.batch_size must be a multiple of 3"),
        (["--min-tokens-per-s", "nan"], "--min-tokens-per-s must be a finite number above 0: got nan; try 1"),
        (["--max-step-s", "-1"], "--max-step-s must be a finite number above 0: got -1; try 1"),
        (["--json", "/dev/null/result.json"], "/dev/null/result.json cannot be written: "),
    ],
)
def test_errors_are_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", FILE, *words]) == 2
    assert message in capsys.readouterr().err
