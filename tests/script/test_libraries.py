"""Libraries of site-packages are shared by the ranks: one whose state a rank changes ends the run, by name."""

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lablib import simulate_script
from lablib.errors import RankError
from lablib.script.libraries import REFUSED, SharedLibraryError

pytestmark = pytest.mark.usefixtures("everything_is_given_back")
# What a library keeps: its source, how a rank changes it, and the attribute that the error names.
STATES = {
    "a dictionary": ("state = {}", "lib.state['rank'] = rank", "state"),
    "a list": ("seen = []", "lib.seen.append(rank)", "seen"),
    "a set": ("seen = set()", "lib.seen.add(rank)", "seen"),
    "a counter": ("count = 0\ndef up():\n    global count\n    count += 1", "lib.up()", "count"),
    "a name": ("name = ''", "lib.name = f'rank {rank}'", "name"),
    "a new attribute": ("", "lib.rank = rank", "rank"),
    "a shared state of a class": (
        "class Partial:\n    _shared = {}\n    def __init__(self):\n        self.__dict__ = self._shared",
        "lib.Partial().index = rank",
        "Partial._shared",
    ),
    "an attribute of a class": ("class Trainer:\n    steps = 0", "lib.Trainer.steps += 1", "Trainer.steps"),
    "an instance": (
        "class State:\n    def __init__(self):\n        self.rank = -1\nSTATE = State()",
        "lib.STATE.rank = rank",
        "STATE",
    ),
    "nested": ("state = {'a': {'b': []}}", "lib.state['a']['b'].append(rank)", "state"),
    "an attribute of a function": ("def only():\n    pass\nonly.rank = None", "lib.only.rank = rank", "only.rank"),
    "a script's function": ("registry = {}", "lib.registry['f'] = lambda: rank", "registry"),
    "a tensor": ("import torch\ntotal = torch.zeros(1)", "lib.total += rank", "total"),
    "a group": ("group = None", "lib.group = dist.new_group()", "group"),
    "a state that the first rank sets": (
        "class Partial:\n    _shared = {}\n    def __init__(self, rank):\n"
        "        if not self._shared:\n            self._shared.update(num=2, process_index=rank)",
        "lib.Partial(rank)",
        "Partial._shared",
    ),
    "a device that the first rank sets": (
        "import torch\ndevice = None",
        "lib.device = lib.device or lib.torch.device('cuda', rank)",
        "device",
    ),
    "a group that one rank keeps": ("owned = {}", "g = dist.new_group()\nif rank == 1: lib.owned['data'] = g", "owned"),
    "a counter, late": (
        "count = 0\ndef up():\n    global count\n    count += 1",
        "for _ in range(100): dist.barrier()\nfor _ in range(99): lib.up(); dist.barrier()",
        "count",
    ),
}
SINGLETON = (
    "class Meta(type):\n    _instances = {}\n    def __call__(cls):\n"
    "        return cls._instances.setdefault(cls, super().__call__())\nclass Hub(metaclass=Meta):\n    pass"
)
# State that one rank sets, or that a library calls a cache, and that need not concern the others.
NOTED = {
    "a singleton": (SINGLETON, "lib.Hub()", "Meta._instances"),
    "a counter of one rank": ("count = 0", "lib.count += rank == 0\ndist.barrier()\nlib.count += rank == 0", "count"),
    "a counter of one rank, late": (
        "count = 0",
        "for i in range(200):\n    lib.count += rank == 0 and i > 99\n    dist.barrier()",
        "count",
    ),
    "a list of one rank": ("seen = []", "if rank == 1: lib.seen.append(7)", "seen"),
    "a table of classes": ("table = {}", "class A: pass\nlib.table[A] = 'a'", "table"),
    "the same entry by all": ("table = {}", "lib.table['size'] = 4", "table"),
    "a handle made late": ("class H:\n    pass\nhandle = None", "lib.handle = lib.handle or lib.H()", "handle"),
    "rank of a matrix": ("config = {}", "lib.config['lora_rank'] = 8", "config"),
    "a flag": ("has_warned = False", "lib.has_warned = True", "has_warned"),
    "a cache of a class": ("class A:\n    aCache = []", "lib.A.aCache.append(rank)", "A.aCache"),
    "a cache of a function": ("def f():\n    pass", "lib.f.cache = rank", "f.cache"),
    "a cache": ("_CACHE = {}", "lib._CACHE['a'] = rank", "_CACHE"),
}
# What a library may do: caches of code, parts that it loads late, and what is the same for every rank.
HARMLESS = {
    "a cached function": ("import functools\n@functools.cache\ndef f(x):\n    return x", "lib.f(rank)"),
    "a pattern": ("import re\npattern = None", "lib.pattern = lib.re.compile('x')"),
    "a part that is loaded late": ("", "import LIB.part; LIB.part.value"),
    "a registry filled at import": ("", "import LIB.registers"),
    "a logger": ("import logging\nlog = None", "lib.log = lib.logging.getLogger('x'); lib.log.warning('y')"),
    "a lock": ("import threading\nlock = threading.Lock()", "lib.lock.acquire(); lib.lock.release()"),
    "a function bound late": ("def f():\n    pass", "lib.g = lib.f"),
    "nothing": ("values = [1, 2]", "lib.values[0]"),
    "what is put back": ("kept = []", "lib.kept.append(1); lib.kept.pop()"),
}
SCRIPT = """
import os, sys
sys.path.insert(0, {folder!r})
rank = int(os.environ["RANK"])
import torch.distributed as dist
import {name} as lib
dist.init_process_group("gloo")
dist.barrier()
{change}
dist.barrier()
"""
_numbers = itertools.count()


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A function that installs a library, and simulates a script that does something with it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    before = set(sys.modules)

    def simulate(text: str, change: str, name: str = "", ranks: int = 2) -> Any:
        name = name or f"stand_in_{next(_numbers)}"
        package = folder / name
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(text + "\nregistry_of_parts = []\n", "utf-8")
        (package / "part.py").write_text("value = 1\n", "utf-8")
        (package / "registers.py").write_text(f"import {name}\n{name}.registry_of_parts.append(1)\n", "utf-8")
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(folder=str(folder), name=name, change=change.replace("LIB", name)), "utf-8")
        return simulate_script(script, ranks=ranks)

    yield simulate
    for name in set(sys.modules) - before:
        if name.startswith("stand_in_") or name.split(".")[0] in REFUSED:
            del sys.modules[name]


