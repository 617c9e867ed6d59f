"""Libraries whose state the ranks of a script share: a change by one rank is seen by the others, so the run is refused.

A process has its own copy of every library. Simulated ranks have their own copies of the script's modules (modules.py)
and share those of site-packages; a library that keeps "which rank am I" in a module or a class then tells every rank
what it told the first. What stands in a library's modules is written down as far as a rank could change it:

    names of a module, attributes of its classes and functions      numbers, text, containers, objects, tensors
    not looked at                                                   functions, classes, modules, locks, loggers of
                                                                    libraries: a library that loads a part late
    a True or False that changes                                    a note: mostly "have I warned", "is it installed"
    what is called a cache, and a logger's state                    a note: it decides what is computed again or logged

after every import from site-packages, and again at ends of turns: the first ones, then less and less often.

Simplified: what a library keeps in compiled code or inside a closure is not seen, nor what it reads of the rank's
environment while it is imported (libraries known to do so are refused by name). Libraries that are known to keep
caches only are trusted.
"""

from __future__ import annotations

import collections
import enum
import functools
import logging
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from lablib.errors import LaunchError
from lablib.script.modules import is_library_file
from lablib.script.process import here
from lablib.torch_compat import version
from lablib.whose_code import is_of_package

# Their modules' state is caches, options of the host's notebook, or the tools' that run it.
TRUSTED = frozenset(
    "torch torchgen functorch triton torchvision torchaudio torchdata lablib numpy scipy pandas pyarrow sympy mpmath "
    "networkx PIL matplotlib sklearn tqdm packaging typing_extensions filelock fsspec requests urllib3 certifi idna "
    "charset_normalizer yaml _yaml regex six jinja2 markupsafe psutil pygments rich click attr attrs pydantic "
    "pydantic_core beartype jaxtyping wadler_lindig einops safetensors tokenizers sentencepiece dateutil pytz tzdata "
    "setuptools pkg_resources _distutils_hack pip platformdirs narwhals plotly _plotly_utils anywidget psygnal cffi "
    "IPython ipykernel ipywidgets jupyter_client jupyter_core traitlets tornado zmq comm debugpy matplotlib_inline "
    "prompt_toolkit parso jedi stack_data executing asttokens pure_eval decorator wcwidth nbformat nbclient papermill "
    "tenacity pytest _pytest pluggy pytest_timeout xdist execnet hypothesis sortedcontainers coverage nbval iniconfig "
    "playwright greenlet cloudpickle prometheus_client websocket jupytext markdown_it mdurl babel nbconvert mistune "
    "bleach webencodings tinycss2 bs4 soupsieve defusedxml pandocfilters jsonschema jsonschema_specifications "
    "referencing rpds fastjsonschema webcolors isoduration arrow fqdn rfc3339_validator rfc3986_validator uri_template "
    "jsonpointer json5 jupyter_server jupyterlab jupyterlab_server jupyterlab_pygments jupyter_events jupyter_lsp "
    "jupyter_server_terminals pythonjsonlogger anyio sniffio argon2 send2trash terminado overrides".split()
)
_AT_IMPORT = "it looks up the number of the rank when it is first imported, once for all ranks"
REFUSED = {
    "lightning": _AT_IMPORT,
    "lightning_fabric": _AT_IMPORT,
    "pytorch_lightning": _AT_IMPORT,
    "deepspeed": "it keeps its communication and its accelerator in modules",
    "horovod": "it communicates with processes of its own",
    "colossalai": "it keeps its launch and its accelerator in modules",
}
_LOGGERS = frozenset({"loguru", "structlog"})  # who logs where is not what a run computes
_MAX_ENTRIES = 1_000  # of a container; a longer one is known by its length
_DEPTH = 3
_FIRST_TURNS = 16
_PLAIN = (int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
_HARMLESS = (types.ModuleType, re.Pattern, logging.Logger, weakref.ref, threading.local, type(threading.Lock()))
_CACHE = type(functools.cache(len))


class SharedLibraryError(LaunchError):
    """A rank changed the state of a library that all ranks share; the message names it."""


class Libraries:
    """What the libraries of one run keep, and what ranks changed of it.

    Args:
        num_ranks: of the run; alone, a rank shares nothing.

    Attributes:
        notes: what the run must say about changes that rarely matter.
    """

    def __init__(self, num_ranks: int) -> None:
        self.notes: list[str] = []
        self._is_shared = num_ranks > 1
        self._changed: dict[str, str] = {}  # library -> what a rank changed first
        self._num_turns = 0
        self._known = self._snapshot()

    # ---- imports ----

    def is_refused(self, name: str) -> bool:
        """Whether a module is of a library that several ranks cannot share whatever they do."""
        return self._is_shared and _top(name) in REFUSED

    def watched(self, spec: ModuleSpec) -> ModuleSpec | None:
        """The spec of a module that is watched, whose loading tells; None for any other's."""
        if not self._is_shared or not is_watched(spec.name, spec.origin) or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = Loader(spec.loader, self)  # pyright: ignore[reportAttributeAccessIssue]
        return spec

    def import_begins(self, name: str) -> None:
        """What has changed until now, ranks have changed.

        Raises:
            SharedLibraryError: several ranks cannot share this library.
        """
        if self.is_refused(name):
            raise _error({_top(name): REFUSED[_top(name)]})
        self.look()

    def import_ended(self) -> None:
        """What it left everywhere is as any rank would have left it."""
        self._known = self._snapshot()

    # ---- changes ----

    def turn_ended(self) -> None:
        """A rank gives its turn away: look, the first times and less and less often."""
        self._num_turns += 1
        if self._num_turns <= _FIRST_TURNS or self._num_turns & (self._num_turns - 1) == 0:
            self.look()

    def look(self) -> None:
        """Compare with what was known."""
        now = self._snapshot()
        for name in {**self._known, **now}:
            if now.get(name) != (before := self._known.get(name)):
                self._learn(name, before, now.get(name))
        self._known = now

    def _learn(self, name: str, before: Any, after: Any) -> None:
        library = _top(name)
        if after is None or (_is_flag(before) and _is_flag(after)) or library in _LOGGERS or _is_cache(name):
            note = f"{library}: ranks share {name}, which one of them set; processes would each have their own."
            if after is not None and note not in self.notes:
                self.notes.append(note)
        else:
            self._changed.setdefault(library, f"a rank changed {name}")

    def _snapshot(self) -> dict[str, Any]:
        return _snapshot() if self._is_shared else {}

    def error(self) -> SharedLibraryError | None:
        """What is wrong with the results, if anything."""
        return _error(self._changed) if self._changed else None


def _error(found: dict[str, str]) -> SharedLibraryError:
    reasons = "; ".join(f"{library}: {reason}" for library, reason in found.items())
    return SharedLibraryError(
        "the ranks of a script share the libraries of site-packages, where processes would each have their own, and a "
        f"library whose state belongs to a rank gives wrong results ({reasons}); run the script with torchrun, or "
        "leave the library out of what you simulate."
    )


class Watching:
    """A rank's end of a turn, as a belonging (lablib/sim/rank.py)."""

    def __init__(self, libraries: Libraries):
        self._libraries = libraries

    def put(self) -> None:
        pass

    def take(self) -> None:
        self._libraries.turn_ended()


class Loader:
    """Loads a library's module as `loader` does, and tells when the import that led to it begins and ends.

    Args:
        loader: the module's own, which the module gets back.
        libraries: is told.
    """

    def __init__(self, loader: Any, libraries: Libraries):
        self._loader, self._libraries = loader, libraries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        process = here()
        if process is None or process.is_importing:
            self._loader.exec_module(module)
            return
        self._libraries.import_begins(module.__name__)
        process.is_importing = True
        try:
            self._loader.exec_module(module)
        finally:
            process.is_importing = False
            self._libraries.import_ended()


def is_watched(name: str, file: str | None) -> bool:
    """Whether a module is a library's of which ranks must change nothing."""
    return _top(name) not in TRUSTED and file is not None and is_of_package(file)


# ---- what stands in modules ----


def _top(name: str) -> str:
    return name.partition(".")[0]


def _snapshot() -> dict[str, Any]:
    """ "accelerate.state.PartialState._shared_state" -> something that differs when a rank has changed it."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and is_watched(name, getattr(module, "__file__", None)):
            for path, value in _attributes(name, module):
                if (shape := _shape(value, _top(name), _DEPTH)) is not None:
                    found[path] = shape
    return found


def _attributes(name: str, module: types.ModuleType) -> Iterable[tuple[str, Any]]:
    """The data of a module, of the classes that it defines, and of its functions."""
    for key, value in list(vars(module).items()):
        if _is_python(key):
            continue
        yield f"{name}.{key}", value
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == name:
            # A metaclass may keep the instances (a singleton's do), and every class has its own attributes.
            for attribute, content in list(vars(value).items()):
                if not _is_python(attribute):
                    yield f"{name}.{key}.{attribute}", content


def _is_python(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name.startswith("_abc_")


def _shape(value: Any, library: str, depth: int) -> Any:
    """Something that compares equal as long as nobody changes `value`; None: code, which nobody changes."""
    if isinstance(value, _PLAIN):
        return type(value).__name__, value
    if isinstance(value, torch.Tensor):
        return "tensor", id(value), version(value)
    if isinstance(value, _CODE):
        return None if _is_librarys(value) else ("code", id(value))
    if isinstance(value, dict):
        return _entries("dict", value.items(), len(value), library, depth)
    if isinstance(value, (list, tuple, collections.deque)):
        return _entries("list", enumerate(value), len(value), library, depth)
    if isinstance(value, (set, frozenset)):
        return _entries("set", ((id(one), one) for one in value), len(value), library, depth)
    if isinstance(value, (*_HARMLESS, _CACHE)):
        return None
    content = getattr(value, "__dict__", None)
    module = getattr(type(value), "__module__", None) or ""
    if isinstance(content, dict) and (_top(module) == library or not _is_librarys(type(value))):
        return _entries(f"object {id(value)}", content.items(), len(content), library, depth)
    return "object", id(value)


def _entries(kind: str, items: Iterable[tuple[Any, Any]], size: int, library: str, depth: int) -> Any:
    if size > _MAX_ENTRIES or depth == 0:
        return kind, size
    try:
        shapes = [(_key(key), _shape(value, library, depth - 1)) for key, value in list(items)]
    except RuntimeError:  # another thread of the host changes it just now
        return kind, size
    return kind, tuple((key, shape) for key, shape in shapes if shape is not None)


def _key(key: Any) -> Any:
    return key if isinstance(key, (int, str, bytes, type(None))) else id(key)


def _is_librarys(code: Any) -> bool:
    """Whether a function or a class stands in a module that all ranks share, not in one of the script's."""
    module = sys.modules.get(getattr(code, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return module is None or file is None or (module.__name__ != "__main__" and is_library_file(file))


def _is_cache(path: str) -> bool:
    """Whether a library calls this a cache, as in "lark.load_grammar._get_parser.cache"."""
    return "cache" in path.rpartition(".")[2].lower()


def _is_flag(shape: Any) -> bool:
    return isinstance(shape, tuple) and shape[0] in ("bool", "NoneType")
