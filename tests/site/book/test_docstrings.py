"""Docstrings as Markdown keep their words, their columns and their marks."""

import inspect

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lablib.site.book.docstrings import inline, to_markdown

HEAD = inspect.cleandoc(
    """A ring: r sends to r +
    1, and *no* rank idles.

        step    rank 0   rank 1
        0       c0       c1

    Cost: 2 (n-1)/n S bytes.
    Source: Authors, "Title", 2009,
    section 4.
    At step t, the sum:

        w = w - lr g

    Args:
        x_BT: shape [B, T];
            changed in place.
        group: `None`: all.

    - one
    - two
    """
)


def test_each_kind_of_part_is_recognized():
    parts = to_markdown(HEAD).strip().split("\n\n")
    assert parts == [
        r"A ring: r sends to r + 1, and \*no\* rank idles.",
        "```text\nstep    rank 0   rank 1\n0       c0       c1\n```",
        "**Cost:** 2 (n-1)/n S bytes.",
        '**Source:** Authors, "Title", 2009, section 4. At step t, the sum:',
        "```text\nw = w - lr g\n```",
        "**Args:**",
        "- **x\\_BT**: shape \\[B, T\\]; changed in place.\n- **group**: `None`: all.",
        "- one\n- two",
    ]


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="`&!"), min_size=1))
def test_a_paragraph_shows_the_text_as_it_is(text):
    words = " ".join(text.split())
    tokens = MarkdownIt().parse(inline(text))
    assert [token.type for token in tokens] == (["paragraph_open", "inline", "paragraph_close"] if words else [])
    for token in tokens:
        assert {child.type for child in token.children or ()} <= {"text", "text_special"}
        assert "".join(child.content for child in token.children or ()) == (words if token.children else "")


def test_code_in_a_paragraph_stays_code():
    assert inline("call `a_b[0]` or a_b[0]") == r"call `a_b[0]` or a\_b\[0\]"
