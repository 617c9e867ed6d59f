"""The house: folders that can be looked over, indexes that import what is used, and a bound on the number of lines."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INDEXES = sorted((ROOT / "lablib").rglob("__init__.pyi"))
FILES_PER_FOLDER = 30
FILES_AT_THE_TOP = 12
LINES_OF_LABLIB = 109_210
LINES_OF_TESTS = 89_730


def package_of(index: Path) -> str:
    return ".".join(index.parent.relative_to(ROOT).parts)


def lines(folder: str) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py"))


def test_no_folder_has_more_files_than_can_be_looked_over():
    folders = {path.parent for path in (ROOT / "lablib").rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > FILES_PER_FOLDER} == {}
    assert counts["lablib"] <= FILES_AT_THE_TOP


def test_the_code_does_not_grow_unseen():
    assert lines("lablib") <= LINES_OF_LABLIB
    assert lines("tests") <= LINES_OF_TESTS


@pytest.mark.parametrize("index", INDEXES, ids=package_of)
def test_each_name_of_an_index_is_the_one_its_file_defines(index: Path):
    package = importlib.import_module(package_of(index))
    nodes = [node for node in ast.parse(index.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    listed = [(node.module, alias) for node in nodes for alias in node.names]
    names = [alias.asname or alias.name for _, alias in listed]
    assert sorted(names) == sorted(package.__all__) and len(set(names)) == len(names)
    for module, alias in listed:
        defined = getattr(importlib.import_module(f"{package.__name__}.{module}"), alias.name)
        assert getattr(package, alias.asname or alias.name) is defined
        assert alias.name in dir(package)


def test_a_function_named_like_its_file_is_the_packages_whoever_imports_the_file_first():
    code = (
        "import lablib.launch, lablib.compress.top_k, sys\n"
        "from lablib import launch\n"
        "from lablib.compress import top_k\n"
        "assert callable(launch) and callable(top_k) and callable(lablib.launch)\n"
        "assert sys.modules['lablib.launch'].launch is launch"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_an_index_imports_nothing_heavy_and_refuses_unknown_names():
    code = (
        "import sys, lablib.parallel, lablib.studies, lablib.optim, lablib.course, lablib.figures\n"
        "heavy = {'torch', 'numpy', 'plotly', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(ImportError, match="cannot import name 'AdamV' from 'lablib.optim'"):
        from lablib.optim import AdamV  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]


def test_no_technique_imports_a_study():
    for folder in ("batches", "compress", "data", "kernels", "memory", "optim", "parallel", "precision", "pipeline"):
        for path in (ROOT / "lablib" / folder).rglob("*.py*"):
            if path.suffix in (".py", ".pyi"):
                assert "lablib.studies" not in path.read_text("utf-8"), path
