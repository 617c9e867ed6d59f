"""The language of notebooks and messages: English, or the one of the environment.

LAB_LANG=zh                                    chosen by the reader; "en" is English
JPY_SESSION_NAME=/x/work/00_first_steps.zh.ipynb    set by Jupyter's server: the notebook of this kernel
"""

import os
import re

_LANGUAGE = re.compile(r"[a-z]{2,3}")
_NOTEBOOK = re.compile(r"\.([a-z]{2,3})\.ipynb$|[/\\]labs[/\\]([a-z]{2,3})[/\\][^/\\]+\.ipynb$")


def language() -> str:
    """The code of the language, such as "zh"; "" for English.

    Raises ValueError: LAB_LANG is no code of a language.
    """
    chosen = os.environ.get("LAB_LANG", "")
    code = re.split(r"[-_.]", chosen.lower())[0]  # zh_CN.UTF-8, zh-Hans
    if chosen and not _LANGUAGE.fullmatch(code):
        raise ValueError(f"LAB_LANG must be the code of a language: got {chosen!r}; try LAB_LANG=zh, or unset it.")
    if not chosen:
        named = _NOTEBOOK.search(os.environ.get("JPY_SESSION_NAME", ""))
        code = (named[1] or named[2]) if named else ""
    return "" if code == "en" else code
