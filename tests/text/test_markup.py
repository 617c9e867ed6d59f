"""Markup in a name is shown, never obeyed: in every table, figure, page and widget that can show the name."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lablib
from lablib import Allocation, Memory, Reconciliation, Run, Span, Timeline, Traffic, Transfer, figures, labs
from lablib.batches.packing import best_fit
from lablib.course import guess
from lablib.course.checks.expect import Measured
from lablib.course.checks.result import Hint, Result
from lablib.course.show_source import ShownSource
from lablib.errors import DeadlockError, Wait
from lablib.figures.describe import describe
from lablib.figures.show import caption_html, picture_bundle
from lablib.hardware import Cluster, Device, FatTree, Link, load_cluster
from lablib.kernels.accesses import Access, Launch, Operand
from lablib.labs import lab02, lab03, lab04, lab05, lab06, lab07, lab11, lab12, lab13, lab14, lab15, lab16, lab17, lab18
from lablib.memory.ways_to_fit import Way
from lablib.parallel import Mesh
from lablib.pipeline import Plan, equal_memory, replay
from lablib.pipeline.simulation import simulate
from lablib.plan import Parallel, Prediction, search
from lablib.precision.exponents import ExponentCounts
from lablib.precision.formats import FP16
from lablib.record.comparison import RecordedReconciliation
from lablib.script.report import write_report
from lablib.site.book.figures import exploration_html
from lablib.studies.compression import CompressedRun
from lablib.studies.expert_against_dense import AgainstDense
from lablib.studies.optimizers import OptimizerResult as Trial
from lablib.studies.optimizers import difference
from lablib.studies.placement import PlacedMesh
from lablib.studies.step_memory import memory_of_step
from lablib.studies.tensor_time import TensorLayerTime
from lablib.text.markup import in_html, in_picture, link_in_markdown, paragraph, plain
from lablib.validation import explain, published_rows, score
from lablib.validation.page import Results, markdown
from lablib.widgets import Choice, explore

MARK = "<img src=x onerror=alert(1)>\"><script>alert(2)</script>&'<a href='javascript:alert(3)'>"
ROOT = Path(__file__).parents[2]
DEVICE = Device(MARK, {"float32": 1e12, "bfloat16": 4e12}, 2000.0, 1e12)
CLUSTER = Cluster(MARK, DEVICE, 8, Link(MARK, 1e-6, 1e11), Link(MARK, 1e-6, 1e10), FatTree(), MARK)


def spans(slow: float = 1.0) -> list[Span]:
    """A step of two ranks in which every name is the mark."""
    found = []
    for rank in (0, 1):
        found += [Span(rank, "compute", MARK, MARK, 0.0, slow, 2e9, 1e6, "float32", False, MARK)]
        found += [Span(rank, f"comm:{MARK}", MARK, MARK, slow, 2 * slow, 0.0, 25e6, "", False, MARK)]
    return found


def timeline(slow: float = 1.0) -> Timeline:
    return Timeline.of(spans(slow), 2)


TRAFFIC = Traffic((Transfer(MARK, MARK, (0, 1), MARK, 1e6, (1e6, 1e6), 0.0, 1.0),))
MEMORY = Memory(tuple(Allocation(rank, "activation", 1000, 0.0, 2.0, MARK, MARK, MARK) for rank in (0, 1)), 2)


OPERAND = Operand(MARK, (2,), (1,), 4, 0)
LAUNCH = Launch(MARK, (1, 1, 1), {MARK: OPERAND}, [Access((0, 0, 0), "load", MARK, np.arange(2), 4)])


def run_of(slow: float = 1.0) -> Run:
    said = {"notes": (MARK,), "memory": MEMORY, "device": DEVICE}
    return Run([MARK, MARK], timeline(slow), TRAFFIC, [MARK, MARK], MARK, MARK, 1.0, **said)


def prediction(**changes: Any) -> Prediction:
    stage = dict.fromkeys(("parameter", "gradient", "optimizer state", "activation", "communication buffer"), 1e9)
    numbers: dict[str, Any] = {"num_gpus": 8, "batch": 8, "micro_batch": 1, "num_microbatches": 8, "seq_len": 100}
    numbers |= {"step_time_s": 2.0, "model_flops": 1e15, "hardware_flops": 1e15, "peak_flops_per_s": 1e14}
    numbers |= {"parts": {MARK: 1.0, "bubble and messages": 1.0}, "bubble_fraction": 0.1}
    numbers |= {"communication": {MARK: (1.0, 0.5)}, "memory": (stage | {"other": 1e9},), "memory_limit_bytes": 8e9}
    names = dict.fromkeys(("name", "cluster", "schedule", "recompute", "precision"), MARK) | {"notes": (MARK,)}
    return Prediction(**numbers | names | {"parallel": Parallel(data=8)} | changes)


def against_dense_model() -> AgainstDense:
    return AgainstDense(8, prediction(), prediction(), None, 1e9)


def found_by_search() -> Any:
    return search("gpt3-13b", CLUSTER.replace(device=replace(lablib.DEVICES["A100-80GB-SXM"], name=MARK)), 16, gpus=8)


def explorer(interactive: bool) -> Any:
    def compute(choice: str) -> dict[str, list[float]]:
        if choice.endswith("b"):
            raise ValueError(MARK)
        return {MARK: [1.0, 2.0]}

    control = Choice("choice", MARK, (f"{MARK}a", f"{MARK}b"), f"{MARK}a")
    return explore(compute, lambda series: figures.figure_lines([0, 1], series, MARK, MARK), [control], interactive)


def all_explored() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_PICTURES", "all")
        return explorer(False)


RESULT = Result(MARK, MARK, MARK, "failed", MARK, MARK, MARK, (Measured(MARK, MARK),), MARK, MARK, (MARK,))
ABOUT = dict.fromkeys(("machine", "ranks", "backend", "date", "torch", "python"), MARK)
RECORDED = RecordedReconciliation(ABOUT, MARK, MARK, [{"name": MARK}])
VALUES: dict[str, Callable[[], list[Any]]] = {
    "Reconciliation": lambda: [Reconciliation.of(run_of(), [run_of(2.0)], notes=(MARK,))],
    "RecordedReconciliation": lambda: [RECORDED],
    "ShownSource": lambda: [ShownSource(MARK, MARK, True), ShownSource(MARK, MARK, False)],
    "SearchResult": lambda: [found_by_search()],
    "Prediction": lambda: [prediction()],
    "Traffic": lambda: [TRAFFIC],
    "Memory": lambda: [MEMORY],
    "Summary": lambda: [run_of().summary()],
    "Result": lambda: [RESULT, replace(RESULT, status="passed"), replace(RESULT, status="not attempted")],
    "Hint": lambda: [Hint(MARK, (MARK,), 1), Hint(MARK, (), 0)],
    "Explorer": lambda: [explorer(True)],
    "Pictures": lambda: [explorer(False)],
    "AllPictures": lambda: [all_explored()],
    "Explanation": lambda: [replace(explain({"model": "gpt2", "cluster": "dgx-a100"}, 1.0), terms={MARK: 1.0})],
    "Guesses": lambda: [guess([MARK], [1.0], False)],
}


@dataclass(frozen=True)
class Row:
    """A published run, but for its name."""

    step_time_s: float = 3.0
    peak_memory_bytes: float = 1e9
    reserved_bytes: float = 1e9
    device_bytes: float = 1e9
    fits: bool = True


def report() -> Any:
    rows = [replace(row, id=MARK, source={**row.source, "title": MARK}) for row in published_rows()[::40]]
    return score(rows, lambda **_: Row())


DEADLOCK = DeadlockError(MARK, [Wait(0, f"waits in {MARK}", MARK, MARK, (1,), MARK, MARK), Wait(1, MARK, MARK)])
SIZES = [1e3, 1e6]
NODES = [figures.Node(MARK, 0.0, 0.0, MARK), figures.Node("b", 1.0, 0.0)]
CURVE, APART = [5.5, 3.0], difference({1: 2.0, 2: 2.1}, {1: 1.0, 2: 2.2})
COMPRESSED = {f"{MARK} {h}": CompressedRun(f"{MARK} {h}", 1e-3, True, {1: 2.0, 2: 2.1}, 1e4 / h, h) for h in (1, 4)}
RESULTS = {
    "adamw": Trial("adamw", 1e-3, 0.1, 8, True, {1: 2.1, 2: 2.3}, [0, 512], CURVE, 8.0, 4.0, 1.0, 1.0),
    MARK: Trial(MARK, 1e-4, 0.0, 7, True, {1: 2.2, 2: 2.25}, [0, 512], CURVE, 4.0, 4.0, 0.9, 0.7),
}
WAYS = [Way(MARK, 8e9, 1.0, 3.0), Way("b", 1e9, 2.5, 3.0)]
AFFORDED = equal_memory(2, 4, 4.0)[0]
EXPONENTS = ExponentCounts({-30: 1})
SENT = {MARK: {"node": 1.0, "rail": 1.0, "across": 0}}
PLACED = PlacedMesh(Mesh(**{MARK: 2}), CLUSTER, prediction(), {MARK: 0.5}, SimpleNamespace())
vars(PLACED)["sent_bytes"] = SENT  # in place of what a simulated step would give
FIGURES: dict[str, Callable[[], Any]] = {
    "figure_timeline": lambda: figures.figure_timeline(timeline(), title=MARK),
    "figure_reconcile": lambda: figures.figure_reconcile(timeline(), timeline(2.0), labels=(MARK, f"{MARK}2")),
    "figure_memory": lambda: figures.figure_memory(MEMORY, timeline(), device=DEVICE),
    "figure_allocator": lambda: figures.figure_allocator(MEMORY.replay_allocator(), title=MARK),
    "figure_pipeline_simulation": lambda: figures.figure_pipeline_simulation(
        simulate(Plan.parse(MARK, ["0F0 0B0"])), 1.0
    ),
    "figure_pipeline": lambda: figures.figure_pipeline(replay(Plan.parse(MARK, ["0F0 0B0"]))),
    "figure_traffic": lambda: figures.figure_traffic(TRAFFIC, 2),
    "figure_traffic_matrix": lambda: figures.figure_traffic_matrix({MARK: TRAFFIC}, 2, title=MARK),
    "figure_roofline": lambda: figures.figure_roofline(timeline(), DEVICE),
    "figure_waterfall": lambda: figures.figure_waterfall(prediction()),
    "figure_communication": lambda: figures.figure_communication(prediction()),
    "figure_plan_memory": lambda: figures.figure_plan_memory(prediction(), title=MARK),
    "figure_plans": lambda: figures.figure_plans([1.0, 2.0], [9e9, 4e9], 80e9, [MARK, f"{MARK}2"]),
    "figure_predictions": lambda: figures.figure_predictions(found_by_search().plans, title=MARK),
    "figure_waits": lambda: figures.figure_waits(DEADLOCK),
    "figure_collective_cost": lambda: figures.figure_collective_cost(SIZES, {MARK: [1e-4, 1e-3]}, {MARK: 1e4}),
    "figure_scaling": lambda: figures.figure_scaling([1, 2], {MARK: [1.0, 0.9]}, title=MARK),
    "figure_metrics": lambda: figures.figure_metrics(
        [0, 1], {MARK: [3.0, 2.0]}, [(MARK, "above", 2.0)], [(MARK, MARK, 0.0, 1.0)], title=MARK
    ),
    "figure_lines": lambda: figures.figure_lines([0, 1], {MARK: [3.0, 2.0]}, MARK, MARK, y_unit=MARK),
    "figure_topology": lambda: figures.figure_topology(NODES, [figures.DrawnLink(MARK, "b", MARK)], MARK, MARK),
    "figure_step_memory": lambda: figures.figure_step_memory(replace(memory_of_step("gpt2", 64), name=MARK)),
    "figure_time_memory": lambda: lab03.figure_time_memory({MARK: WAYS}),
    "figure_exponents": lambda: lab02.figure_exponents({MARK: EXPONENTS}, [replace(FP16, name=MARK)], (-32, 0), MARK),
    "figure_differences": lambda: lab05.figure_differences({MARK: APART}, MARK),
    "figure_loss_curves": lambda: lab05.figure_loss_curves(RESULTS),
    "figure_loss_and_bytes": lambda: lab05.figure_loss_and_bytes(RESULTS),
    "figure_loss_against_bytes": lambda: lab11.figure_loss_against_bytes(COMPRESSED),
    "figure_loss_over_h": lambda: lab11.figure_loss_over_h(COMPRESSED),
    "figure_sign_of_noise": lambda: lab05.figure_sign_of_noise([0.1, 1.0], {MARK: [0.1, 0.6]}, {"b": [0.1, 1.0]}),
    "figure_blocks": lambda: lab05.figure_blocks([1.0, 100.0], {MARK: [0.01, 0.02]}),
    "figure_projection": lambda: lab05.figure_projection([1, 2, 4], {MARK: [0.5, 0.2, 0.1]}),
    "figure_schedules": lambda: lab04.figure_schedules({MARK: [0.5, 1.0]}, {MARK: [(1, 3.0), (2, 2.5)]}, MARK),
    "figure_staircase": lambda: lab06.figure_staircase([1, 2], MARK, [1.0, 2.0], [0.5, 0.5], MARK),
    "figure_coordinates": lambda: lab04.figure_coordinates({MARK: {32: [{MARK: 1.0}], 64: [{MARK: 1.1}]}}),
    "figure_rates": lambda: lab04.figure_rates({MARK: {32: {0.25: [3.0], 0.5: [2.0]}}}, MARK, MARK),
    "figure_packing": lambda: lab07.figure_packing({MARK: best_fit([3, 5, 2], 8)}),
    "figure_idle_shares": lambda: figures.figure_idle_shares([1, 2], {MARK: [0.5, 0.2]}, title=MARK),
    "figure_tiles": lambda: lab06.figure_tiles(LAUNCH),
    "figure_batch_splits": lambda: figures.figure_batch_splits([prediction()], title=MARK),
    "figure_tensor_times": lambda: figures.figure_tensor_times([TensorLayerTime("", 2, 2.0, 0.0, 0.5)], 1, title=MARK),
    "figure_placements": lambda: lab14.figure_placements([PLACED], title=MARK),
    "figure_matrices": lambda: lab12.figure_matrices({MARK: torch.ones(1, 2)}, {MARK: (1, 2)}, MARK, MARK),
    "figure_context_times": lambda: lab15.figure_context_times([1024, 2048], {MARK: [0.5, 0.9]}, title=MARK),
    "figure_expert_load": lambda: lab15.figure_expert_load([[1.0, 2.0]], [0], title=MARK),
    "figure_rank_loads": lambda: lab15.figure_rank_loads({MARK: [1.0, 2.0]}, title=MARK),
    "figure_expert_times": lambda: lab15.figure_expert_times([against_dense_model()], title=MARK),
    "figure_night": lambda: lab17.figure_night([(0.0, 9.0), (60.0, None)], 12.0, {MARK: [60.0]}),
    "figure_equal_memory": lambda: lab13.figure_equal_memory({4.0: [replace(AFFORDED, schedule=MARK)]}, title=MARK),
}  # fmt: skip


NAMELESS = {
    one.__name__: one
    for one in (
        *(lab04.figure_steps_law, lab05.figure_singular_values, lab07.figure_loading, lab16.figure_question),
        *(lab17.figure_restarts, lab17.figure_intervals, lab17.figure_rules, lab18.figure_question),
    )
}  # given numbers alone
UNSEEN = {
    "figure_evidence",  # its lines of code are run, not shown
    "figure_network",  # its texts are of the class of the network
    "figure_over_rule",  # its texts are names of models in the catalogue
}


class Tags(HTMLParser):
    """The tags that a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_dead(page: str) -> None:
    """Nothing of the mark is a tag or an attribute; plotly's own scripts may be."""
    for tag, attributes in Tags(page).found:
        assert tag not in ("img", "a") and "onerror" not in attributes, (tag, attributes)
    assert "<script>alert" not in page and "<img" not in page


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for one in value.values() for text in strings(one))
    elif isinstance(value, list):
        yield from (text for one in value for text in strings(one))


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(lablib.__path__, "lablib."):
        needed = {"lablib.kernels.interpreter": "triton", "lablib.course.grading.grades_export": "nbgrader"}.get(
            found.name
        )
        is_there = not needed or importlib.util.find_spec(needed)
        if ".checks.lab_" not in found.name and is_there:
            yield importlib.import_module(found.name)


