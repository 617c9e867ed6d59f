"""A page per technique: the head of its file, then each public function and class with signature and docstring.

The files are read, not imported. A package has a page with a line per file, in the order of its `__init__.py`. The tree
of pages has the packages only: with 250 more entries on each page it took three quarters of the site.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lablib.site.book.docstrings import inline, literal, to_markdown
from lablib.text.files import read_text, write_text

PACKAGES = ("precision", "memory", "batches", "optim", "kernels", "data", "parallel", "pipeline", "compress")
_HEAD = "# Techniques\n\nOne file per technique: definition, cost, source, and its functions.\n\n"


def write_techniques(lablib: Path, into: Path, labs: Mapping[str, str]) -> None:
    """Write the pages of the technique packages of the folder `lablib`.

    `labs`: code of each lab by the name of its page; a technique lists the labs that use its names.
    """
    for package in PACKAGES:
        _write_package(lablib / package, into / package, labs)
    write_text(into / "index.md", _HEAD + _listed([lablib / package for package in PACKAGES]))


def _write_package(folder: Path, into: Path, labs: Mapping[str, str]) -> None:
    head = _head(folder)
    parts = [p for p in folder.iterdir() if (p / "__init__.py").is_file() or (p.suffix == ".py" and p.stem[0] != "_")]
    parts.sort(key=lambda p: (found.start() if (found := re.search(rf"\b{p.stem}\b", head)) else len(head), p.stem))
    for path in parts:
        if path.is_dir():
            _write_package(path, into / path.stem, labs)
        else:
            write_text(into / f"{path.stem}.md", _page(path, labs))
    names = {path.stem for path in parts}
    blocks = head.split("\n\n")
    opening, *more = [block for block in blocks if not set(re.findall(r"^ *(\w+)\b.* {2,}", block, re.M)) & names]
    text = [f"# {_title(folder)}", to_markdown(_without_title(opening)), _listed(parts), to_markdown("\n\n".join(more))]
    write_text(into / "index.md", "\n\n".join(text))


def _listed(parts: list[Path]) -> str:
    """A line for each file and package, and the packages for the tree of pages."""
    pages = [f"{path.stem}/index" if path.is_dir() else path.stem for path in parts]
    rests = [inline(_sentence(path)[1] or f"`{path.name}`") for path in parts]
    lines = [f"- [{_title(p)}]({page}.md): {rest}" for p, page, rest in zip(parts, pages, rests, strict=True)]
    packages = [page for page in pages if "/" in page]
    return "\n".join([*lines, "", *(["```{toctree}", ":hidden:", *packages, "```"] if packages else []), ""])


def _page(path: Path, labs: Mapping[str, str]) -> str:
    source = read_text(path)
    tree = ast.parse(source)
    shown = [node for node in tree.body if isinstance(node, _Definition) and node.name[0] != "_"]
    where = "/".join(path.parts[len(path.parts) - path.parts[::-1].index("lablib") - 1 :])
    way = f"[Techniques](/techniques/index.md) › [{_title(path.parent)}](index.md) › `{where}`"
    names = "|".join(node.name for node in shown) or "$^"
    using = [name for name, code in labs.items() if re.search(rf"\b({names})\b", code)]
    used = [f"[lab {name[:2]}](/labs/{name}.ipynb)" for name in using]
    parts = ["---\norphan: true\n---", f"# {_title(path)}", way, to_markdown(_without_title(_head(path)))]
    parts += [f"Used in {', '.join(used)}."] if used else []
    return "\n\n".join([*parts, *(text for node in shown for text in _definition(node, source.split("\n"), "##"))])


_Definition = ast.FunctionDef | ast.ClassDef


def _definition(node: _Definition, source: list[str], heading: str) -> Iterator[str]:
    """Heading, signature and docstring; of a class also its `__init__` and documented methods."""
    methods = [each for each in getattr(node, "body", ()) if isinstance(each, ast.FunctionDef)]
    made = [each for each in methods if each.name == "__init__"] if isinstance(node, ast.ClassDef) else []
    yield f"{heading} {inline(node.name)}"
    fields = [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)]
    kept = "".join(f"\n    {field}" for field in fields if isinstance(node, ast.ClassDef) and field[0] != "_")
    signatures = [_signature(node, source) + kept, *(_signature(each, source) for each in made)]
    yield literal("\n\n".join(signatures), "python")
    if text := ast.get_docstring(node):
        yield to_markdown(text)
    for method in methods if isinstance(node, ast.ClassDef) else ():
        if method.name[0] != "_" and ast.get_docstring(method):
            yield from _definition(method, source, "###")


def _signature(node: _Definition, source: list[str]) -> str:
    """The lines before the body, without the margin."""
    lines = source[node.lineno - 1 : max(node.lineno, node.body[0].lineno - 1)]
    return "\n".join(line[node.col_offset :].partition("  #")[0] for line in lines).rstrip().removesuffix(":")


def _head(path: Path) -> str:
    """The docstring of a file or a package."""
    return ast.get_docstring(ast.parse(read_text(path / "__init__.py" if path.is_dir() else path))) or path.stem


def _sentence(path: Path) -> tuple[str, str]:
    """The first sentence of a head, before and after its first colon, of a package also its first comma."""
    first = re.split(r"(?<=[.?!])\s", " ".join(_head(path).split("\n\n")[0].split()))[0].rstrip(".")
    name, *rest = re.split(r"[:,] " if path.is_dir() else ": ", first, maxsplit=1)
    return name, "".join(rest)


def _without_title(head: str) -> str:
    """A head without the words before the colon of its first line, which are the title of the page."""
    return re.sub(r"\A[^:.\n]{2,80}: (\S)", lambda found: found[1].upper(), head)


def _title(path: Path) -> str:
    return inline(_sentence(path)[0])
