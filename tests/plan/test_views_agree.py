"""A number that stands in two views of one prediction is the same in both: its figures, its tables, its sentences."""

# pandas: columns and sums are typed as either
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

import re

import pytest
from hypothesis import given, settings

from lablib.cli import plan as cli_plan
from lablib.figures import describe, figure_communication, figure_waterfall, table
from lablib.figures.plans.plan_memory import figure_plan_memory
from lablib.figures.plans.waterfall import kind_of_part
from lablib.plan import Parallel, Prediction, predict, predict_many, search
from lablib.plan.prediction import AXES
from lablib.plan.predictions import NUMBERS, SPLIT
from lablib.plan.search_result import row_of
from tests.plan.test_metamorphic import questions

PARTS = {"host link": "host"} | {f"{name} axis": name for name in AXES if name not in ("host", "pipeline")}


def percent_before(words: str, text: str) -> float:
    """The percentage that a sentence has before these words; 0 where it has none."""
    found = re.search(rf"([\d.]+)% {words}", text)
    return float(found[1]) if found else 0.0


def check_views(found: Prediction) -> None:
    """Everything that two views of one prediction both say."""
    close = {"rel": 1e-9, "abs": 1e-9 * found.step_time_s}
    for part, axis in PARTS.items():
        assert found.parts[part] == pytest.approx(found.communication[axis][1], **close), part
    waterfall, axes = figure_waterfall(found), figure_communication(found)
    parts, seconds = table(waterfall), table(axes)
    exposed_s = parts[parts["kind"] == "communication"]["seconds (s)"].sum()
    assert exposed_s == pytest.approx(found.exposed_communication_s, **close)
    assert seconds["exposed (s)"].sum() == pytest.approx(found.exposed_communication_s, **close)
    assert parts["seconds (s)"].sum() == pytest.approx(found.step_time_s, rel=1e-6)
    assert parts["share of the step (%)"].sum() == pytest.approx(100, rel=1e-6)
    share = seconds["exposed share of the step (%)"].sum()
    assert share == pytest.approx(100 * found.exposed_communication_s / found.step_time_s, abs=1e-6)
    if sum(total for total, _ in found.communication.values()):
        assert percent_before("of the step", describe(axes)) == pytest.approx(share, abs=0.051)
        said = percent_before("exposed communication", describe(waterfall))
        assert said == pytest.approx(share if said else 0.0, abs=0.051) and (said or share < 0.051)
    shown = found.table()["time_s"].drop("step")
    assert all(parts.set_index("part")["seconds (s)"][name] == value for name, value in shown.items())
    stages = table(figure_plan_memory(found))
    assert list(stages["peak (B)"]) == list(found.stage_bytes) == found.memory_table()["peak_bytes"].tolist()


@settings(max_examples=20)
@given(question=questions())
def test_every_view_of_a_prediction_says_the_same(question):
    found = predict(**question)
    check_views(found)
    split = question.pop("parallel")
    axes = {name: getattr(split, name) for name in NUMBERS if hasattr(split, name) and name != "expert_tensor"}
    choices = {name: getattr(split, name) for name in (*SPLIT, "zero_plus_plus")}
    (many,) = predict_many(**(question | axes | choices))
    assert many.parts == pytest.approx(found.parts, rel=1e-9, abs=1e-12)
    columns = predict_many(**(question | axes | choices)).exposed_s
    assert {name: float(each[0]) for name, each in columns.items()} == pytest.approx(
        {name: exposed for name, (_, exposed) in found.communication.items()}, rel=1e-9, abs=1e-9 * found.step_time_s
    )


def test_what_is_sent_again_for_recomputation_is_communication_everywhere():
    # The step's figure said 7.6% and the other 15.0% of the same prediction: messages of recomputation stood among it.
    found = predict("gpt3-175b", "dgx-a100", Parallel(data=8, tensor=8, pipeline=8), 1536, recompute="full")
    check_views(found)
    assert [kind_of_part(part) for part in PARTS] == ["communication"] * len(PARTS)


def test_the_command_prints_what_the_search_found():
    found = search("llama-3-8b", "dgx-h100", 64, nodes=1, schedule="1f1b", recompute="none", context=1)
    said, text = cli_plan.to_json(found, 3), cli_plan.text(found, 3)
    for row, each in zip(said["best"], found.top(3), strict=True):
        assert row == row_of(each) and row["step_time_s"] == each.step_time_s
        assert row["peak_memory_bytes"] == each.peak_memory_bytes
        assert any(str(each.parallel) in line and f"{each.mfu:.1%}" in line for line in text.splitlines())
    assert said["tried"] == len(found.plans) and f"{said['fit']:,} fit" in text
