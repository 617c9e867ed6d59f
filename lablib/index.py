"""Lazy indexes of packages: `from lablib.optim import AdamW` imports one file, on demand.

The `__init__.pyi` next to a package's `__init__.py` lists its public names in reading order, for readers, type checkers
and `lazy_loader`. Some functions have the name of their file (`top_k.py` with `top_k`): the package's attribute of that
name is the function, whether or not the file was imported before.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import lazy_loader


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package with the `.pyi` next to `file` as its index."""
    get, listed, names = lazy_loader.attach_stub(package, file)
    module, public = sys.modules[package], frozenset(names)

    class Index(type(module)):
        """A package that keeps its public names when Python binds a file of the same name to it."""

        def __setattr__(self, name: str, value: Any) -> None:
            if not (name in public and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    def find(name: str) -> Any:
        try:
            return get(name)
        except ModuleNotFoundError as error:
            from lablib.extras import remedy_of

            if remedy := remedy_of(error):
                error.add_note(remedy)
            raise

    module.__class__ = Index
    return find, listed, names
