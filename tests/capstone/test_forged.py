"""Forged and damaged reports: each is one sentence or a finding with rule, value and remedy, and exit code 1."""

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lablib.capstone import Parts, Report, findings, parse_report, read_board, report_toml, rubric
from lablib.capstone.lock import digest
from lablib.capstone.page import as_html, as_markdown
from lablib.capstone.report import PARTS
from lablib.cli.main import main
from lablib.text.files import parse_toml
from lablib.text.toml import toml_value

Tables = dict[str, Any]


@pytest.fixture
def tables(report: Report, brief_file: Path) -> Tables:
    """The tables of a finished report, in the folder of its brief."""
    return parse_toml(report_toml(replace(report, brief_name=brief_file.name)))


def put(tables: Tables, path: str, value: Any) -> Tables:
    """A copy with one value replaced: "alternatives.0.step_s"."""
    found = copy.deepcopy(tables)
    *folders, last = path.split(".")
    place: Any = found
    for each in folders:
        place = place[int(each)] if isinstance(place, list) else place.setdefault(each, {})
    place[last] = value
    return found


def relocked(tables: Tables, folder: Path) -> Tables:
    """With the digest computed by hand."""
    sha256 = digest(parse_report(tables, "forged", folder))
    for name in ("lock", "small_run", "large_run"):
        tables = put(tables, f"{name}.sha256", sha256)
    return tables


def written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return toml_value(value)


