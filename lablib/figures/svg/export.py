"""Pictures in a notebook's HTML export: nbconvert does not draw plotly's JSON, so each gets an HTML twin."""

from __future__ import annotations

from typing import Any

from lablib.figures.show import PLOTLY_MIME, framed
from lablib.signature import shown


def with_drawn_figures(notebook: Any) -> Any:
    """A copy of an executed notebook in which every plotly output can be drawn by `nbconvert`'s HTML exporter.

    plotly.js is put inside the first one, so the page also works without a network.

    Args:
        notebook: a notebook node of nbformat 4; left as it was.
    """
    from copy import deepcopy

    import plotly.graph_objects as go
    import plotly.io as pio
    from nbformat import NotebookNode

    if not isinstance(notebook, NotebookNode):
        raise TypeError(f"a notebook is what nbformat reads: got {shown(notebook)}; give nbformat.read(path, 4)")
    notebook = deepcopy(notebook)
    plotlyjs: bool = True
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if PLOTLY_MIME in data:
                figure = go.Figure({key: data[PLOTLY_MIME].get(key) for key in ("data", "layout")}, skip_invalid=True)
                options: dict[str, Any] = {"include_plotlyjs": plotlyjs, "include_mathjax": False}
                data["text/html"] = framed(figure, pio.to_html(figure, full_html=False, validate=False, **options))
                plotlyjs = False
    return notebook
