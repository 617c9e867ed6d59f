"""Write the README's list of files: one line a file of `lablib/`, the first sentence of its docstring.

    python tools/readme.py            write it
    python tools/readme.py --check    exit 1 if the README has another one

The list stands between the marks `<!-- files -->` and `<!-- /files -->`; everything else in the README is left alone.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Packages in reading order, downhill: each imports only from those before it. One not named here comes last.
ORDER = (
    "hardware cost record owners sim real script models precision memory optim kernels data parallel pipeline compress "
    "plan figures widgets course"
).split()
MARKED = re.compile(r"(?<=<!-- files -->\n).*?(?=<!-- /files -->)", re.DOTALL)


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


def list_of_files() -> str:
    """The list as Markdown: the package's own modules, then each sub-package under its name."""
    package = ROOT / "lablib"
    folders = sorted({path.parent for path in package.rglob("*.py")})
    folders.sort(key=lambda folder: [_place(part) for part in folder.relative_to(package).parts])
    lines = []
    for folder in folders:
        name = folder.relative_to(ROOT).as_posix()
        lines += [f"**`{name}/`** {first_sentence(folder / '__init__.py')}".rstrip(), ""]
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        lines += [f"- `{path.name}` {first_sentence(path)}" for path in modules]
        lines += [""] if modules else []
    return "\n".join(lines)


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def main(arguments: list[str]) -> int:
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    wanted = MARKED.sub(lambda _: list_of_files(), text)
    if "--check" in arguments:
        if wanted != text:
            print("README.md does not list the files of lablib/ as they are: run `make readme`.", file=sys.stderr)
        return int(wanted != text)
    readme.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
