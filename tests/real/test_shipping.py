"""Programs travel by value: what a notebook or a test module defines runs where nobody can import it."""

import functools
import gc
import importlib.util
import linecache
import sys
import threading
import types

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.process import whose_code
from lablib.real import run_real
from lablib.real.workers.shipping import _by_value, _Importable, ship
from tests.script_module import script_module

SCALE = 3.0


def helper(x):
    return x * SCALE


def test_a_function_of_this_module_brings_its_helpers_and_globals():
    program = functools.partial(lambda x, y: helper(x) + y, y=1)
    assert run_real(program, (2.0,), ranks=2, backend="gloo").values == [7.0, 7.0]


class _Late:
    """Garbage that imports a module as it is collected, as the warning about an unclosed file does."""

    def __init__(self, name: str) -> None:
        self.me, self.name = self, name

    def __del__(self) -> None:
        sys.modules[self.name] = types.ModuleType(self.name)


@settings(max_examples=10)
@given(st.integers(1, 4000))
def test_a_collection_may_import_modules_while_the_loaded_ones_are_read(allocations: int):
    name, threshold = "imported_late", gc.get_threshold()
    gc.collect()
    _Late(name)
    gc.set_threshold(gc.get_count()[0] + allocations)  # the collection comes after so many allocations
    try:
        assert types in _Importable()
    finally:
        gc.set_threshold(*threshold)
        gc.collect(0)
        sys.modules.pop(name, None)


config = {"layers": 4}


def test_a_global_may_have_the_name_of_a_module_of_torch_distributed():
    def program():
        return config["layers"] + dist.get_rank()

    assert run_real(program, ranks=2, backend="gloo").values == [4, 5]


def test_a_notebook_cell_runs_as_it_is_now_and_its_classes_stay_the_notebooks(monkeypatch):
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)

    def cell(source):
        name = f"<cell {len(linecache.cache)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), notebook.__dict__)

    cell("import inspect\nimport torch.distributed as dist\nfactor = 10")
    cell("class Result:\n    def __init__(self, x): self.x = x\n    def scaled(self): return self.x * factor")
    cell("def program():\n    return Result(dist.get_rank() + 1), inspect.getsource(program)")
    run = run_real(notebook.program, ranks=2, backend="gloo")
    (result, source), _ = run.values
    assert type(result) is notebook.Result and result.scaled() == 10
    assert source.startswith("def program():")
    cell("factor = 100")
    assert result.scaled() == 100, "the class still is the notebook's, with the notebook's globals"
    cell("def scaled():\n    return Result(1).scaled()")
    assert run_real(notebook.scaled, ranks=2, backend="gloo").values == [100, 100]
    # A process that still holds the class of an earlier program gets this one's all the same.
    cell("import json\ndef keeps():\n    json.kept = Result\n    return Result(1).scaled()")
    assert run_real(notebook.keeps, ranks=2, backend="gloo").values == [100, 100]
    cell("factor = 1000")
    assert run_real(notebook.scaled, ranks=2, backend="gloo").values == [1000, 1000]


def test_a_module_loaded_by_hand_travels_and_one_on_the_path_is_read_anew(tmp_path, monkeypatch):
    (tmp_path / "by_hand.py").write_text("import beside\ndef program(): return beside.VALUE, beside.__name__\n")
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("loaded_by_hand", tmp_path / "by_hand.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loaded_by_hand", module)
    spec.loader.exec_module(module)
    try:
        assert run_real(module.program, ranks=2, backend="gloo").values == [(1, "beside")] * 2
        (tmp_path / "beside.py").write_text("VALUE = 22\n")
        assert run_real(module.program, ranks=2, backend="gloo").values == [(22, "beside")] * 2
    finally:
        sys.modules.pop("beside")


