"""The placement calculator: what its picture says is what `place` says."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from __future__ import annotations

import math

import pytest

from lablib.figures import describe, figure_traffic_matrix, table
from lablib.parallel import Mesh
from lablib.studies import place
from lablib.widgets import placement_calculator
from lablib.widgets.explore import Pictures
from lablib.widgets.explorer import Explorer
from lablib.widgets.placement_calculator import NETWORKS, network_of, placed_mesh

START = {"data": 4, "tensor": 8, "pipeline": 2, "context": 1, "expert": 1}


def test_the_sentence_and_the_squares_are_the_placements():
    found = placed_mesh("rails: 8 NICs a node", "gpt3-13b", **START, order="data pipeline tensor")
    mesh = Mesh(data=4, pipeline=2, tensor=8)
    expected = place("gpt3-13b", mesh, network_of("rails: 8 NICs a node"), 64, zero_stage=1, seq_len=2048)
    assert found.step_time_s == expected.step_time_s and found.mesh == mesh
    pictures = placement_calculator(interactive=False)
    assert isinstance(pictures, Pictures)
    first = pictures.pictures[0].figure
    assert expected.sentence()[1:].rstrip(".") in describe(first)
    sent = sum(matrix.sum() for matrix in expected.traffic.matrices.values())
    assert sum(table(first)["bytes (B)"]) == pytest.approx(sent)


def test_wires_alone_differ():
    devices = {network_of(name).device.name for name in NETWORKS}
    assert devices == {"H100-80GB-SXM"}
    assert network_of("RoCE at 15 us").inter.latency_s == 15e-6
    steps = {name: placed_mesh(name, "gpt3-13b", **START, order="tensor, data, pipeline") for name in NETWORKS}
    times = {name: one.step_time_s for name, one in steps.items()}
    assert times["NVLink island of 72"] == min(times.values())
    assert times["RoCE at 15 us"] > times["rails: 8 NICs a node"]


def test_moving_a_control_redraws_the_sentence():
    shown = placement_calculator()
    assert isinstance(shown, Explorer)
    assert "ranks wait longest for" in shown.caption.text
    for name, value in {
        "order": "tensor, data, pipeline",
        "network": "torus",
        "data": 2,
        "tensor": 4,
        "pipeline": 1,
        "model": "llama-3-8b",
    }.items():
        before = shown.caption.text
        shown.controls[name].value = value
        assert shown.caption.text != before and not shown.message.text


def test_an_axis_that_the_order_lacks_is_named_and_the_last_figure_stays():
    shown = placement_calculator()
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


def test_without_widgets_it_is_pictures_with_words():
    pictures = placement_calculator(interactive=False)
    assert isinstance(pictures, Pictures)
    assert len(pictures.pictures) == 4
    assert all("leave their node" in describe(picture.figure) for picture in pictures.pictures)
    assert "expert axis" in describe(pictures.pictures[3].figure) or "tensor axis" in describe(
        pictures.pictures[3].figure
    )


@pytest.mark.parametrize("wrong", [{"tensor": 5}, {"network": "string and cans"}])
def test_a_start_that_is_none_of_the_choices_is_one_clear_error(wrong):
    with pytest.raises(ValueError, match="must be one of its values"):
        placement_calculator(**wrong)


def test_the_picture_has_no_number_that_json_has_not():
    """NaN in a list is refused by Jupyter's messages, and a warning of four lines stood above the picture."""
    found = placed_mesh("rails: 8 NICs a node", "gpt3-13b", 2, 8, 2, 1, 1, "data, pipeline, tensor")
    figure = figure_traffic_matrix(found.traffic.traffic, mesh=found.mesh.sizes)
    cells = [value for row in figure.data[0].z for value in row]  # pyright: ignore
    assert None in cells
    assert all(value is None or math.isfinite(value) for value in cells)
