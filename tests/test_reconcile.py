"""Predicted beside measured: the arithmetic of the table on runs made by hand, missing rows, noise, the figure."""

# plotly and pandas make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lablib import Reconciliation, Run, Span, Timeline, Traffic, Transfer, find_cluster, launch, reconcile
from lablib.figures import describe, table
from lablib.figures.style import STATES
from lablib.process.host_load import HostLoad
from lablib.run import TIMES_MEAN_NOTHING


def run_of(*spans: Span, ranks: int = 2, transfers: tuple[Transfer, ...] = (), backend: str = "sim") -> Run:
    return Run([None] * ranks, Timeline.of(spans, ranks), Traffic(transfers), [""] * ranks, backend, "somewhere")


def compute(rank: int, start_s: float, end_s: float, phase: str = "forward") -> Span:
    return Span(rank, "compute", "aten.mm", phase, start_s, end_s)


def talk(
    rank: int, start_s: float, end_s: float, name: str = "all_reduce", size_bytes: float = 100.0, call: int = 0
) -> Span:
    number = hash((name, size_bytes, call))
    return Span(rank, "comm:world", name, "forward", start_s, end_s, 0.0, size_bytes, transfer_id=number, place=rank)


def row(frame, kind: str, name: str | None = None):
    found = frame[(frame["kind"] == kind) & ((frame["name"] == name) if name else True)]
    assert len(found) == 1
    return found.iloc[0]


# One step of two ranks: rank 0 computes 2 s, rank 1 computes 4 s, then 1 s of all-reduce, then 1 s of optimizer.
PREDICTED = run_of(
    *(compute(0, 0, 2), talk(0, 4, 5), compute(0, 5, 6, "optimizer")),
    *(compute(1, 0, 4), talk(1, 4, 5), compute(1, 5, 6, "optimizer")),
    transfers=(Transfer("world", "all_reduce", (0, 1), "ring", 100.0, (100.0, 100.0), 4.0, 5.0, (2.0, 4.0)),),
)
# As real processes show it: the launch took 10 s, rank 1 began half a second late, rank 0's call lasts from its own
# arrival, and ends a quarter of a second before rank 1's.
MEASURED = run_of(
    *(compute(0, 10, 13), talk(0, 13, 16.75), compute(0, 17, 18, "optimizer")),
    *(compute(1, 10.5, 15), talk(1, 15, 17), compute(1, 17, 18, "optimizer")),
    backend="gloo",
)


def test_every_row_is_exact_on_runs_made_by_hand():
    frame = Reconciliation.of(PREDICTED, [MEASURED]).table()
    expected = {
        ("compute", "forward"): (3.0, (3 + 4.5) / 2),
        ("compute", "optimizer"): (1.0, 1.0),
        ("communication", "all_reduce"): (1.0, 2.0),  # from the last start, 15, to the last end, 17
        ("exposed", "exposed"): (1.0, (1.75 + 2) / 2),
        ("waiting", "waiting"): (1.0, 1.0),  # two seconds of rank 0
        ("idle", "idle"): (0.0, (0.25 + 0.5) / 2),
        ("makespan", "makespan"): (6.0, 8.0),
    }
    assert list(zip(frame["kind"], frame["name"], strict=True)) == list(expected)
    for (kind, name), (predicted_s, measured_s) in expected.items():
        found = row(frame, kind, name)
        assert (found["predicted_s"], found["measured_s"]) == pytest.approx((predicted_s, measured_s))
        if measured_s:
            assert found["error_pct"] == pytest.approx(100 * (predicted_s - measured_s) / measured_s)
        assert found["share_pct"] == pytest.approx(100 * measured_s / 8)


@pytest.mark.parametrize("side", ["predicted_s", "measured_s"])
def test_compute_exposed_waiting_and_idle_add_up_to_the_makespan(side):
    frame = Reconciliation.of(PREDICTED, [MEASURED]).table().set_index("kind")[side]
    parts = frame[["compute", "exposed", "waiting", "idle"]].sum()
    assert parts == pytest.approx(frame["makespan"])


