"""Lab 16: its sum next to the simulator and the planner, and its leader board."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from lablib.labs import lab16
from lablib.labs.lab16 import Prices, find_cluster

PLAN = {"nodes": 96, "tensor": 8, "pipeline": 8, "micro_batch": 1, "recompute": "full"}


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
def test_the_formula_of_a_layer_is_the_timelines(cluster: str):
    """The rate of products is read off at 8 ranks, and holds at 4; all-reduces follow from sizes."""
    link = find_cluster(cluster).intra
    seen = {n: lab16.run_slice(cluster, layers=4, tensor=n).stage(1) for n in (8, 4)}
    rate = seen[8]["FLOPs"] / seen[8]["products"]
    for n, stage in seen.items():
        wire = link.bandwidth_bytes_per_s, link.latency_s
        found = lab16.layer_seconds(2048, 12288, 2048, n, rate, *wire)
        assert found["products"] == pytest.approx(stage["products"], rel=0.05)
        assert found["all-reduces"] == pytest.approx(stage["all-reduces"], rel=0.05)


def test_the_terms_add_up_to_the_step_and_a_stage_is_its_layers():
    slice_ = lab16.run_slice("dgx-a100", layers=8)
    assert sum(slice_.terms().values()) == pytest.approx(slice_.timeline.makespan_s)
    assert slice_.stage_s(1) == pytest.approx(2 * lab16.run_slice("dgx-a100", layers=4).stage_s(1), rel=0.02)


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100", "hgx-h200"])
def test_the_bound_is_never_above_the_planners_step(cluster: str):
    """The search of exercise 3 leaves out plans by this bound."""
    prices = Prices(cluster, 2.0)
    for plan in prices.plans(96):
        assert prices.least_seconds(plan) <= prices.seconds(plan), plan


def test_an_explanation_ends_at_the_better_plan_and_the_most_saving_choice_is_first():
    better = PLAN | {"pipeline": 4, "recompute": "none"}
    wrong = PLAN | {"tensor": 2}
    saved, table = Prices("dgx-a100", 2.0).explanation(wrong, better)
    assert set(table.index) == saved.keys() == {"tensor", "pipeline", "recompute"}
    ends = [Prices("dgx-a100", 2.0).predict(plan).step_time_s for plan in (wrong, better)]
    assert sum(saved.values()) == pytest.approx(ends[0] - ends[1]) and list(saved) == list(table.index)
    last = Prices("dgx-a100", 2.0).predict(better).step_time_s
    assert table["step then"].iloc[-1] == lab16.format_quantity(last, "s")


def test_the_leader_board_keeps_named_plans_sorted_by_dollars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress.json"))
    prices, file = Prices("dgx-a100", 2.0), tmp_path / "work" / "16_leader_board.json"
    assert list(prices.leader_board(None, PLAN, 30).index) == ["(no name)"] and not file.exists()
    prices.leader_board("Ada", PLAN | {"tensor": 4}, 60)
    table = prices.leader_board("Bob", PLAN, 60)
    assert set(table.index) == {"Ada", "Bob"} == set(json.loads(file.read_text())) and set(table["counts"]) == {"yes"}
    assert all(float(a[:-1]) <= float(b[:-1]) for a, b in pairwise(table["dollars"]))
    assert set(prices.leader_board(None, PLAN, 1)["counts"]) == {"no: too late"}
    with pytest.raises(ValueError, match="must divide the 768 GPUs"):
        prices.leader_board("Eve", PLAN | {"tensor": 7}, 60)
    assert "Eve" not in file.read_text()


def test_lanes_are_named_after_axes_and_nothing_else_changes():
    for tensor in (4, 8):
        slice_ = lab16.run_slice("dgx-a100", layers=4, tensor=tensor)
        lanes = {span.stream.partition(":")[2] for span in slice_.timeline if not span.is_compute}
        assert lanes == {"tensor", "pipeline:recv", "pipeline:send", "data", "all ranks"}
        for rank in slice_.ranks:
            names = {span.stream: span.name for span in slice_.timeline.select(rank) if span.is_communication}
            assert names["comm:tensor"] == "all_reduce" and names["comm:data"] == "all_gather_into_tensor"
            assert names.get("comm:pipeline:recv", "recv").startswith("recv")
