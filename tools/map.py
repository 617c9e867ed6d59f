"""Write docs/map.md: how imports go, then one line a file of `lablib/`, the first sentence of its docstring.

    python tools/map.py            write it
    python tools/map.py --check    exit 1 if the page says something else

Folders come as pyproject.toml's layers of imports do, from the bottom up; files in the order in which the folder's
`__init__.py` imports them, then the others by name.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "map.md"
HEAD = """# Map of the files

Written by `make map` from the docstrings. Imports go downhill (`lint-imports`, pyproject.toml): a line may import from
those below it, never from one above. Folders follow from the bottom up.

"""


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, without its full stop; "" for a file that is empty or not there.

    Raises:
        SystemExit: the module has code and no docstring.
    """
    tree = ast.parse(path.read_text("utf-8") if path.exists() else "")
    docstring = ast.get_docstring(tree)
    if not tree.body:
        return ""
    if not docstring:
        sys.exit(f"{path.relative_to(ROOT)} must open with a docstring that says what it is: write one.")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s", paragraph)[0].rstrip(".").rstrip(":")


def layers() -> list[str]:
    """The layers of imports, from the top down, as pyproject.toml has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    return next(contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")


def page() -> str:
    """The page as Markdown."""
    package = ROOT / "lablib"
    order = [name for layer in reversed(layers()) for name in re.findall(r"lablib\.(\w+)", layer)]
    folders = sorted({path.parent for path in package.rglob("*.py")})
    folders.sort(key=lambda folder: [_place(part, order) for part in folder.relative_to(package).parts])
    lines = ["```", *(layer.replace("lablib.", "") for layer in layers()), "```", ""]
    for folder in folders:
        name = folder.relative_to(ROOT).as_posix()
        lines += [f"**`{name}/`** {first_sentence(folder / '__init__.py')}".rstrip(), ""]
        modules = in_reading_order(folder)
        lines += [f"- `{path.name}` {first_sentence(path)}" for path in modules]
        lines += [""] if modules else []
    return HEAD + "\n".join(lines)


def in_reading_order(folder: Path) -> list[Path]:
    """A folder's modules: as its `__init__.py` imports them, then the others by name."""
    init = folder / "__init__.py"
    text = init.read_text("utf-8") if init.exists() else ""
    package = folder.relative_to(ROOT).as_posix().replace("/", ".")
    named = re.findall(rf"from {re.escape(package)}(?: import |\.)(\w+)", text)
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    return sorted(modules, key=lambda path: named.index(path.stem) if path.stem in named else len(named))


def _place(name: str, order: list[str]) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        is_stale = not PAGE.exists() or PAGE.read_text("utf-8") != page()
        if is_stale:
            print("docs/map.md does not list the files of lablib/ as they are: run `make map`.", file=sys.stderr)
        return int(is_stale)
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
