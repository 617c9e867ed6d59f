"""The calculators: their pictures show the numbers of planner, simulation and closed forms."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import CLUSTERS, widgets
from lablib.data.loading.loader import Jitter, Loader, draw_times
from lablib.data.loading.loader_timeline import run_loop
from lablib.figures import describe, figure_traffic_matrix, table
from lablib.parallel import LayerSizes, Mesh, layer_sent_bytes, two_dimensional_sent_bytes
from lablib.plan import Parallel, predict
from lablib.studies import compressed_step, place, tensor_layer_time
from lablib.widgets.batch_calculator import CLUSTERS as BATCH_CLUSTERS
from lablib.widgets.batch_calculator import MODELS, split_batch
from lablib.widgets.compression_calculator import BANDWIDTHS, BATCHES, NUM_GRADIENTS, compression_pays
from lablib.widgets.explore import Pictures
from lablib.widgets.explorer import Explorer
from lablib.widgets.loader_calculator import NUM_BATCHES, PREFETCHES, idle_shares
from lablib.widgets.placement_calculator import NETWORKS, network_of, placed_mesh
from lablib.widgets.tensor_calculator import tensor_layer

# Calculator -> words of every static picture, and rows of the table of each.
PICTURES = {
    "batch_calculator": ("sequences", [6, 6, 3]),
    "bubble_simulator": ("", [4, 4, 4, 2]),
    "compression_calculator": ("times as fast", [len(BANDWIDTHS)] * 3),
    "loader_calculator": ("the device waits", [len(PREFETCHES)] * 3),
    "memory_calculator": ("at its peak", [5, 5, 5, 5]),
    "placement_calculator": ("leave their node", None),
    "tensor_calculator": ("2D would send less", [5, 5, 7]),
}
# Calculator -> a change of a control, and words of the sentence before and after it.
MOVES = {
    "batch_calculator": ({"num_accumulations": 2}, "= 512 sequences", "4 x 2 accumulations x 16 data ranks = 128 seq"),
    "compression_calculator": ({"bits": 4}, "At 10 GB/s: batch 1 3.28 times as fast (it pays below 142 GB/s)", ""),
    "loader_calculator": ({"prefetch": 8}, "With prefetch 2 the device waits: this loader,", "With prefetch 8"),
    "placement_calculator": ({"network": "torus"}, "ranks wait longest for", "ranks wait longest for"),
    "tensor_calculator": ({"sequences": 4}, "here, with 4,096, more. A node has 8 ranks.", "here, with 8,192,"),
}
START = {"data": 4, "tensor": 8, "pipeline": 2, "context": 1, "expert": 1}
powers = st.integers(0, 4).map(lambda e: 2**e)


@pytest.mark.parametrize("name", PICTURES)
def test_without_widgets_it_is_pictures_with_words(name: str):
    words, rows = PICTURES[name]
    pictures: Any = getattr(widgets, name)(interactive=False)
    assert isinstance(pictures, Pictures)
    figures = [picture.figure for picture in pictures.pictures]
    assert all(words in describe(figure) for figure in figures)
    lengths = [len(table(figure)) for figure in figures]
    assert lengths == rows if rows else len(lengths) == 4 and min(lengths) > 0


@pytest.mark.parametrize("name", MOVES)
def test_a_moved_control_redraws_the_sentence(name: str):
    """tests/widgets/test_without_effect.py moves every control."""
    change, before, after = MOVES[name]
    shown = getattr(widgets, name)()
    first = shown.caption.text
    assert isinstance(shown, Explorer) and all(part in first for part in before.split(". "))
    for control, value in change.items():
        shown.controls[control].value = value
    assert shown.caption.text != first and after in shown.caption.text and not shown.message.text


@pytest.mark.parametrize(
    ("name", "wrong"), [("bubble_simulator", {"stages": 17}), ("memory_calculator", {"model": "gpt5"})]
)
def test_a_start_that_is_none_of_the_choices_is_one_clear_error(name: str, wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=f"the default of {next(iter(wrong))} must be one of its values"):
        getattr(widgets, name)(**wrong)


# --- Batches ---


@settings(max_examples=10)
@given(powers, st.integers(1, 12), powers)
def test_all_splits_are_of_one_global_batch_and_as_predicted(micro_batch, num_accumulations, data_ranks):
    found = split_batch("gpt2", "dgx-h100", micro_batch, num_accumulations, data_ranks, 512)
    whole = micro_batch * num_accumulations * data_ranks
    assert {(one.batch, one.micro_batch * one.num_microbatches) for one in found} == {(whole, whole // data_ranks)}
    sizes = [one.micro_batch for one in found]
    assert micro_batch in sizes and sizes == sorted(set(sizes))
    [here] = [one for one in found if one.micro_batch == micro_batch]
    alone = predict("gpt2", "dgx-h100", Parallel(data=data_ranks), whole, micro_batch=micro_batch, seq_len=512)
    assert (here.step_time_s, here.stage_bytes) == (alone.step_time_s, alone.stage_bytes)


def test_a_larger_micro_batch_takes_more_memory_and_less_time():
    found = split_batch("gpt2-xl", "dgx-h100", 4, 8, 16, 1024)
    assert [one.micro_batch for one in found] == [1, 2, 4, 8, 16, 32]
    assert [max(one.stage_bytes) for one in found] == sorted(max(one.stage_bytes) for one in found)
    assert [one.step_time_s for one in found] == sorted((one.step_time_s for one in found), reverse=True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cluster", BATCH_CLUSTERS)
def test_every_choice_can_be_computed(model, cluster):
    assert split_batch(model, cluster, 1, 1, 1, 1024)


# --- Compression ---


def test_the_curves_are_the_closed_form_and_end_at_their_break_even():
    found = compression_pays(0.1, 1e10, 8, 3, 50)
    for batch, curve, even in zip(BATCHES, found.curves.values(), found.break_even, strict=True):
        for bandwidth, speed in zip(BANDWIDTHS, curve, strict=True):
            assert (speed > 1) == (bandwidth < even)
        before, after = (
            compressed_step(method, NUM_GRADIENTS, batch * 0.1, BANDWIDTHS[0], overlap=0.5, overhead=3.0).step_s
            for method in ("none", "int8")
        )
        assert curve[0] == before / after


# --- Loader ---


def test_the_shares_are_those_of_a_simulated_run():
    chosen, shares = idle_shares(0.2, 100, 2, 4, 0.1)
    assert chosen == 4 and all(len(line) == len(PREFETCHES) for line in shares.values())
    simulated, exponential, constant = shares.values()
    loads = draw_times(0.2, NUM_BATCHES, Jitter.LOGNORMAL, 1.0)
    run = run_loop(Loader(2, 4), loads, [0.1] * NUM_BATCHES)
    assert simulated[PREFETCHES.index(4)] == pytest.approx(run.idle_share_from(0))
    assert simulated == sorted(simulated, reverse=True) and exponential == sorted(exponential, reverse=True)
    assert constant == [0.0] * len(PREFETCHES)


def test_without_jitter_a_loader_that_is_fast_enough_waits_for_nothing():
    _, shares = idle_shares(0.2, 0, 2, 1, 0.1)
    assert shares["this loader, simulated"] == pytest.approx([0.0] * len(PREFETCHES), abs=1e-9)
    _, slow = idle_shares(0.4, 0, 2, 1, 0.1)
    assert slow["this loader, simulated"] == pytest.approx([0.5] * len(PREFETCHES), abs=0.01)


# --- Placement ---


def test_the_sentence_and_the_squares_are_the_placements():
    found = placed_mesh("rails: 8 NICs a node", "gpt3-13b", **START, order="data pipeline tensor")
    mesh = Mesh(data=4, pipeline=2, tensor=8)
    expected = place("gpt3-13b", mesh, network_of("rails: 8 NICs a node"), 64, zero_stage=1, seq_len=2048)
    assert found.step_time_s == expected.step_time_s and found.mesh == mesh
    pictures = widgets.placement_calculator(interactive=False)
    assert isinstance(pictures, Pictures)
    first, *_, last = (picture.figure for picture in pictures.pictures)
    assert expected.sentence()[1:].rstrip(".") in describe(first)
    sent = sum(matrix.sum() for matrix in expected.traffic.matrices.values())
    assert sum(table(first)["bytes (B)"]) == pytest.approx(sent)
    assert "expert axis" in describe(last) or "tensor axis" in describe(last)


def test_wires_alone_differ():
    devices = {network_of(name).device.name for name in NETWORKS}
    assert devices == {"H100-80GB-SXM"}
    assert network_of("RoCE at 15 us").inter.latency_s == 15e-6
    steps = {name: placed_mesh(name, "gpt3-13b", **START, order="tensor, data, pipeline") for name in NETWORKS}
    times = {name: one.step_time_s for name, one in steps.items()}
    assert times["NVLink island of 72"] == min(times.values())
    assert times["RoCE at 15 us"] > times["rails: 8 NICs a node"]


def test_an_axis_that_the_order_lacks_is_named_and_the_last_figure_stays():
    shown = widgets.placement_calculator()
    assert isinstance(shown, Explorer)
    before = shown.caption.text
    shown.controls["context"].value = 2
    assert "put context into" in shown.message.text and shown.caption.text == before
    shown.controls["order"].value = "data, pipeline, context, tensor"
    assert not shown.message.text and shown.caption.text != before


@pytest.mark.parametrize(
    ("order", "words"),
    [("data, tensor", "put pipeline into"), ("data data pipeline tensor", "once"), ("data, tp, pipeline", "once")],
)
def test_an_order_that_cannot_be_is_one_clear_error(order: str, words: str):
    with pytest.raises(ValueError, match=words):
        placed_mesh("torus", "gpt3-13b", **START, order=order)


def test_the_picture_has_no_number_that_json_has_not():
    """Jupyter's messages refuse NaN in a list."""
    found = placed_mesh("rails: 8 NICs a node", "gpt3-13b", 2, 8, 2, 1, 1, "data, pipeline, tensor")
    figure = figure_traffic_matrix(found.traffic.traffic, mesh=found.mesh.sizes)
    cells = [value for row in figure.data[0].z for value in row]  # pyright: ignore
    assert None in cells
    assert all(value is None or math.isfinite(value) for value in cells)


# --- Tensor-parallel layers ---


def test_the_bars_are_the_closed_form_on_powers_of_two():
    found = tensor_layer("dgx-a100", 4096, 16, 2, "sequence")
    layer = LayerSizes(2, 2048, 4096, 64)
    assert [time.ranks for time in found.times] == [1, 2, 4, 8, 16] and found.ranks_per_node == 8
    assert found.times[3] == tensor_layer_time(layer, CLUSTERS["dgx-a100"], 8, "sequence")


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_2d_sends_less_from_the_tokens_of_the_sentence_on(ranks: int):
    fewest = tensor_layer("dgx-h100", 4096, ranks, 1, "f and g").fewest_for_2d
    for tokens, is_less in [(fewest * 0.99, False), (fewest * 1.01, True)]:
        layer = LayerSizes(1, 64 * round(tokens / 64 + (0.5 if is_less else -0.5)), 4096, 64)
        assert (two_dimensional_sent_bytes(layer, ranks) < layer_sent_bytes(layer, ranks)) == is_less
