"""Every private name of torch stands in lablib/torch_compat.py, and is there in the installed torch."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from lablib import torch_compat
from lablib.torch_compat import ATTRIBUTES, LOADED, NAMES, TorchNamesError, checked_names, current, loaded, place

PACKAGE = Path(torch_compat.__file__).parent
ALL = [(group, name) for group, names in NAMES.items() for name in names]

# ---- the contract: each name is there ----


@pytest.mark.parametrize("group", NAMES)
def test_torch_has_every_name(group):
    assert checked_names(group).keys() == NAMES[group].keys()


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_torchs_objects_have_every_attribute(path, monkeypatch):
    monkeypatch.setattr(torch_compat, "NAMES", {"one": {"name": path}})
    assert list(checked_names("one")) == ["name"]


@pytest.mark.parametrize("module", LOADED)
def test_modules_that_a_program_may_import_hold_what_is_looked_at(module):
    import_module(module)
    assert loaded(module) is import_module(module)


@pytest.mark.parametrize(("group", "name"), ALL)
def test_a_place_holds_what_its_name_stands_for(group, name):
    holder, attribute = place(name)
    now = current(name)
    assert now is getattr(holder, attribute) or now == getattr(holder, attribute)  # a bound method is made anew


def test_names_are_the_fields_and_not_torchs():
    assert not [name for _, name in ALL if name.startswith("_")]
    assert len({name for _, name in ALL}) == len(ALL)


def test_a_loaders_iterator_has_workers():
    batches = iter(DataLoader(torch.arange(4), num_workers=1))  # pyright: ignore[reportArgumentType]
    assert len(torch_compat.loader_workers(batches)) == 1
    torch_compat.shut_down_workers(batches)
    assert torch_compat.loader_workers(None) == torch_compat.loader_workers(iter([])) == []


# ---- what is missing is named, all of it ----


def test_all_missing_names_are_named_with_torchs_version(monkeypatch):
    gone = {
        "a": "torch._no_such",
        "b": "torch._C._nor_this",
        "c": "torch.no.module.at.all",
        "d": "torch.Tensor._version",
    }
    monkeypatch.setattr(torch_compat, "NAMES", {"one": gone})
    with pytest.raises(TorchNamesError) as caught:
        checked_names("one")
    told = str(caught.value)
    assert all(path in told for path in list(gone.values())[:3]) and gone["d"] not in told
    assert torch.__version__ in told and "2.11 to 2.13" in told


def test_a_module_that_lacks_what_is_looked_at_is_named(monkeypatch):
    import_module("torch._dynamo.eval_frame")
    monkeypatch.delattr("torch._dynamo.eval_frame._callback_from_stance")
    with pytest.raises(TorchNamesError, match="_callback_from_stance"):
        loaded("torch._dynamo.eval_frame")


def test_a_file_that_is_gone_is_named():
    with pytest.raises(TorchNamesError, match="torch/utils/_no_such.py"):
        torch_compat.torch_file("utils", "_no_such.py")


def test_what_is_no_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        torch_compat.no_such_name  # noqa: B018


# ---- the lint: no other file has any ----

# Other libraries' private names: Python's own, a named tuple's, Triton's interpreter.
OTHERS = {"_exit", "_data", "_getframe", "_current_frames", "_bootstrap", "_module_locks", "_filters_mutated"}
OTHERS |= {"_clear_cache", "_replace", "_setlocale", "_config"}
FILES_OF_OTHERS = {"kernels/interpreter.py"}
# Operators have a leading underscore where torch likes it; their names are the cost model's table.
OPERATORS = re.compile(r"torch\.(ops\.\w+\.)?(_foreach|_scaled|_to_copy|_local_scalar|_record_function|_lazy)")


def private_leaves() -> set[str]:
    paths = [path for names in NAMES.values() for path in names.values()] + list(ATTRIBUTES)
    parts = [part for path in paths if not OPERATORS.match(path) for part in re.split("[.:]", path)]
    return {part for part in parts if part.startswith("_") and not part.startswith("__")}


def findings(source: str, own: set[str], leaves: set[str]) -> Iterator[str]:
    """Private names of torch in a source: imported, reached from torch, of an object, or as a text."""
    tree = ast.parse(source)
    torchs = {"torch"}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            torchs |= {alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            torchs |= {alias.asname or alias.name for alias in node.names if node.module.split(".")[0] == "torch"}
        else:
            continue
        yield from (name for name in names if re.match(r"torch\.(.*\.)?_(?!_)", name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            is_torchs = isinstance(root, ast.Name) and root.id in torchs
            if is_torchs or (not is_own and node.attr not in own | OTHERS):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if node.value in leaves or re.fullmatch(r"torch(\.\w+)*\._\w+(\.\w+)*", node.value):
                yield repr(node.value)


def own_names(source: str) -> set[str]:
    """Private names that a source defines: attributes, functions, classes, fields."""
    return set(re.findall(r"(?:self\.|def |class |cls\.|^ {4})(_[a-zA-Z]\w*)", source, re.MULTILINE))


def test_no_other_file_has_a_private_name_of_torch():
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    own = set().union(*map(own_names, sources.values()))
    found = {
        f"{path}: {name}"
        for path, source in sources.items()
        if path != "torch_compat.py" and path not in FILES_OF_OTHERS
        for name in findings(source, own, private_leaves())
    }
    allowed = {path for path in LOADED}
    assert not {one for one in found if one.split(": ")[1].strip("'") not in allowed}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._C import x",
        "from torch.utils import _pytree",
        "import torch\ntorch._C.x()",
        "import torch as t\nt.nn._f",
        "from torch import autograd as a\na._engine()",
        "def f(op): return op._schema",
        "f(x).y._cdata",
        "g(m, '_engine_run_backward')",
        "import_module('torch._inductor.config')",
    ],
)
def test_the_lint_finds_private_names(source):
    assert list(findings(source, set(), private_leaves()))


@pytest.mark.parametrize(
    "source",
    ["import torch\ntorch.ones(3)", "self._x", '"""torch._C is private."""', "import os\nos._exit(1)", "a.__dict__"],
)
def test_the_lint_lets_the_rest_pass(source):
    assert not list(findings(source, set(), private_leaves()))
