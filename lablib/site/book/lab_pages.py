"""An executed lab as a notebook for Sphinx: figures as HTML, answers and optional sections folded, no solutions."""

import ast
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from lablib.course.guess import LOCKED
from lablib.figures.show import PLOTLY_MIME
from lablib.site.book.figures import exploration_html, figure_html, packed
from lablib.widgets.all_pictures import PICTURES_MIME

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
_FOLD = '<details class="lablib-further"><summary>Optional: show this section</summary>'
_INVISIBLE = re.compile(r"<(script|style)\b.*?</\1>", re.DOTALL)


@dataclass
class LabPage:
    """A page, the HTML of its first figure, and the files of its figures: name -> contents."""

    notebook: NotebookNode
    first_figure: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def lab_page(executed: NotebookNode, name: str) -> LabPage:
    """The page of an executed lab, which is not changed. `name`: "08_collectives"."""
    page = LabPage(deepcopy(executed))
    notebook, guesses = page.notebook, set[str]()
    notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for given in cell.outputs for output in _outputs(given, page, name)]
        used = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
        if cell.outputs and guesses & used:
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-output"]
            cell.metadata["mystnb"] = {"code_prompt_show": "Show the answer", "code_prompt_hide": "Hide the answer"}
        guesses |= set(re.findall(r"\b(my_\w+)(?=[\w, ]*= (?:None|(?:\w+\.)?guess\())", cell.source))
    about = f"Read it here; `lab open {name[:2]}` runs it, with every exercise and control. "
    about += f'<a href="../notebooks/{name}.ipynb" download>Download the notebook</a>'
    notebook.cells.insert(1, new_markdown_cell(about))
    notebook.cells = list(_sections_folded(notebook.cells))
    return page


def _sections_folded(cells: list[NotebookNode]) -> Iterator[NotebookNode]:
    """The cells, with what follows the heading of each section tagged `further` between HTML that folds it."""
    is_open = False
    for cell in cells:
        is_heading = cell.cell_type == "markdown" and cell.source.startswith("## ")
        if is_heading and is_open:
            yield new_markdown_cell("</details>")
            is_open = False
        if is_heading and "further" in cell.metadata.get("tags", []):
            heading, _, text = cell.source.partition("\n")
            cell.source, is_open = f"{heading}\n\n{_FOLD}\n\n{text}", True
        yield cell
    if is_open:
        yield new_markdown_cell("</details>")


def _outputs(output: NotebookNode, page: LabPage, name: str) -> Iterator[NotebookNode]:
    data = output.get("data")
    if data is None:
        if output.get("name") != "stderr":  # progress bars
            yield output
        return
    file = f"{name[:2]}-{len(page.files) + 1}.figures"
    source = f"../_static/figures/{file}"
    if PICTURES_MIME in data:
        page.files[file] = packed(data[PICTURES_MIME]["pictures"])
        data = {"text/html": exploration_html(data[PICTURES_MIME], source)}
    elif PLOTLY_MIME in data:
        page.files[file] = packed([{"figure": data[PLOTLY_MIME]}])
        data = {"text/html": figure_html(data[PLOTLY_MIME], source)}
        page.first_figure = page.first_figure or data["text/html"]
    elif WIDGET_MIME in data:
        data = {"text/html": "<p>This control moves in JupyterLab.</p>"}
    elif is_solution(data.get("text/html", "")):
        data = {"text/plain": data["text/plain"]}
    elif data.get("text/plain", "").startswith(LOCKED):
        data = {"text/html": "<p>In JupyterLab the answer shows here after your guess.</p>"}
    elif "text/html" in data:
        data = {"text/html": _INVISIBLE.sub("", data["text/html"])}
    output.data = NotebookNode(data)
    yield output


def is_solution(html: str) -> bool:
    """Whether an output is the folded source of a solution (`show_source(..., after=check.name)`)."""
    return html.startswith("<details><summary>") and ": a solution. Solve exercise" in html
