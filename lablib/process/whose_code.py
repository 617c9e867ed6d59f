"""Classify a source file: user code, installed package, or standard library.

Installed: in Python's library, in a folder of packages (another environment's, too), in lablib. A folder that `pip
install --target` filled holds packages as well, wherever it lies: their `.dist-info` lists the files. So does an
archive (.zip, .whl, .egg). An editable installation is the user's: its sources are edited where they are. What Python
and torch make up ("<frozen importlib>", "<eval_with_key>") is nobody's, and so not the user's. A notebook's cell is the
user's, and so is executed text ("<string>"), of which Python also makes the methods of dataclasses.
"""

import csv
import os
import sysconfig
from functools import cache, lru_cache
from importlib.util import find_spec
from inspect import getattr_static
from types import ModuleType
from typing import Any

from lablib.text.files import read_text

_LABLIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CONTENTS = vars(ModuleType)["__dict__"].__get__
_PACKAGES = ("site-packages", "dist-packages")
TEXT = "<string>"
MADE_UP = ("<frozen", "<eval_with_key>", "built-in", "frozen")


def is_of_package(path: str) -> bool:
    """Whether a file lies in a folder of installed packages, was installed into a folder, or lies in an archive."""
    return not set(_PACKAGES).isdisjoint(path.split(os.sep)) or _is_in_target(path)


@lru_cache(maxsize=2**16)
def _is_in_target(path: str) -> bool:
    if not os.path.isabs(path):
        return False
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        inside = os.path.relpath(path, folder).replace(os.sep, "/")
        if os.path.isfile(folder) or inside in _installed_into(folder):  # a file: an archive
            return True
        folder = os.path.dirname(folder)
    return False


@lru_cache(maxsize=2**10)
def _installed_into(folder: str) -> frozenset[str]:
    """The files that a package manager put into this folder, relative to it."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
        records = [record for name in names if os.path.isfile(record := os.path.join(folder, name, "RECORD"))]
        return frozenset(row[0] for record in records for row in csv.reader(read_text(record).splitlines()) if row)
    except (OSError, ValueError, csv.Error):
        return frozenset()


def module_contents(module: Any) -> dict[str, Any]:
    """The names of a module, without running code of its class: a lazy module imports on any other access."""
    return (_CONTENTS(module) or {}) if issubclass(type(module), ModuleType) else {}


def module_attribute(module: Any, name: str) -> Any:
    """An attribute of an entry of `sys.modules`, read in the same way; None where it has none."""
    if issubclass(type(module), ModuleType):
        return module_contents(module).get(name)
    return getattr_static(module, name, None)


def module_file(module: Any) -> str | None:
    """The file of an entry of `sys.modules`; None where it has none."""
    file = module_attribute(module, "__file__")
    return file if type(file) is str else None


@lru_cache(maxsize=2**16)  # above the number of files of any process: one that goes through all in order would hit none
def is_users(path: str) -> bool:
    """Whether a file is the user's."""
    if path.startswith(MADE_UP):
        return False
    real = path if path.startswith("<") else os.path.realpath(path)
    return not is_of_package(path) and not is_of_package(real) and not real.startswith(_installed())


@cache
def _installed() -> tuple[str, ...]:
    """Python's library, the environment's packages, lablib, and torch where it is used from its sources."""
    paths, torch = sysconfig.get_paths(), find_spec("torch")
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_LABLIB}
    folders |= set(torch.submodule_search_locations or ()) if torch else set()
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)
