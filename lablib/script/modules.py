"""Per-rank `__main__` and copies of the script's modules.

A module is the script's if its file is neither in Python's library, nor in site-packages, nor in torch or lablib: the
script's siblings, packages next to it, modules on PYTHONPATH. Library modules stay shared, as loading torch once per
rank would take gigabytes.

`sys.modules` is one dictionary that the interpreter keeps, so it is not replaced: a rank's entries are added at its
turn and removed after it. A finder in front of `sys.meta_path` notices every import of a script's module, so that only
these few entries move. Modules of the host process that a script must not see (the notebook's `__main__`, a `model`
imported from another folder) are removed for the run.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lablib.process.whose_code import is_users, module_attribute, module_file

if TYPE_CHECKING:
    from lablib.script.libraries import Libraries


def is_library_file(path: str | None) -> bool:
    """Whether all ranks share a module of this file. A module without a file (built in, frozen) is shared."""
    return path is None or not is_users(path)


class ModuleFinder:
    """Notices imports of the script's modules. One per run, in front of `sys.meta_path`.

    `libraries` may replace the spec of every other module.
    """

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self.names: set[str] = set()  # names of modules of the current rank

    def find_spec(self, name: str, path: Iterable[str] | None = None, target: ModuleType | None = None):
        """The spec of a watched library module; None leaves the module to the finders that follow."""
        spec = importlib.machinery.PathFinder.find_spec(name, list(path) if path is not None else None, target)
        if spec is None:
            return None
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
        if not all(is_library_file(place) for place in places):
            self.names.add(name)
            return None  # the usual finders load it
        return self._libraries.watched(spec)


class Modules:
    """The entries of `sys.modules` of one rank: part of its per-rank state (lablib/sim/ranks/rank.py)."""

    def __init__(self, finder: ModuleFinder, main: ModuleType):
        self._finder = finder
        self._own: dict[str, ModuleType] = {"__main__": main}
        self._names = {"__main__"}
        self._locks: dict[str, Any] = {}

    def put(self) -> None:
        self._finder.names = self._names
        sys.modules.update(self._own)
        _module_locks().update(self._locks)

    def take(self) -> None:
        self._own = {name: sys.modules.pop(name) for name in self._names if name in sys.modules}
        # A rank may wait in the middle of an import (a collective at module level); its import lock on the name must
        # not block another rank's thread, which imports its own copy.
        locks = _module_locks()
        self._locks = {name: locks.pop(name) for name in self._names if name in locks}


def _module_locks() -> dict[str, Any]:
    return importlib._bootstrap._module_locks  # pyright: ignore[reportAttributeAccessIssue]


class HostModules:
    """Context manager that removes the host's own modules for the run, and restores them.

    Modules in the script's folder take priority over the host's. Rejected libraries are removed too, so that their
    import is noticed.
    """

    def __init__(self, folder: str, libraries: Libraries):
        self._folder, self._libraries = folder, libraries
        self.finder = ModuleFinder(libraries)

    def __enter__(self) -> HostModules:
        self._before = dict(sys.modules)
        theirs = {entry.split(".")[0] for entry in os.listdir(self._folder)}
        for name, module in self._before.items():
            file = module_file(module)
            top = name.split(".")[0]
            is_shadowed = top in theirs and top not in sys.stdlib_module_names and top not in ("torch", "lablib")
            is_hidden = name == "__main__" or not is_library_file(file) or self._libraries.is_refused(name)
            if is_hidden or (is_shadowed and self._is_there(top)):
                del sys.modules[name]
        sys.meta_path.insert(0, self.finder)  # pyright: ignore[reportArgumentType]
        return self

    def _is_there(self, top: str) -> bool:
        """Whether the script's folder has a module of this name."""
        spec = importlib.machinery.PathFinder.find_spec(top, [self._folder])
        return spec is not None and spec.origin is not None

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self.finder)  # pyright: ignore[reportArgumentType]
        for name in [name for name in sys.modules.copy() if name not in self._before]:
            module = sys.modules[name]
            if not is_library_file(module_file(module)) or module_attribute(module, "__spec__") is None:
                del sys.modules[name]  # the script's; a library first imported in the run stays
        hidden = {name: module for name, module in self._before.items() if sys.modules.get(name) is not module}
        sys.modules.update(hidden)