def test_what_only_one_side_has_stands_in_a_row_with_nothing_on_the_other():
    predicted = run_of(compute(0, 0, 1), talk(0, 1, 2, "broadcast"), talk(1, 1, 2, "broadcast"))
    measured = run_of(compute(0, 0, 1), talk(0, 1, 2, size_bytes=8.0), talk(1, 1, 2, size_bytes=8.0))
    frame = Reconciliation.of(predicted, [measured]).table()
    only_predicted, only_measured = row(frame, "communication", "broadcast"), row(frame, "communication", "all_reduce")
    assert only_predicted["predicted_s"] == 1.0 and math.isnan(only_predicted["measured_s"])
    assert only_measured["measured_s"] == 1.0 and math.isnan(only_measured["predicted_s"])
    assert math.isnan(only_predicted["error_pct"]) and math.isnan(only_measured["error_pct"])
    assert (only_predicted["measured_calls"], only_measured["predicted_calls"]) == (0, 0)


def test_the_same_collective_of_two_sizes_or_groups_has_two_rows():
    spans = [talk(rank, start, start + 1, size_bytes=size) for rank in (0, 1) for start, size in ((0, 8.0), (1, 16.0))]
    spans.append(Span(0, "comm:dp", "all_reduce", "forward", 2, 3, 0.0, 8.0))
    run = run_of(*spans)
    frame = Reconciliation.of(run, [run]).table()
    rows = frame[frame["kind"] == "communication"]
    assert sorted(zip(rows["group"], rows["size_bytes"], strict=True)) == [("dp", 8), ("world", 8), ("world", 16)]
    assert (rows["error_pct"] == 0).all()


def test_a_message_counts_once_for_its_receiver_from_when_both_have_come():
    send = Span(0, "comm:world:send", "send to 1", "forward", 0.0, 3.0, 0.0, 8.0, transfer_id=0)
    receive = Span(1, "comm:world:recv", "recv from 0", "forward", 2.0, 4.0, 0.0, 8.0, transfer_id=0, place=1)
    run = run_of(send, receive, transfers=(Transfer("world", "send", (0, 1), "x", 8.0, (8.0, 0.0), 2.0, 4.0, id=0),))
    frame = Reconciliation.of(run, [run]).table()
    found = row(frame, "communication", "send")
    assert (found["measured_calls"], found["measured_s"]) == (1, pytest.approx((4 - 2) / 2))


def test_the_median_run_is_shown_and_the_spread_of_the_repeats_beside_it():
    repeats = [run_of(compute(0, 0, seconds), ranks=1) for seconds in (4.0, 1.0, 2.0)]
    found = Reconciliation.of(run_of(compute(0, 0, 1.0), ranks=1), repeats)
    assert found.measured is repeats[2]
    total = row(found.table(), "makespan")
    assert total["noise_pct"] == pytest.approx(100 * (4 - 1) / 2 / 2) and total["error_pct"] == pytest.approx(-50)
    assert "error -50%, noise 75% over 3 runs" in found.sentence()


def test_one_repeat_says_nothing_of_noise():
    found = Reconciliation.of(PREDICTED, [MEASURED])
    assert found.table()["noise_pct"].isna().all() and "noise" not in found.sentence()


def test_a_phase_can_be_left_out_and_time_then_begins_behind_it():
    predicted = run_of(compute(0, 0, 1, "setup"), compute(0, 1, 2), ranks=1)
    measured = run_of(compute(0, 5, 9, "setup"), compute(0, 9, 11), ranks=1)
    frame = Reconciliation.of(predicted, [measured], without="setup").table()
    assert "setup" not in set(frame["name"])
    assert tuple(row(frame, "makespan")[["predicted_s", "measured_s"]]) == (1.0, 2.0)