def test_every_class_that_makes_html_is_tried_here():
    makers = ("_repr_html_", "_repr_mimebundle_", "_ipython_display_", "_repr_svg_", "_repr_markdown_")
    ours = {one for module in modules() for _, one in inspect.getmembers(module, inspect.isclass)}
    showing = {c.__name__ for c in ours if c.__module__.startswith("lablib") and set(makers) & vars(c).keys()}
    assert showing == VALUES.keys()


def test_every_figure_is_tried_here():
    found = [
        figures,
        *(importlib.import_module(f"lablib.labs.{one.name}") for one in pkgutil.iter_modules(labs.__path__)),
    ]
    names = {name for module in found for name in dir(module) if name.startswith("figure_")}
    assert FIGURES.keys() | NAMELESS.keys() | UNSEEN == names
    for draw in NAMELESS.values():  # no text, and nothing that could hold one
        assert "str" not in str(inspect.signature(draw).replace(return_annotation=None))


def test_html_is_made_in_one_place():
    """What the tests above cannot see, a page made by hand, is found by its words."""
    pattern = re.compile(r"\.to_html\(|from html import|import html\b|html\.escape")
    found = {p.relative_to(ROOT).as_posix() for p in (ROOT / "lablib").rglob("*.py") if pattern.search(p.read_text())}
    # The other asks plotly for a page, which writes its texts as JSON.
    assert found == {"lablib/text/markup.py", "lablib/figures/show.py"}


