"""Figures of single labs: they draw the given numbers, and the sentence has them."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lablib.batches.noise_scale import StepsLaw
from lablib.batches.packing import best_fit, one_per_block
from lablib.data.loading.loaded_run import Cause
from lablib.data.loading.loader import Copy, Loader
from lablib.data.loading.loader_timeline import run_loop
from lablib.figures import describe, table
from lablib.labs import lab02, lab03, lab04, lab05, lab06, lab07, lab11, lab12, lab14, lab15
from lablib.memory.ways_to_fit import Way
from lablib.parallel import Mesh
from lablib.precision.exponents import ExponentCounts
from lablib.precision.formats import BF16, FP16
from lablib.studies import OLMOE, against_dense
from lablib.studies.optimizers import recorded_results
from lablib.studies.placement import PlacedMesh

# --- Lab 02 ---


def test_exponents_are_drawn_with_every_count_and_the_sentence_says_what_is_lost():
    counts = {"weights": ExponentCounts({-30: 1, -20: 2, -3: 1}, zeros=7), "none": ExponentCounts(zeros=2)}
    figure = lab02.figure_exponents(counts, [FP16, BF16], (-32, 0), "")
    traces = {trace.name: trace for trace in figure.data}
    drawn = dict(zip(traces["weights"].x, traces["weights"].y, strict=True))
    assert {e: y for e, y in drawn.items() if y} == {-30: 25, -20: 50, -3: 25}
    # FP16 begins at 2^-25, half of 2^-24, is normal from 2^-14, and goes on beyond the axis; BF16 fills it.
    assert (traces["normal"].base[0], traces["subnormal: fewer bits"].base[0]) == (-14, -25)
    assert list(traces["subnormal: fewer bits"].x) == [11, 0]
    assert "of weights 25.00% in fp16, 0.00% in bf16" in describe(figure)
    rows = table(figure)
    assert rows["lost (%)"].tolist() == [25, 0, 0, 0] and rows["zeros (count)"].tolist() == [7, 7, 2, 2]
    assert rows["subnormal (%)"].tolist() == [50, 0, 0, 0]


def test_a_window_is_drawn_and_overflow_is_said():
    figure = lab02.figure_exponents({"a": ExponentCounts({-30: 1, 20: 3})}, [FP16], (-40, 25), "")
    drawn = {trace.name: trace for trace in figure.data}
    assert list(figure.layout.xaxis.range) == [-40, 25]
    assert (list(drawn["normal"].base), list(drawn["normal"].x)) == ([-14], [30])  # up to 2^16: uncut
    assert "25.00% in fp16 (75.00% too large)" in describe(figure)


# --- Lab 03 ---


def test_the_quickest_small_way_is_named_and_points_outside_are_marked():
    plain, slow = Way("keep all", 100.0, 1.0, 1.0), Way("slow", 10.0, 5.0, 1.0)
    quick, large = Way("quick", 20.0, 1.5, 1.0), Way("quick", 60.0, 1.2, 1.0)
    figure = lab03.figure_time_memory({"A": [plain, slow, quick], "B": [plain, slow, large]})
    said = describe(figure)
    assert "on A quick (20% of the bytes, +50% time)" in said and "on B slow (10% of the bytes, +400% time)" in said
    traces = figure.to_dict()["data"]
    slows, quicks = ([trace for trace in traces if trace["name"] == name] for name in ("slow", "quick"))
    assert [(trace["x"], trace["y"], trace["text"]) for trace in slows] == [([2.0], [10.0], ["5.0 x"])] * 2
    assert [(trace["x"], trace["y"]) for trace in quicks] == [([1.5], [20.0]), ([1.2], [60.0])]
    assert list(table(figure)["memory (%)"]) == [100, 10, 20, 100, 10, 60]


# --- Lab 04 ---

LENGTHS = [3, 5, 2, 7, 1, 4]
PACKINGS = {"alone": one_per_block(LENGTHS, 8), "best fit": best_fit(LENGTHS, 8)}
RATES = {"sp": {32: {0.25: [3.0, 3.2], 0.5: [2.0, 2.4]}, 64: {0.25: [1.0, 1.2], 0.5: [math.inf, 0.5]}}}


def test_a_spread_goes_from_the_least_to_the_most_about_the_mean():
    line = lab04.figure_rates({"": {8: {1: [2.0, 4.0, 9.0], 2: [5.0]}}}, "width", "").data[0]
    assert (list(line.x), list(line.y)) == ([1, 2], [5.0, 5.0])
    assert (list(line.error_y.array), list(line.error_y.arrayminus)) == ([4.0, 0.0], [3.0, 0.0])


def test_the_best_rate_is_one_at_which_no_run_diverged():
    figure = lab04.figure_rates(RATES, "width", "")
    rings = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert [(ring.x[0], ring.y[0]) for ring in rings] == [(0.5, pytest.approx(2.2)), (0.25, pytest.approx(1.1))]
    assert "Best rate at width 32, 64: sp 2^-1, 2^-2." == describe(figure)
    assert list(table(figure)["diverged"]) == [0, 0, 0, 1]
    assert [text.replace("<sup>", "^") for text in figure.layout.xaxis.ticktext] == ["2^-2</sup>", "2^-1</sup>"]


def test_a_single_lucky_run_does_not_make_its_rate_the_best():
    figure = lab04.figure_rates({"sp": {32: {0.25: [2.0, 2.2], 0.5: [1.9]}}}, "width", "")
    assert "Best rate at width 32: sp 2^-2 or 2^-1." == describe(figure)
    [ring] = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert (list(ring.x), list(ring.y)) == ([0.25, 0.5], [pytest.approx(2.1), 1.9])


def test_rates_may_be_best_whose_runs_reach_the_bar_of_the_least():
    rates = {1: [2.3, 2.9], 2: [2.0, 2.2], 4: [2.2, 2.4], 8: [2.1, math.inf], 16: [2.21]}
    assert (lab04.minimum_at(rates), lab04.possible_minima(rates)) == (2, [2, 4])
    assert lab04.possible_minima({1: [math.inf], 2: [math.inf]}) == []


def test_the_sentence_says_none_where_every_rate_diverged_and_there_is_no_ring():
    figure = lab04.figure_rates({"sp": {32: {0.5: [math.inf]}, 64: {0.5: [1.0]}}}, "width", "")
    assert describe(figure) == "Best rate at width 32, 64: sp none, 2^-1."
    assert sum(trace.marker.symbol == "circle-open" for trace in figure.data) == 1


def test_the_coordinate_check_says_how_much_each_activation_grows():
    runs = {"standard": {32: [{"logits": 1.0}, {"logits": 3.0}], 64: [{"logits": 8.0}]}}
    figure = lab04.figure_coordinates(runs)
    assert describe(figure) == "Change at width 64 over that at 32: standard: logits 4."
    assert list(figure.data[0].y) == [2.0, 8.0]


def test_measured_steps_stand_at_their_tokens_beside_the_law():
    law = StepsLaw(100.0, 8.0)
    figure = lab04.figure_steps_law({4: [290.0, 310.0], 16: [150.0]}, law, seq_len=10)
    curve, runs, means = figure.data
    assert (list(runs.x), list(runs.y)) == ([290.0, 310.0, 150.0], [11600.0, 12400.0, 24000.0])
    assert (list(means.x), list(means.y)) == ([300.0, 150.0], [12000.0, 24000.0])
    for steps, tokens in zip(curve.x, curve.y, strict=True):
        assert (steps / 100 - 1) * (tokens / (100 * 8 * 10) - 1) == pytest.approx(1)
    assert "at least 100 steps, twice that at the critical batch of 8 sequences" in describe(figure)


def test_schedules_and_their_runs_share_the_axis_of_steps():
    figure = lab04.figure_schedules({"a": [0.5, 1.0], "b": [1.0, 1.0]}, {"b": [(1, 3.0), (2, 2.5)]}, "")
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [
        ("a", [0.5, 1.0]),
        ("b", [1.0, 1.0]),
        ("b", [3.0, 2.5]),
    ]
    assert describe(figure) == "Held-out loss at the end: b 2.500 nats (step 2)."


def test_bars_of_a_packing_are_its_documents_and_fill_every_block():
    figure = lab07.figure_packing(PACKINGS)
    for axis, packing in zip(("x", "x2"), PACKINGS.values(), strict=True):
        bars = [trace for trace in figure.data if trace.xaxis == axis]
        assert [sum(column) for column in zip(*(bar.y for bar in bars), strict=True)] == [8] * len(packing.blocks)
        assert sum(sum(bar.y) for bar in bars if bar.name != "padding") == sum(LENGTHS)
    assert (
        "6 documents of 22 tokens in blocks of 8: alone 6 blocks, 54.17% of them waste; best fit 3 blocks"
        in describe(figure)
    )
    assert list(table(figure)["in documents alone (pairs of tokens)"]) == [9 + 25 + 4 + 49 + 1 + 16] * 2
    assert list(table(figure)["attention over blocks (pairs of tokens)"]) == [6 * 64, 3 * 64]


def test_of_many_blocks_forty_are_drawn_and_the_sentence_says_so():
    figure = lab07.figure_packing({"alone": one_per_block([1] * 90, 2)})
    assert {len(bar.y) for bar in figure.data} == {40} and "40 blocks are drawn" in describe(figure)


# --- Lab 05 ---


@pytest.mark.parametrize(("adamw", "kind"), [(4.0, None), (296.0, "log")])
def test_bytes_that_differ_little_stand_on_a_plain_axis(examples, adamw, kind):
    """A step needs 4 bytes of temporary memory in addition to the state."""
    results = examples.some_results()
    results["adamw"] = replace(results["adamw"], bytes_per_parameter=adamw)
    results["lion"] = replace(results["lion"], bytes_per_parameter=0.0)
    figure = lab05.figure_loss_and_bytes(results)
    assert figure.layout.xaxis.type == kind
    assert figure.layout.xaxis.title.text == "memory of a step per parameter (B)"
    assert f"adamw has the least loss, 2.200 nats, with {adamw + 4:.2f}" in describe(figure)


def test_a_budget_in_which_nothing_fits_is_said():
    assert describe(lab05.figure_loss_and_bytes({})) == "There is nothing to draw yet."


def test_the_sentence_of_signs_says_how_steep_they_begin():
    figure = lab05.figure_sign_of_noise([0.01, 0.1, 1.0], {"Lion": [0.07, 0.6, 1.0]}, {"Adam": [0.01, 0.1, 0.7]})
    assert describe(figure) == (
        "Lion: at least half of a full step from a signal of 0.1 of the noise on; "
        "at the two weakest its step is 7.0 and 6.0 times the signal."
    )


def test_a_small_loss_is_not_called_none():
    figure = lab05.figure_projection([1, 2, 4], {"its own": [0.0012] * 3, "random": [0.88] * 3})
    assert "its own 0.1%; random 88.0%" in describe(figure)


def test_more_lines_than_can_be_told_apart_are_refused_and_none_is_left_out():
    results = recorded_results()
    assert len(results) == 11
    with pytest.raises(ValueError, match="at most 8 lines have different looks: got 11 results; choose some"):
        lab05.figure_loss_curves(results)
    eight = lab05.figure_loss_curves(dict(list(results.items())[:8]))
    assert len({(line.line.color, line.line.dash) for line in eight.data}) == len(eight.data) == 8


# --- Lab 06 (its tiles: test_tiles.py) ---


def test_both_panels_of_the_staircase_have_their_line_and_the_sentence_its_ends():
    """The step is drawn where the larger size begins ("vh"), not sloping between the two."""
    useful = [0.4, 0.8, 0.4, 0.8]
    figure = lab06.figure_staircase([128, 256, 257, 512], "A100", [1e-5, 1e-5, 2e-5, 2e-5], useful, "")
    upper, lower = figure.data
    assert list(upper.y) == pytest.approx([10, 10, 20, 20]) and "\N{MICRO SIGN}s" in figure.layout.yaxis.title.text
    assert list(lower.y) == pytest.approx([40, 80, 40, 80]) and upper.line.shape == "vh"
    assert describe(figure) == "For columns N from 128 to 512: A100 is useful for 40% at 128 and 80% at 256."
    assert list(table(figure)["A100, useful"]) == useful


# --- Lab 07 ---


def run_of(workers=2, **settings):
    return run_loop(Loader(workers, batch_bytes=1.0, copy_bytes_per_s=2.0, **settings), [3.0] * 20, [1.0] * 20)


def test_every_batch_has_its_bars_and_every_gap_its_cause():
    run = run_of(start_s=2.0)
    figure = lab07.figure_loading(run, batches=20)
    bars = {trace.name: trace for trace in figure.data}
    assert [float(x) for x in bars["F+B  compute"].x] == [1.0] * 20
    assert list(bars["load"].base) == [batch.load_start_s for batch in run.batches]
    assert list(bars["copy"].text) == [str(number) for number in range(20)]
    for cause in Cause:
        bar = bars[f"waits: {cause.value}"]
        drawn = [x for x, lane in zip(bar.x, bar.y, strict=True) if not lane]  # of the device
        assert sum(drawn) == pytest.approx(run.idle_s(cause))


def test_the_sentence_and_the_table_are_of_the_whole_run():
    run = run_of(copy=Copy.OWN_STREAM)
    figure = lab07.figure_loading(run, batches=3)
    assert f"Over 20 batches in {run.makespan_s:.3g} s the device waits {run.idle_share:.0%}" in describe(figure)
    found = table(figure)
    assert found["time (s)"].sum() == pytest.approx(run.makespan_s) and found["share (%)"].sum() == pytest.approx(100)


def test_without_workers_the_loop_loads():
    figure = lab07.figure_loading(run_of(workers=0), 12)
    assert list(figure.layout.yaxis.ticktext) == ["<b>device</b>", "copy", "loop loads"]
    assert "No workers" in figure.layout.title.text


# --- Lab 11 ---


def test_the_sentence_names_every_method_from_most_bytes_to_fewest(examples):
    assert describe(lab11.figure_loss_against_bytes(examples.some_compressed_runs())) == (
        "Bytes of a step and final loss. none: 400 kB, 2.200 nats; DiLoCo 4: 100 kB, 2.250 nats; "
        "DiLoCo 16: 25 kB, 2.350 nats; top-k: 10 kB, 2.350 nats."
    )


def test_marks_of_many_methods_differ(examples):
    runs = examples.some_compressed_runs()
    many = lab11.figure_loss_against_bytes({f"{name} {i}": runs[name] for name in runs for i in range(6)})
    assert len({(one.marker.symbol, one.marker.color) for one in many.data}) == 24


def test_lines_over_h_hold_the_methods_that_have_one(examples):
    figure = lab11.figure_loss_over_h(examples.some_compressed_runs())
    assert [(line.name, list(line.x), list(line.y)) for line in figure.data] == [
        ("DiLoCo", [4, 16], [pytest.approx(2.25), pytest.approx(2.35)])
    ]
    assert describe(figure) == "Final loss: DiLoCo from 2.250 nats at H = 4 to 2.350 at 16."


# --- Lab 12 ---


def test_lines_stand_where_a_matrix_is_cut_and_ranks_are_named():
    matrices = {"X": torch.ones(2, 7), "W": torch.tensor([[1.0], [-2.0]]), "Y": torch.zeros(1, 1)}
    figure: Any = lab12.figure_matrices(matrices, {"X": (1, 3), "W": (0, 2)}, "", "as told")
    assert [(shape.x0, shape.y0) for shape in figure.layout.shapes] == [(2.5, 0), (5.5, 0), (0, 0.5)]
    assert list(figure.layout.xaxis.ticktext) == ["0", "1", "2"]
    assert figure.layout.xaxis.title.text == "column (rank)" and figure.layout.yaxis.title.text == "row (number)"
    assert list(figure.layout.xaxis.tickvals) == [1.0, 4.0, 6.0]  # 3, 3 and 1 columns
    assert figure.data[1].z.tolist() == [[1.0], [2.0]] and figure.data[0].zmax == 2.0
    assert describe(figure) == "as told"
    assert list(table(figure)["cut"]) == ["columns on 3 ranks", "rows on 2 ranks", "whole"]


def test_ranks_without_a_part_are_left_out():
    figure: Any = lab12.figure_matrices({"W": torch.ones(1, 2)}, {"W": (1, 5)}, "", "")
    assert list(figure.layout.xaxis.ticktext) == ["0", "1"]


# --- Lab 14 ---


class Made(PlacedMesh):
    step_time_s = 0.0  # pyright: ignore[reportAssignmentType]

    def __init__(self, step_time_s: float, rail: float = 0.0, **sizes: int) -> None:
        sent = {"tensor": {"node": 3e9, "rail": rail, "across": 0.0}, "data": {"node": 0.0, "rail": 1e9, "across": 0.0}}
        waits = {"tensor": 0.5, "data": 0.25}
        vars(self).update(mesh=Mesh(**sizes), step_time_s=step_time_s, exposed_s=waits, sent_bytes=sent)


def test_bars_are_the_step_and_the_bytes_by_level():
    figure = lab14.figure_placements([Made(2.0, data=2, tensor=4), Made(4.0, 2e9, tensor=4, data=2)], "")
    rest, waits, near, rail = figure.data  # nothing goes across rails: no bar, no word in the legend
    assert list(rest.x) == [1.25, 3.25] and list(waits.x) == [0.75, 0.75]
    assert list(near.x) == [3.0, 3.0] and list(rail.x) == [1.0, 3.0]
    assert list(near.y) == ["data 2, tensor 4", "tensor 4, data 2"]
    assert "2.00 times as long" in describe(figure)
    assert "1 GB to other nodes in the one, 3 GB in the other" in describe(figure)
    rows = table(figure)
    assert list(rows["step (s)"]) == [2.0, 4.0] and list(rows["waits for data (s)"]) == [0.25, 0.25]
    assert list(rows["sent to the same place of another node (B)"]) == [1e9, 3e9]


def test_of_many_orders_the_fastest_and_the_slowest_are_drawn_and_the_table_has_all():
    figure = lab14.figure_placements([Made(1.0 + i, data=i + 2) for i in range(120)], "")
    assert len(figure.data[0].y) == 24 and figure.data[0].y[-1] == "data 121"
    assert len(table(figure)) == 120 and "Of 120 orders 24 are drawn" in describe(figure)


def test_one_order_is_one_sentence():
    assert describe(lab14.figure_placements([Made(2.0, data=2)], "")) == "data 2: a step takes 2 s."


def test_each_way_is_a_line_and_the_nearest_to_a_fair_share_is_named():
    figure = lab15.figure_context_times([4096, 8192], {"ring": [0.2, 0.9], "ulysses": [0.5, 0.8]}, "")
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [("ring", [0.2, 0.9]), ("ulysses", [0.5, 0.8])]
    assert [shape.y0 for shape in figure.layout.shapes] == [1.0]
    assert "4,096 tokens ulysses, 50%; 8,192 tokens ring, 90%" in describe(figure)
    assert list(table(figure)["ring (of a fair share)"]) == [0.2, 0.9]


def test_each_square_is_an_experts_load_over_the_mean_of_its_step():
    figure = lab15.figure_expert_load([[1, 3], [10, 10], [0, 0]], [0, 10, 30], "")
    np.testing.assert_allclose(figure.data[0].z, [[0.5, 1, 1], [1.5, 1, 1]])
    assert list(figure.layout.xaxis.ticktext) == ["0", "10", "30"]
    assert describe(figure).startswith("The busiest of 2 experts over the mean: 1.50 at step 0, 1.00 at step 30;")
    assert list(table(figure)["least (of the mean)"]) == [0.5, 1.0, 1.0]


def test_more_steps_than_can_be_drawn_are_means_of_blocks():
    """No token is lost: the means, weighted by the steps of a block, are the means of all steps."""
    counts = np.random.default_rng(0).integers(0, 100, (1000, 64))
    figure = lab15.figure_expert_load(counts.tolist(), range(1000), "")
    z = np.array(figure.data[0].z)
    assert z.size <= lab15.MAX_SQUARES and z.shape[0] == 64
    first = counts[:16].mean(axis=0)
    np.testing.assert_allclose(z[:, 0], first / first.mean())
    assert "means of 16 steps" in describe(figure)


def test_bars_of_a_rank_stand_side_by_side_under_one_mean():
    figure = lab15.figure_rank_loads({"in order": [30.0, 10.0], "balanced": [20.0, 20.0]}, "")
    assert [list(bar.y) for bar in figure.data] == [[30.0, 10.0], [20.0, 20.0]]
    assert figure.data[0].x[0] < 0 < figure.data[1].x[0] and figure.data[0].width == 0.4
    assert figure.layout.shapes[0].y0 == 20.0
    assert describe(figure) == "The busiest of 2 ranks over the mean: in order 1.50; balanced 1.00."
    assert list(table(figure)["in order (tokens)"]) == [30.0, 10.0]


def test_where_a_model_does_not_fit_its_line_has_no_point_but_a_cross():
    compared = against_dense(OLMOE, "dgx-h100", [1, 2], tensor=1, micro_batch=2, zero_stage=3)
    figure = lab15.figure_expert_times(compared, "")
    lines = {trace.name: trace for trace in figure.data}
    assert list(lines["mixture"].x) == ["2"] and list(lines["dense, as many FLOPs"].x) == ["1", "2"]
    assert list(lines["a model does not fit"].x) in (["1"], ["1", "2"])
    assert "on 1 GPU does not fit, 129 GB a GPU at least; on 2 GPUs 0." in describe(figure)
    rates = list(table(figure)["mixture (tokens/s a GPU)"])
    assert np.isnan(rates[0]) and compared[1].mixture and rates[1] == compared[1].mixture.tokens_per_s_per_gpu