def test_waiting_is_found_behind_a_phase_that_was_left_out():
    call = Transfer("world", "all_reduce", (0, 1), "ring", 100.0, (1.0, 1.0), 4.0, 5.0, (2.0, 4.0))
    spans = [compute(0, 0, 1, "setup"), compute(1, 0, 1, "setup"), compute(0, 1, 2), compute(1, 1, 4)]
    run = run_of(*spans, talk(0, 4, 5), talk(1, 4, 5), transfers=(call,))
    frame = Reconciliation.of(run, [run], without="setup").table()
    assert row(frame, "waiting")["predicted_s"] == pytest.approx(2 / 2)


def test_the_figure_has_both_timelines_on_one_axis_and_the_table():
    found = Reconciliation.of(PREDICTED, [MEASURED])
    figure = found.figure()
    ends = {}
    for trace in figure.data:
        if trace.type == "bar" and trace.legendgroup not in STATES:
            edges = [base + width for base, width in zip(trace.base, trace.x, strict=True)]
            ends[trace.xaxis] = max(edges + [ends.get(trace.xaxis, 0.0)])
    assert ends == pytest.approx({"x": 6.0, "x2": 8.0})
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range and figure.layout.xaxis2.matches == "x"
    assert describe(figure) == found.sentence()
    assert list(table(figure)["kind"]) == list(found.table()["kind"])


def test_makespans_far_apart_share_the_axis_too():
    found = Reconciliation.of(run_of(compute(0, 0, 1e-4), ranks=1), [run_of(compute(0, 0, 1.0), ranks=1)])
    assert found.figure().layout.xaxis2.matches == "x"


def test_repr_and_html_say_the_makespans():
    found = Reconciliation.of(PREDICTED, [MEASURED])
    assert "Predicted 6 s, measured 8 s: error -25%" in repr(found)
    assert "Predicted 6 s" in found._repr_html_() and "<table" in found._repr_html_()


def test_bad_arguments_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="repeats must be a whole number, 1 or more: got 0"):
        reconcile(print, repeats=0, cluster="laptop")
    with pytest.raises(ValueError, match="real backend: got .sim."):
        reconcile(print, backend="sim", cluster="laptop")
    with pytest.raises(ValueError, match="same number of ranks: got .1, 2."):
        Reconciliation.of(PREDICTED, [run_of(ranks=1)])
    with pytest.raises(ValueError, match="got none"):
        Reconciliation.of(PREDICTED, [])


def summed():
    x = torch.ones(1000)
    dist.all_reduce(x)
    return x[0].item()


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_load_is_taken_after_the_warm_up_and_after_the_last_run(repeats, monkeypatch):
    done = []

    def run(*_, backend="sim", **__):
        done.append(backend)
        return PREDICTED if backend == "sim" else MEASURED

    # By their module: the package has a function of the same name.
    module = sys.modules["lablib.reconcile"]
    monkeypatch.setattr(module, "launch", run)
    monkeypatch.setattr(module, "host_load", lambda: HostLoad(done.count("gloo"), 8))
    found = reconcile(print, ranks=2, cluster="laptop", repeats=repeats)
    assert [load.busy_cores for load in found.loads] == [1, 1 + repeats] and len(found.repeats) == repeats


def test_a_program_runs_predicted_and_measured_and_both_sides_have_its_collective():
    profile = {"ranks": "4", "backend": "gloo"}
    found = reconcile(summed, ranks=2, cluster=find_cluster("laptop").replace(profile=profile), repeats=2)
    assert found.predicted.values == found.measured.values == [2.0, 2.0]
    calls = row(found.table(), "communication", "all_reduce")
    names = ["group", "size_bytes", "predicted_calls", "measured_calls"]
    assert list(calls[names]) == ["world", 4000, 1, 1]
    assert len(found.repeats) == 2 and "is for ranks 4." in found.sentence()


def test_where_nothing_is_off_nothing_is_furthest_off():
    assert "Furthest off" not in Reconciliation.of(PREDICTED, [PREDICTED]).sentence()
    assert "Furthest off" in Reconciliation.of(PREDICTED, [MEASURED]).sentence()