def checked_by_lab(text: str, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and lines of `lab capstone check`, without the table of points."""
    path = folder / "forged.toml"
    path.write_text(text)
    code = main(["capstone", *(words or ("check",)), str(path)])
    out, err = capsys.readouterr()
    lines = [each for each in out.splitlines() if each.startswith(("missing:", "consistency:", "brief:"))]
    return code, "\n".join([*lines, *err.splitlines()])


TEXTS = {
    "": "a report must have title: missing",
    "a = [1": "must be TOML",
    "a = " + "[" * 10_000: "nested too deeply",
    '{"title": "x"}': "must be TOML",
    "\x01": "must be TOML",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_file_that_is_no_report_is_one_sentence(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for action in ("check", "render"):
        code, said = checked_by_lab(text, tmp_path, capsys, action)
        assert code == 1 and TEXTS[text] in said and said.count("\n") == 0
    assert TEXTS[text] in read_board(tmp_path).entries[0].reason


def curve(report_losses: list[float], then: float) -> list[float]:
    return [report_losses[0], *[then - 1e-4 * step for step in range(len(report_losses) - 1)]]


# path, value, part of what is said
VALUES: list[tuple[str, Any, str]] = [
    ("predicted.small_loss", 3.0, "must be as they were locked"),
    ("predicted.method", "another one", "must be as they were locked"),
    ("lock.sha256", "", "must be as they were locked"),
    ("lock.at", "0001-01-01T00:00:00+14:00", "times must be as 2026"),
    ("lock.at", "2026-01-31", "times must be as 2026"),
    ("lock.at", "2026-01-31T10:00:00", "times must be as 2026"),
    ("large_run.at", "9999-12-31T23:59:59-12:00", "times must be as 2026"),
    ("lock", {}, "lock must have at: missing; lock it again"),
    ("lock", "x", "lock must be a table of fields: got 'x'; write [lock]"),
    ("large", [1], "large must be a table of fields"),
    ("reconciled.step_s", 0.05, "reconciled.step_s must be a table of fields"),
    ("alternatives", [[1]], "write [[alternatives]]"),
    ("version", 2, "unknown field 'version'"),
    ("small_run.gpu", "x", "unknown field 'small_run.gpu'"),
    ("brief", "one-billion", "large: data.batch_size must be a multiple of 64"),
    ("brief", "forged.toml", "unknown field"),
    ("small_run.losses", [], "not empty: got []; run it again"),
    ("small_run.losses", ["a"] * 10, "small_run.losses must be a list of numbers"),
    ("small_run.backend", "abacus", "small_run.backend must be one of sim, gloo, nccl"),
    ("small_run.own_code", ["everything"], "small_run.own_code must be a list of text, each one of schedule"),
    ("small_run.own_code", ["schedule"], "optimizer.schedule must be wsd"),
    ("small_run.own_code", ["all_reduce", "all_reduce"], "must be different parts"),
    ("small_run.own_code", ["all_reduce", "average_gradients"], "got both"),
    ("small_run.step_s", 1e-9, "small_run.step_s must be at least 0.0001 s"),
    ("small_run.step_s", 1e9, "must end within 7 days: got 10 steps of 1e+09 s"),
    ("small_run.memory_bytes", 1.0, "small_run.memory_bytes must equal the simulated one: got 1.0"),
    ("small.data.corpus", "no-such", "small.data.corpus must be one of"),
    ("large.model.num_layers", 10**6, "the model must have 0.001 to 0.003 billion parameters"),
    ("small.model.num_layers", 10**9, "model.num_layers must be at most 1,000 for a simulation"),
    ("alternatives.0.changes", ["parallel"], "must be name=value: got 'parallel'"),
    ("alternatives.0.step_s", 1e-5, "must be the planner's: got 1e-05"),
]
NO_AMOUNTS = (nan, inf, -1.0, 0.0, 1e300, 5e-324, "3", True, [1.0], {})
TABLES = ("predicted", "small_run", "large_run")
VALUES += [(f"{name}.step_s", value, f"{name}.step_s must be") for name in TABLES for value in NO_AMOUNTS]
NO_ERRORS = (nan, inf, "0", 1e300, -1e300)
VALUES += [("reconciled.loss.error", value, "reconciled.loss.error must be") for value in NO_ERRORS]
VALUES += [("small_run.losses", [5.5, value], "small_run.losses must be") for value in (nan, inf, -1.0, 1e308)]


@pytest.mark.parametrize(("path", "value", "said"), VALUES)
def test_a_forged_value_is_said_and_the_exit_code_is_1(
    tables: Tables, brief_file: Path, capsys: pytest.CaptureFixture[str], path: str, value: Any, said: str
):
    text = "\n".join(f"{name} = {written(each)}" for name, each in put(tables, path, value).items())
    code, found = checked_by_lab(text, brief_file.parent, capsys)
    assert code == 1 and said in found
    assert all(len(line) < 700 for line in found.splitlines())


def test_a_field_that_is_left_out_is_said(tables: Tables, brief_file: Path, capsys: pytest.CaptureFixture[str]):
    for name in set(tables) - {"small_ranks", "alternatives"}:  # ranks are 1, and a report may compare nothing
        left = {each: value for each, value in tables.items() if each != name}
        text = "\n".join(f"{each} = {written(value)}" for each, value in left.items())
        code, found = checked_by_lab(text, brief_file.parent, capsys)
        assert code == 1 and name.replace("_", " ")[:6] in found.replace("_", " ")


CURVES = {
    "constant": (lambda losses: [losses[0]] * len(losses), "differ from step to step"),
    "three steps repeated": (lambda losses: (losses[:3] * len(losses))[: len(losses)], "got 3 different ones in 10"),
    "learned at once": (lambda losses: curve(losses, 0.01), "at most 1.5 nats: got 5.535"),
    "zero": (lambda losses: [losses[0], *[0.0] * (len(losses) - 1)], "at most 1.5 nats"),
    "begun trained": (lambda losses: [each - 2 for each in losses], "must be near ln of the vocabulary"),
    "longer": (lambda losses: [*losses, losses[-1] - 0.1], "as many as the steps, 10: got 11"),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_that_no_run_gives_is_found_with_predictions_and_digest_that_fit(
    tables: Tables, brief_file: Path, name: str
):
    change, said = CURVES[name]
    losses = change(tables["small_run"]["losses"])
    forged = put(put(tables, "small_run.losses", losses), "predicted.small_loss", max(losses[-1], 0.01))
    forged = put(forged, "reconciled.small_loss.error", max(losses[-1], 0.01) - losses[-1])
    found = findings(parse_report(relocked(forged, brief_file.parent), "forged", brief_file.parent))
    assert any(said in each.text for each in found)


@pytest.mark.parametrize("share", [1.01, 1.0001])
def test_a_budget_overspent_by_a_little_is_found(report: Report, share: float):
    hours = report.brief.gpus * report.large.num_steps * report.large_run.step_s / 3600  # pyright: ignore
    brief = replace(report.brief, gpu_hours=hours / share)
    days = replace(report.brief, days=hours / report.brief.gpus / 24 / share)
    for other, said in ((brief, "GPU hours: got"), (days, "must end in")):
        found = [each.text for each in findings(replace(report, brief=other)) if each.kind == "brief"]
        assert len(found) == 1 and said in found[0]


def test_a_digest_by_hand_hides_a_changed_prediction_as_the_limits_say(tables: Tables, brief_file: Path):
    """The lock has no secret; the page and lock.py say so."""
    last = tables["small_run"]["losses"][-1]
    forged = put(put(tables, "predicted.small_loss", last), "reconciled.small_loss.error", 0.0)
    report = parse_report(relocked(forged, brief_file.parent), "forged", brief_file.parent)
    assert findings(report) == []
    assert "prove nothing against an edit with intent" in as_html(report, [])


def test_alternatives_that_change_no_plan_have_no_points(report: Report):
    planned = report.alternatives[0]
    noise = [("monitor.every=7",), ("data.seed=7",), ("num_steps=7",), ("optimizer.lr=0.5",)]
    for many in ([replace(planned, changes=each) for each in noise], [planned, planned]):
        points = {each.name: each.points for each in rubric(replace(report, alternatives=tuple(many)), [])}
        assert points["alternatives"] == (0.0 if many[0] != planned else 2.5)
    with_noise = (planned, replace(planned, changes=(*planned.changes, "monitor.every=7")))
    points = {each.name: each.points for each in rubric(replace(report, alternatives=with_noise), [])}
    assert points["alternatives"] == 2.5


def places(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all values."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in pairs:
        yield f"{path}{name}"
        yield from places(each, f"{path}{name}.")


DAMAGE = st.one_of(
    st.floats(), st.integers(), st.booleans(), st.text(max_size=20), st.lists(st.floats(), max_size=3), st.just({}),
    st.sampled_from([5e-324, 1e-12, 1e24, 1e308, -0.0, nan, inf, 2**63, 10**400, "none", "9999-12-31T23:59:59-12:00"]),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damaged_value_is_read_and_rendered_or_is_one_error(tables: Tables, brief_file: Path, data: st.DataObject):
    path = data.draw(st.sampled_from([each for each in places(tables) if not each.startswith(("large.", "small."))]))
    value = data.draw(DAMAGE)
    folder = brief_file.parent
    *folders, last = path.split(".")
    if folders and last.isdigit():  # in a list
        at, index = ".".join(folders), int(last)
        whole: Any = tables
        for each in folders:
            whole = whole[int(each)] if isinstance(whole, list) else whole[each]
        path, value = at, [value if i == index else each for i, each in enumerate(whole)]
    try:
        report = parse_report(put(tables, path, value), "forged", folder)
    except ValueError as error:
        assert str(error).startswith("forged: ") and ("must" in str(error) or "unknown" in str(error))
        return
    found = findings(report, simulate=False)
    assert all("must" in each.text or "alternative" in each.text or "small_run.own_code" in each.text for each in found)
    assert as_html(report, found).startswith("<!doctype") and as_markdown(report, found)


def test_the_names_of_the_parts_are_those_of_the_small_run():
    assert tuple(one.name for one in fields(Parts)) == PARTS
