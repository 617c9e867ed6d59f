"""A lab's page has figures as SVG, folded answers, and no solution."""

import gzip
import json

import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lablib.course.checks.result import ShownSource
from lablib.course.guess import Guesses
from lablib.figures.show import picture_bundle
from lablib.site.book.lab_pages import is_solution, lab_page
from lablib.widgets.all_pictures import PICTURES_MIME, all_pictures
from lablib.widgets.controls import Choice, IntChoice

BAR = go.Figure(go.Bar(x=["a"], y=[1], marker={"pattern": {"shape": "/"}}), {"height": 300, "title": "Bar"})
SOLUTION = ShownSource("lablib.ring: a solution. Solve exercise 'The ring' first; then open this.", "secret = 1", False)


def shown(**data: object):
    return new_output("display_data", {name.replace("_", "/"): value for name, value in data.items()})


def page_of(*cells):
    return lab_page(new_notebook(cells=[new_markdown_cell("# Lab 08: Rings"), *cells]), "08_rings")


def test_answers_of_guesses_are_folded_and_the_guess_is_not():
    answer = new_output("stream", text="2")
    cells = [
        new_code_cell("my_guess, my_best = None, None", outputs=[answer]),
        new_code_cell("print(1)", outputs=[answer]),
        new_code_cell("print(my_best)", outputs=[answer]),
        new_code_cell('my_size = lab08.guess("size", None, interactive, "MB")', outputs=[answer]),
        new_code_cell("my_size.reveal(2)", outputs=[answer]),
        new_code_cell("interactive = False", metadata={"tags": ["injected-parameters"]}),
    ]
    page = page_of(*cells).notebook
    tags = [cell.metadata.get("tags", []) for cell in page.cells if cell.cell_type == "code"]
    assert tags == [[], [], ["hide-output"], [], ["hide-output"]]
    assert page.cells[4].metadata["mystnb"]["code_prompt_show"] == "Show the answer"
    assert "../notebooks/08_rings.ipynb" in page.cells[1].source


def test_the_text_of_an_optional_section_is_folded_and_its_heading_is_not():
    further = {"tags": ["further"]}
    cells = [
        new_markdown_cell("## Rings"),
        new_markdown_cell("## Further: trees (3 min)\n\nA tree.", metadata=further),
        new_code_cell("x"),
        new_markdown_cell("## Further: live", metadata=further),
        new_markdown_cell("## Summary"),
        new_markdown_cell("## Further: last", metadata=further),
    ]
    sources = [cell.source for cell in page_of(*cells).notebook.cells[2:]]
    fold = '<details class="lablib-further"><summary>Optional: show this section</summary>\n\n'
    assert sources == [
        "## Rings",
        f"## Further: trees (3 min)\n\n{fold}\nA tree.",
        "x",
        "</details>",
        f"## Further: live\n\n{fold}",
        "</details>",
        "## Summary",
        f"## Further: last\n\n{fold}",
        "</details>",
    ]


def test_a_solution_and_scripts_are_left_out():
    assert is_solution(SOLUTION._repr_html_()) and not is_solution(ShownSource("x", "y", True)._repr_html_())
    outputs = [
        shown(text_html=SOLUTION._repr_html_(), text_plain=repr(SOLUTION)),
        shown(text_html="<style>b {}</style><p>one</p><script>two</script>"),
        new_output("stream", name="stderr", text="100%"),
    ]
    cell = page_of(new_code_cell("x", outputs=outputs)).notebook.cells[2]
    assert [dict(output.data) for output in cell.outputs] == [
        {"text/plain": SOLUTION.title},
        {"text/html": "<p>one</p>"},
    ]


def test_figures_are_svg_with_hatchings_of_their_own_and_their_data_in_files():
    figures = [new_output("display_data", picture_bundle(BAR)) for _ in range(2)]
    page = page_of(new_code_cell("x", outputs=figures))
    first, second = (output.data["text/html"] for output in page.notebook.cells[2].outputs)
    assert page.first_figure == first and "<svg" in first and "<script" not in first
    assert 'data-source="../_static/figures/08-2.figures"' in second and "url(#08-2-" in second
    ((drawn,),) = [json.loads(gzip.decompress(page.files["08-1.figures"]))]
    assert drawn["figure"]["data"][0]["x"] == ["a"]


def test_an_exploration_has_its_controls_and_the_figure_of_their_defaults():
    def draw(place: tuple[int, str]) -> go.Figure:
        if place == (9, "b"):
            raise ValueError("no such figure")
        return go.Figure(BAR).update_layout(title=f"{place}")

    controls = [IntChoice("n", "Ranks", range(1, 100, 2), 9), Choice("kind", "Kind", ("a", "b"), "a")]
    pictures = all_pictures(lambda n, kind: (n, kind), draw, controls, [{"kind": "b"}])
    page = page_of(new_code_cell("x", outputs=[new_output("display_data", pictures._repr_mimebundle_())]))
    html = page.notebook.cells[2].outputs[0].data["text/html"]
    assert html.index("Kind <select>") < html.index('Ranks <input type="range"')
    values = pictures.record["controls"][1]["values"]
    assert len(values) <= 6 and {"1", "9", "99"} <= set(values)
    drawn = json.loads(gzip.decompress(page.files["08-1.figures"]))
    at = values.index("9")
    assert drawn[at]["figure"]["layout"]["title"]["text"] == "(9, 'a')" and "(9, &#x27;a&#x27;)" in html
    assert drawn[len(values) + at] == {"message": "no such figure"} and len(drawn) == 2 * len(values)


def test_explore_draws_all_pictures_where_the_environment_asks(monkeypatch: pytest.MonkeyPatch):
    from lablib.widgets import explore

    arguments = (lambda n: n, lambda n: go.Figure(BAR), [IntChoice("n", "Ranks", (1, 2), 1)], False)
    assert not hasattr(explore(*arguments), "record")
    monkeypatch.setenv("LAB_PICTURES", "all")
    assert PICTURES_MIME in explore(*arguments)._repr_mimebundle_()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_locked_answer_is_announced_in_one_line():
    notice = repr(Guesses(["days"], None, False).reveal(3))
    page = page_of(new_code_cell("x.reveal(3)", outputs=[new_output("execute_result", {"text/plain": notice})]))
    assert page.notebook.cells[2].outputs[0].data == {
        "text/html": "<p>In JupyterLab the answer shows here after your guess.</p>"
    }
