"""Write down a tree's predictions, texts and public names, to compare two trees across a refactoring.

    python tools/freeze.py FOLDER          # in each tree; then: diff -r BEFORE AFTER

predictions.json: the errors of the planner on all published rows, to the bit. texts.txt: every string of lablib that is
no docstring. names.txt: every name of lablib that notebooks, checks, guides and tests import. Modules may move between
the trees, so texts and names are listed without them. tools/record_messages.py records the errors themselves.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK_OF_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def texts() -> Iterator[str]:
    """The strings of lablib, each on one line, as often as they occur."""
    for path in (ROOT / "lablib").rglob("*.py"):
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield repr(node.value)


def names() -> Iterator[str]:
    """The names that code outside lablib imports from it, each with who does."""
    for folder in ("labs/masters", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            yield from (f"{name}\t{folder}" for name in _imported(path.read_text()))
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for code in _BLOCK_OF_CODE.findall(path.read_text()):
            yield from (f"{name}\tguides" for name in _imported(code))


def _imported(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lablib":
            yield from (alias.name for alias in node.names)


def main(folder: Path) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("".join(f"{line}\n" for line in sorted(texts())))
    (folder / "names.txt").write_text("".join(f"{line}\n" for line in sorted(set(names()))))
    lab = Path(sys.executable).with_name("lab")
    report = subprocess.run([lab, "validate", "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    (folder / "predictions.json").write_text(report.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