@pytest.mark.parametrize("name", VALUES)
def test_no_value_shows_a_name_as_markup(name, monkeypatch):
    displayed: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda *values, **_: displayed.extend(values))
    for value in VALUES[name]():
        if hasattr(value, "_repr_html_"):
            page = value._repr_html_()
            assert "alert(1)" in page or name in ("Summary", "Memory")  # whose tables have numbers alone
            displayed.append({"text/html": page})
        elif name == "Explorer":
            for choice in value.controls["choice"].options:
                value.controls["choice"].value = choice
                assert_dead(value.caption.table_html)
        elif name == "AllPictures":  # `lab site` makes the page
            assert_dead(exploration_html(value.record, MARK))
            displayed += [{"text/html": picture.get("caption", "")} for picture in value.record["pictures"]]
        else:
            value._ipython_display_()
    for one in displayed:
        assert_dead(one.get("text/html", "") if isinstance(one, dict) else one._repr_html_())


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_shows_a_name_as_markup(name):
    figure = FIGURES[name]()
    layout = {key: value for key, value in json.loads(figure.to_json())["layout"].items() if key != "meta"}
    texts = [*strings(json.loads(figure.to_json())["data"]), *strings(layout)]
    assert any("alert(1)" in text for text in texts)
    for text in texts:
        assert not re.search(r"<(img|script|a)\b", text), text
    assert_dead(caption_html(figure))
    page = picture_bundle(figure, plotlyjs=False)["text/html"]
    assert_dead(page)
    # One image, with its sentence as name; and inside it the static picture, named alike.
    outer, *inner = [attributes for _, attributes in Tags(page).found if attributes.get("role") == "img"]
    assert outer["aria-label"] == describe(figure) and len(inner) == 1
    assert describe(figure) in (inner[0]["aria-label"] or "")