def test_the_notes_of_the_measured_run_are_sentences_of_the_comparison(monkeypatch):
    noted = replace(MEASURED, notes=["two ranks shared one GPU"])
    module = sys.modules["lablib.reconcile"]
    monkeypatch.setattr(module, "launch", lambda *_, backend="sim", **__: PREDICTED if backend == "sim" else noted)
    monkeypatch.setattr(module, "host_load", lambda: HostLoad(0.0, 8))
    assert reconcile(print, ranks=2, cluster="laptop", repeats=1).sentence().endswith(" Two ranks shared one GPU.")


# ---- ranks that share a GPU ----

SHARED = f"2 ranks shared 1 GPU: {TIMES_MEAN_NOTHING}"
SLOW = replace(MEASURED, backend="nccl", notes=(SHARED,), values=[1.0, torch.ones(2)])
SIMULATED = replace(PREDICTED, values=[1.0, torch.ones(2)])


def test_where_ranks_share_a_gpu_no_times_are_compared_but_one_ranks_compute():
    found = Reconciliation.of(SIMULATED, [SLOW, replace(SLOW, timeline=PREDICTED.timeline)])
    frame = found.table()
    others = frame[frame["kind"] != "compute"]
    assert others[["predicted_s", "measured_s", "error_pct", "noise_pct", "share_pct"]].isna().to_numpy().all()
    assert set(others["kind"]) == {"communication", "exposed", "waiting", "idle", "makespan"}
    calls = row(frame, "communication")
    assert (calls["predicted_calls"], calls["measured_calls"], calls["size_bytes"]) == (1, 1, 100.0)
    forward = row(frame, "compute", "forward")
    assert (forward["predicted_s"], forward["measured_s"]) == (2.0, 2.0), "of rank 0, the least of the repeats"
    assert math.isnan(found.error) and not found.is_quiet
    said = found.sentence()
    assert said.startswith("Times are not compared, as ranks that share a GPU take turns on it (2 ranks shared 1 GPU: ")
    assert "Compute of rank 0: predicted 3 s, measured 3 s, error +0%." in said and "all_reduce 1" in said
    assert "Values are the same on every rank." in said and said.count("2 ranks shared 1 GPU") == 1
    assert found.reading().startswith(SHARED) and "not compared" in found.figure().layout.title.text
    assert found.record().table().shape == frame.shape and SHARED in describe(found.figure())


def test_values_that_differ_are_named_by_rank_and_shapes_have_none():
    measured = replace(SLOW, values=[1.0, torch.ones(2) * 1.1])
    assert "Values differ on ranks 1 " in Reconciliation.of(SIMULATED, [measured]).sentence()
    assert "Values" not in Reconciliation.of(PREDICTED, [replace(SLOW, values=[None, None])]).sentence()
    shapes = replace(SIMULATED, fidelity="shapes")
    assert "the prediction computed shapes alone" in Reconciliation.of(shapes, [SLOW]).sentence()


def test_a_prediction_of_shapes_computes_nothing_and_its_times_are_those_of_values(monkeypatch):
    asked = []

    def run(fn, *args, backend="sim", share_gpus=False, **options):
        asked.append((backend, share_gpus, options.get("fidelity")))
        return launch(fn, *args, **options) if backend == "sim" else SLOW

    module = sys.modules["lablib.reconcile"]
    monkeypatch.setattr(module, "launch", run)
    monkeypatch.setattr(module, "host_load", lambda: HostLoad(0.0, 8))
    given = {"ranks": 2, "backend": "nccl", "cluster": "dgx-h100", "repeats": 1, "share_gpus": True}
    of_shapes, of_values = (reconcile(product, **given, fidelity=fidelity) for fidelity in ("shapes", "values"))
    assert of_shapes.predicted.timeline.makespan_s == of_values.predicted.timeline.makespan_s > 0
    assert of_shapes.predicted.fidelity == "shapes"
    assert asked == [
        ("sim", False, "shapes"),
        *[("nccl", True, None)] * 2,
        ("sim", False, "values"),
        *[("nccl", True, None)] * 2,
    ]


def product():
    x = torch.ones(64, 64) @ torch.ones(64, 64)
    dist.all_reduce(x)
