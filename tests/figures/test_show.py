"""The output of a figure: picture, sentence and table, with and without JavaScript."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import re

import nbformat
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from lablib.figures import describe, figure_timeline, show, with_drawn_figures
from lablib.figures.show import PLOTLY_MIME, caption_html, picture_bundle, without_subtitle
from lablib.figures.theme import THEME_CSS


@pytest.fixture
def displayed(monkeypatch) -> list[dict[str, str]]:
    """The outputs, one dictionary of formats each."""
    outputs: list[dict[str, str]] = []

    def display(value, raw=False):
        outputs.append(value if raw else {"text/html": value.data})

    monkeypatch.setattr("IPython.display.display", display)
    return outputs


@pytest.fixture
def figure(examples) -> go.Figure:
    return figure_timeline(examples.ddp_step(num_ranks=2))


def test_show_displays_the_picture_then_the_words_and_the_table(figure, displayed):
    before = figure.to_json()
    show(figure)
    picture, words = displayed
    assert {PLOTLY_MIME, "text/html"} <= picture.keys()
    assert picture["text/html"].index("<svg") < picture["text/html"].index("Plotly.newPlot")
    assert describe(figure) in words["text/html"] and "<details>" in words["text/html"]
    # The words need no script; the one after them gives the picture its name for a screen reader.
    assert words["text/html"].startswith(caption_html(figure)) and "<script" not in caption_html(figure)
    assert 'setAttribute("role", "img")' in words["text/html"] and 'setAttribute("aria-label"' in words["text/html"]
    assert THEME_CSS in words["text/html"]
    assert figure.to_json() == before


def test_a_picture_loads_plotly_as_plotlys_own_html_does(figure):
    own = pio.to_html(figure, include_plotlyjs="cdn", full_html=False)
    pages = own, picture_bundle(figure)["text/html"]
    wanted, found = (re.findall(r"<script.*?</script>", page, re.DOTALL) for page in pages)
    assert "integrity=" in wanted[1] and found[:2] == wanted[:2]
    assert [one.count("Plotly.newPlot(") for one in found[:3]] == [0, 0, 1]


def test_the_caption_is_text_not_markup(figure):
    figure.layout.meta = {"summary": "a <b> & c.", "table": {"x": [1]}}
    assert "a &lt;b&gt; &amp; c." in caption_html(figure)


def test_show_takes_a_figure_of_somebody_else(displayed):
    show(go.Figure(go.Scatter(x=[1], y=[2])))
    assert len(displayed) == 2 and "<details>" not in displayed[1]["text/html"]


def test_without_subtitle_gives_back_its_room(figure):
    bare = without_subtitle(figure)
    assert not bare.layout.title.subtitle.text and bare.layout.height < figure.layout.height
    plot = [f.layout.height - f.layout.margin.t for f in (figure, bare)]
    assert plot[0] == plot[1]


def test_an_exported_notebook_draws_its_figures_and_carries_plotly_js_once(figure):
    outputs = [nbformat.v4.new_output("display_data", data=picture_bundle(figure)) for _ in range(2)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=outputs)])
    nbformat.validate(notebook)
    drawn = with_drawn_figures(notebook)
    first, second = (o["data"]["text/html"] for o in drawn.cells[0].outputs)
    assert "Plotly.newPlot" in first and "Plotly.newPlot" in second
    assert len(first) > 3e6 > len(second)
    assert all(f'role="img" aria-label="{describe(figure)}"' in page for page in (first, second))
    assert "cdn" in notebook.cells[0].outputs[0]["data"]["text/html"]  # the notebook itself stays as it was