def test_no_page_of_a_script_shows_a_name_as_markup(tmp_path):
    write_report(run_of(), tmp_path, MARK)
    page = (tmp_path / "timeline.html").read_text("utf-8")
    # plotly.js itself is full of tags in its strings: what follows it is ours.
    assert_dead(re.sub(r"<script[^>]*>/\*\*.*?</script>", "", page, flags=re.DOTALL))
    json.loads((tmp_path / "timeline.json").read_text("utf-8"))


def test_the_picture_of_the_validation_shows_a_name_as_it_is_written():
    assert_dead(figures.validation_svg(report()))


def test_the_page_of_the_validation_shows_a_name_as_it_is_written():
    page = markdown(Results(report()), "picture.svg")
    assert "alert(1)" in page
    assert_dead(page)
    assert link_in_markdown("a", "javascript:alert(1)") == "a"


def test_a_cluster_file_with_markup_in_its_name_is_only_a_strange_name(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(f'base = "dgx-a100"\nname = {json.dumps(MARK)}\n', "utf-8")
    assert load_cluster(file).name == MARK
    assert_dead(search("gpt3-13b", load_cluster(file), 16, gpus=8)._repr_html_())


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_any_text_is_dead_and_whole_in_html_and_in_pictures(text):
    assert Tags(paragraph(text)).found == [("p", {})]
    assert not re.search("[<>\"']", in_html(text)) and "<" not in plain(text)
    assert all(re.match("<(/?(b|i|sub|sup|span)|br)", tag) for tag in re.findall("<[^>]*", in_picture(text)))
