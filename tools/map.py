"""Write docs/map.md: the layers of imports, then one line per package of `lablib/` and per file at its top.

    python tools/map.py            write it
    python tools/map.py --check    exit 1 if the page says something else

A line is the first sentence of a docstring. Packages come as pyproject.toml's layers of imports do, from the bottom up.
The files of a package are listed in its own `__init__.py`.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lablib"
PAGE = ROOT / "docs" / "map.md"
HEAD = """# Map of lablib

Written by `make map` from the docstrings. Imports go downhill (`lint-imports`, pyproject.toml): a package may import
from those below it, never from one above. The `__init__.py` of a package lists its files.

"""


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, without its full stop.

    Raises:
        SystemExit: the module has no docstring.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    if not docstring:
        sys.exit(f"{path.relative_to(ROOT)} must open with a docstring that says what it is: write one.")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s", paragraph)[0].rstrip(".:")


def layers() -> list[str]:
    """The layers of imports, from the top down, as pyproject.toml has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    return next(contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")


def page() -> str:
    """The page as Markdown."""
    order = [name for layer in reversed(layers()) for name in re.findall(r"lablib\.(\w+)", layer)]

    def place(path: Path) -> tuple[int, str]:
        return order.index(path.stem) if path.stem in order else len(order), path.stem

    lines = ["```", *(layer.replace("lablib.", "") for layer in layers()), "```", ""]
    for path in sorted(PACKAGE.iterdir(), key=place):
        if path.suffix == ".py" and path.name != "__init__.py":
            lines.append(f"- `{path.name}` {first_sentence(path)}")
        elif (path / "__init__.py").exists():
            lines += [_line(init) for init in sorted(path.rglob("__init__.py"), key=lambda init: init.parent.parts)]
    return HEAD + "\n".join(lines) + "\n"


def _line(init: Path) -> str:
    """The line of a package, indented as deep as it lies."""
    name = init.parent.relative_to(PACKAGE)
    files = len(list(init.parent.glob("*.py"))) - 1
    return f"{'  ' * (len(name.parts) - 1)}- `{name.as_posix()}/` {first_sentence(init)} ({files} files)"


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        is_stale = not PAGE.exists() or PAGE.read_text("utf-8") != page()
        if is_stale:
            print("docs/map.md does not list the packages of lablib/ as they are: run `make map`.", file=sys.stderr)
        return int(is_stale)
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
