"""Escape names for HTML, Markdown and figures: markup in them is shown, not interpreted.

A name may come from a foreign file: a cluster called `<img src=x onerror=...>` would run its code in the reader's
notebook. All HTML of this package is made with these functions, and every text of a figure passes `in_picture`.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Tags used by the figures of this package; plotly supports a few more, including links.
_OURS = r"/?(?:b|i|sub|sup)>|br>|/span>|span style='font-size:[0-9]+px;color:#[0-9A-Fa-f]{6}'>"
_WEB = re.compile(r"https?://[^\s<>()\"']+")
_FOREIGN = re.compile(f"<(?!{_OURS})")


def in_html(text: object) -> str:
    """Escape a text between tags, or in a quoted attribute."""
    return escape(str(text))


def paragraph(text: object, style: str = "") -> str:
    """The text as a paragraph of HTML; `style` is trusted CSS."""
    return f'<p style="{style}">{in_html(text)}</p>' if style else f"<p>{in_html(text)}</p>"


def html_page(title: object, style: str, main: str) -> str:
    """A page without script; `style` is trusted CSS, `main` trusted HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{in_html(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
{main}
</main>
</body>
</html>"""


def table_html(frame: pd.DataFrame, **options: Any) -> str:
    """The table as HTML. Options of `DataFrame.to_html`, which escapes cells and headings.

    A heading such as predicted_calls may break after its "_": a table of eleven columns fits a notebook.
    """
    return frame.rename(columns=lambda name: str(name).replace("_", "_\u200b")).to_html(escape=True, **options)


def in_markdown(text: object) -> str:
    """Escape a text for Markdown, which allows HTML tags."""
    return str(text).replace("<", "&lt;").replace("\n", " ")


def link_in_markdown(text: object, address: str) -> str:
    """A link with that text; only the text if the address is not http or https, such as `javascript:`."""
    shown = in_markdown(text).replace("[", "\\[").replace("]", "\\]")
    return f"[{shown}]({address})" if _WEB.fullmatch(address) else shown


def plain(name: object) -> str:
    """Escape a name for a text of a plotly figure; plotly has no `&quot;`."""
    return escape(str(name), quote=False)


def in_picture(text: str) -> str:
    """A text of a plotly figure, which interprets some tags: tags of this package are kept, other `<` are escaped.

    >>> in_picture("<b>rank 0</b><br>vector<int>")
    '<b>rank 0</b><br>vector&lt;int>'
    """
    return _FOREIGN.sub("&lt;", text)