@pytest.mark.parametrize("style", sorted(STATES))
def test_a_library_whose_state_a_rank_changes_is_named(library, style):
    text, change, attribute = STATES[style]
    with pytest.raises(SharedLibraryError, match=rf"\(stand_in_\d+: .* stand_in_\d+\.{attribute}\b"):
        library(text, change)


@pytest.mark.parametrize("style", sorted(HARMLESS))
def test_caches_and_parts_that_are_loaded_late_are_no_state(library, style):
    assert library(*HARMLESS[style]).notes == ()


@pytest.mark.parametrize("style", sorted(NOTED))
def test_what_one_rank_sets_is_a_note(library, style):
    text, change, attribute = NOTED[style]
    (note,) = library(text, change).notes
    assert re.search(rf"ranks share stand_in_\d+\.{attribute}, which one of them set", note)


def test_alone_a_rank_shares_nothing(library):
    text, change, _ = STATES["a counter"]
    assert library(text, change, ranks=1).values == [0]


def test_the_state_of_a_logger_is_a_note(library, monkeypatch):
    monkeypatch.setattr("lablib.script.libraries._LOGGERS", frozenset({"stand_in_logger"}))
    (note,) = library("sinks = {}", "lib.sinks[rank] = rank", name="stand_in_logger").notes
    assert "ranks share stand_in_logger.sinks" in note


def test_a_change_in_the_middle_is_seen(library):
    text, change, _ = STATES["a list"]
    with pytest.raises(SharedLibraryError, match="ranks 0 and 1 both changed .*seen"):
        library(text, f"{change}\ndist.barrier()\nlib.seen.clear()")


@settings(
    max_examples=5, deadline=None, phases=(Phase.generate,), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.sampled_from(sorted(HARMLESS)), min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(STATES)), max_size=2),
)
def test_whatever_else_a_library_does_its_state_decides(library, harmless, states):
    texts, changes = zip(*([HARMLESS[name] for name in harmless] + [STATES[name][:2] for name in states]), strict=True)
    program = "\n".join(texts), "\n".join(changes)
    if states:
        with pytest.raises(SharedLibraryError):
            library(*program)
    else:
        assert library(*program).values == [0, 0]


@pytest.mark.parametrize("name", ["lightning", "deepspeed"])
def test_libraries_that_ask_for_their_rank_while_they_are_imported_are_refused(library, name):
    with pytest.raises(SharedLibraryError, match=f"{name}: it "):
        library("", "", name=name)
    assert library("", "", name=name, ranks=1).values == [0]
    with pytest.raises(SharedLibraryError, match=f"{name}: it "):
        library("", "", name=name)  # though the run before has left it loaded


def test_the_command_says_so_and_fails(library, tmp_path, capsys, monkeypatch):
    from lablib.cli.main import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SharedLibraryError):
        library(*STATES["a counter"][:2], name="stand_in_counter")
    sys.modules.pop("stand_in_counter")
    assert main(["sim", "--ranks", "2", str(tmp_path / "script.py")]) == 1
    assert "stand_in_counter: ranks 0 and 1 both changed stand_in_counter.count" in capsys.readouterr().err


def test_a_run_that_fails_for_another_reason_names_the_library_too(library):
    with pytest.raises(SharedLibraryError, match="counter.count") as caught:
        library(
            *STATES["a counter"][:1], "lib.up(); dist.barrier(); raise ValueError('other')", name="stand_in_counter"
        )
    assert "other" in str(caught.value.__cause__)


def test_an_error_of_the_script_stays_its_own_with_the_doubt_as_a_note(library):
    with pytest.raises(RankError, match="other") as caught:
        library(SINGLETON, "lib.Hub(); raise ValueError('other')")
    assert "Meta._instances" in caught.value.__notes__[0]
