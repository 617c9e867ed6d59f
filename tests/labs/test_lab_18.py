"""Lab 18: the steps of a capstone without its long runs, and its forecast."""

from functools import partial
from math import log
from pathlib import Path

import pytest

from lablib.capstone import QUANTITIES, LargeRun, Report, SmallRun, find_brief, findings, plan_step, read_report
from lablib.capstone.report import CHOICES
from lablib.course import guess
from lablib.labs import lab18
from lablib.labs.lab18 import ASKED, STARTS, Capstone

LATER = "2100-01-01T00:00:00+01:00"


def test_the_forecast_of_an_exact_curve_is_exact():
    curve = [1.5 + 3 / t**0.4 for t in range(1, 30)]
    assert lab18.forecast(range(1, 30), curve, 500) == pytest.approx(1.5 + 3 / 500**0.4, abs=1e-3)


@pytest.mark.parametrize("name", STARTS)
def test_the_plan_of_each_brief_is_possible_and_fits_by_the_planner(name: str):
    project = Capstone(name, 2, "sim", True)
    assert project.planned(project.changes).fits
    assert not find_brief(name).broken_sizes(project.report.large.model)
    project.choose(None, {"other": ["parallel.zero_stage=1", "data.micro_batch=1", "memory.recompute=full"]})
    assert [each for each in findings(project.report) if each.kind == "consistency"] == []


def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(report: Report, backend: str, parts: object) -> SmallRun:
        assert report.lock is not None
        losses = tuple(log(256) - 0.05 * step for step in range(report.small.num_steps))
        return SmallRun(LATER, report.lock.sha256, backend, 0.05, 8e6, losses)

    def large(report: Report) -> LargeRun:
        assert report.lock is not None
        return LargeRun(LATER, report.lock.sha256, 0.3, 30e9)

    monkeypatch.setattr(lab18, "train_small", small)
    monkeypatch.setattr(lab18, "simulate_large", large)
    monkeypatch.setattr(lab18, "findings", partial(findings, simulate=False))


def test_a_project_from_the_choice_to_the_leader_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("LAB_WORK", str(tmp_path))
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress.json"))
    stubs(monkeypatch)
    project = Capstone("one-billion", 2, "sim", True)
    plans = {"two tensor ranks": ["parallel.tensor=2"], "recomputed": ["memory.recompute=full"]}
    assert "nats by the scaling law" in project.choose(None, plans)
    table = project.run()(0.32, 31.0, 2.6, 55.0)
    assert list(table.index) == list(QUANTITIES) and all(text.endswith(": within") for text in table["band"])
    capsys.readouterr()
    mine = guess("loss", 2.5, False, "nats"), guess("share", 1, False, "%"), guess(ASKED, [0.32, 31, 2.6, 60], False)
    project.compare_guesses(*mine)
    said = capsys.readouterr().out
    assert "loss: you guessed 2.5 nats; the answer is 2.72 nats: 8.1% too low" in said  # of the last six
    assert "small step: you guessed 60 ms; the answer is 50 ms: 20% too high" in said
    assert said.endswith("guesses: 4 of 4 within 20%\n")
    planned, simulated = project.terms()
    step_s = plan_step(project.report.large, "dgx-h100", 64).step_time_s
    assert planned.keys() == simulated.keys() and sum(planned.values()) == pytest.approx(step_s)
    assert list(project.terms_table().index) == [*simulated, "step", "your prediction"]
    reasons: dict[str, str] = dict.fromkeys(CHOICES, "a b c d")
    assert "has 33 words of yours" in project.explain(reasons, {"step_s": "within the band"}, "It holds.")
    assert "has 0 words of yours" in project.explain(dict.fromkeys(CHOICES, "..."), {}, "")
    project.explain(reasons, {"step_s": "within the band"}, "It holds.")
    with pytest.raises(ValueError, match="explanations are of step_s"):
        project.explain(reasons, {"speed": "x"}, "")
    project.judge()
    assert "No findings." in capsys.readouterr().out
    assert project.save(None) == "Nothing is saved without a name."
    assert "Ada.toml and the page next to it: written" in project.save("Ada")
    saved = read_report(tmp_path / "18_reports" / "Ada.toml")
    assert saved.author == "Ada" and findings(saved, simulate=False) == []
    assert "<svg" in (tmp_path / "18_reports" / "Ada.html").read_text()
    project.board()
    out = capsys.readouterr().out
    assert "Ada.toml" in out and "night_on_64_gpus.toml" in out and "a_first_try.toml" in out
