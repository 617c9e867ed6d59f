"""What a prediction shows of itself: tables that add up, pictures, and HTML that is text."""

from dataclasses import replace

import pytest

from lablib.plan import Parallel, Prediction, predict


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict("gpt3-175b", "dgx-a100", Parallel(data=8, tensor=8, pipeline=8), 1536, recompute="full")


def test_the_table_of_parts_ends_with_the_step_and_leaves_out_what_is_nothing(prediction):
    table = prediction.table()
    assert table.index[-1] == "step" and table["time_s"].iloc[-1] == prediction.step_time_s
    assert table["time_s"].iloc[:-1].sum() == pytest.approx(prediction.step_time_s)
    assert table["share"].iloc[:-1].sum() == pytest.approx(1.0)
    assert "tensor axis" in table.index and "expert axis" not in table.index


def test_the_table_of_memory_has_a_row_a_stage(prediction):
    table = prediction.memory_table()
    assert list(table["peak_bytes"]) == list(prediction.stage_bytes) and table["fits"].all()
    categories = table.drop(columns=["peak_bytes", "fits"])
    assert list(categories.sum(axis=1)) == pytest.approx(list(prediction.stage_bytes))
    tight = replace(prediction, memory_limit_bytes=sorted(prediction.stage_bytes)[3])
    assert tight.memory_table()["fits"].sum() == 4


def test_it_draws_itself(prediction):
    titles = [f.layout.title.text for f in (prediction.figure(), prediction.figure_memory(title="Bytes"))]
    assert titles == ["Where the step of gpt3-175b goes", "Bytes"]
    bars = [t for t in prediction.figure_communication().data if t.type == "bar"]
    assert list(bars[0].y) == ["tensor", "data", "pipeline"]


def test_its_html_is_its_sentence_and_table_as_text(prediction):
    html = replace(prediction, name="<b>x</b>", notes=("a < b",))._repr_html_()
    assert "&lt;b&gt;x" in html and "<b>x" not in html and "a &lt; b" in html
    assert "<table" in html and f"{prediction.table()['share'].iloc[0]:.1%}" in html
