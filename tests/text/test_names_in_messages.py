"""A message that names a function, an argument or an attribute names one that exists."""

import ast
import keyword
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(.*?\))?`")
FILE = re.compile(r"\.(py|jsonl|toml)$")


def names_and_texts(path: Path) -> tuple[set[str], list[tuple[str, str]]]:
    """The names that a file defines or uses, and its strings, without docstrings, each with its line."""
    names, texts, docstrings = set(), [], set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):  # parents come before their children
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            docstrings.add(node.body[0].value)  # pyright: ignore[reportAttributeAccessIssue]
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                names.add(name)
            case ast.arg(arg=str(name)) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.alias(name=name):
                names.update(name.split("."))
            case ast.JoinedStr(values=parts):  # what is computed stands as "{}"
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
                texts.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
            case ast.Constant(value=str(text)) if node not in docstrings:
                texts.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
                names |= {text} if re.fullmatch(r"[\w-]+", text) else set()
    return names, texts


def test_every_name_in_backquotes_exists():
    known, found = set(keyword.kwlist), []
    for path in (*(ROOT / "lablib").rglob("*.py"), *(ROOT / "labs" / "masters").rglob("*.py")):
        names, texts = names_and_texts(path)
        known |= names
        found += [(where, name) for where, text in texts for name in NAMED.findall(text) if not FILE.search(name)]
    assert len(found) > 100
    assert [(where, name) for where, name in found if not known.issuperset(name.split("."))] == []