def test_what_cannot_be_copied_is_named_in_one_sentence(tmp_path):
    lock = threading.Lock()

    def uses_a_lock():
        with lock:
            return dist.get_rank()

    with pytest.raises(ValueError, match=r"'lock', which .*uses_a_lock\(\) uses, of type lock is not .*make it inside"):
        run_real(uses_a_lock, ranks=2, backend="gloo")
    with open(tmp_path / "file", "w") as file, pytest.raises(ValueError, match="argument 1 of type TextIOWrapper"):
        run_real(print, (1, file), ranks=2, backend="gloo")


def test_large_tensors_are_not_copied_into_the_pickle():
    x = torch.ones(1_000_000)
    program = ship(helper, (x,), {}, True).program
    assert len(program.data) < 10_000
    assert sum(buffer.raw().nbytes for buffer in program.buffers) == 4_000_000


def test_a_working_directory_that_was_removed_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match="ranks start in the working directory, so it must exist: .*os.chdir"):
        run_real(int, ranks=1, backend="gloo")


def module_of(path, name: str) -> types.ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("def work():\n    return 1\n")
    return script_module(path, name)


def registered(fn) -> set[str]:
    """The modules that go by value with this program; afterwards none do."""
    with _by_value(fn):
        found = set(cloudpickle.list_registry_pickle_by_value())
    assert not cloudpickle.list_registry_pickle_by_value()
    return found


def test_a_module_that_is_loaded_twice_or_under_another_name_keeps_no_program_from_travelling(tmp_path, monkeypatch):
    """As the modules of debugpy are: two extension modules of one name, and one with a name that was never imported."""
    twice, again = (module_of(tmp_path / folder / "one.py", "by_hand_one") for folder in ("a", "b"))
    other = module_of(tmp_path / "c" / "two.py", "by_hand_two")
    for name, module in (("by_hand_one", twice), ("package.by_hand_one", again), ("renamed", other)):
        monkeypatch.setitem(sys.modules, name, module)
    found = registered(lambda: None)
    assert "by_hand_one" in found and not {"by_hand_two", "renamed"} & found


def test_an_editable_package_goes_by_name_unless_its_own_function_is_launched(tmp_path, monkeypatch):
    """The finder that an editable installation adds is there in every process of the environment."""
    module = module_of(tmp_path / "src" / "editable_pkg" / "train.py", "editable_pkg.train")
    monkeypatch.setitem(sys.modules, "editable_pkg.train", module)
    assert "editable_pkg.train" in registered(lambda: None)
    finder = types.ModuleType("__editable___editable_pkg_1_0_finder")
    finder.MAPPING = {"editable_pkg": str(tmp_path / "src" / "editable_pkg")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    assert "editable_pkg.train" not in registered(lambda: None)
    assert "editable_pkg.train" in registered(module.work), "it may have been edited"


def test_a_package_that_was_installed_into_another_folder_goes_by_name(tmp_path, monkeypatch):
    module = module_of(tmp_path / "target_pkg" / "train.py", "target_pkg.train")
    monkeypatch.setitem(sys.modules, "target_pkg.train", module)
    assert "target_pkg.train" in registered(module.work)
    (tmp_path / "target_pkg-1.0.dist-info").mkdir()
    (tmp_path / "target_pkg-1.0.dist-info" / "RECORD").write_text("target_pkg/train.py,,\n")
    for cached in (whose_code.is_users, whose_code._is_in_target, whose_code._installed_into):
        cached.cache_clear()
    assert "target_pkg.train" not in registered(module.work)


def test_each_module_of_the_users_costs_the_same_however_many_are_loaded(calls_of, tmp_path, monkeypatch):
    """A session of a thousand modules launches as fast as a new one."""
    few = calls_of(lambda: registered(len))
    for i in range(200):
        module = module_of(tmp_path / f"own_{i}.py", f"own_{i}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
    registered(len)  # whether a file is the user's is remembered
    assert (calls_of(lambda: registered(len)) - few) / 200 < 500 < len(sys.modules)
