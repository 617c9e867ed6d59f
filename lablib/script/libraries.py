"""Detect rank state in libraries that the ranks of a script share, with a note or an error.

A process has its own copy of every library. Simulated ranks have their own copies of the script's modules (modules.py)
and share the modules of site-packages. The state of these (module_state.py) is recorded after every import of one, and
again at ends of turns: at the first ones, then with decreasing frequency. Changes:

    two ranks set the same value: a counter, a list, an entry        error: each rank reads the other's
    a rank sets its number, its device or its process group          error: the others read it as their own
    a value set by one rank: a registry, a singleton, a counter      a note: correct unless it depends on the rank
    True or False, a cache, the state of a logger                    a note, set by any rank
    several ranks ran since the last check                           a note, and checks of the next turns

Simplified: state in compiled code or in a closure is not seen, nor environment variables that a library reads at import
(libraries known to do so are rejected by name). Libraries known to keep only caches are trusted.
"""

import types
from importlib.machinery import ModuleSpec
from typing import Any

from lablib.errors import LaunchError
from lablib.process.whose_code import is_of_package
from lablib.script.module_state import Record, changes, is_of_a_rank, record_modules
from lablib.script.process import here
from lablib.text.units import plural

# Their modules' state is caches, options of the host's notebook, or belongs to tools that run it.
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
REFUSED = dict.fromkeys(("lightning", "lightning_fabric", "pytorch_lightning"), _AT_IMPORT) | {
    "deepspeed": "it keeps its communication and its accelerator in modules",
    "horovod": "it communicates with separate processes",
    "colossalai": "it keeps its launch and its accelerator in modules",
}
# The state of loggers does not affect results.
_LOGGERS = frozenset(
    "loguru structlog tensorboard tensorboardX wandb mlflow comet_ml clearml neptune aim swanlab".split()
)
_FIRST_TURNS = 16
_MAX_NAMES = 3  # per note


class SharedLibraryError(LaunchError):
    """A rank changed the state of a library that all ranks share; the message names it."""


class Libraries:
    """Changes by the ranks of one run to the state of libraries; a single rank shares nothing."""

    def __init__(self, num_ranks: int) -> None:
        self._is_shared = num_ranks > 1
        self._shared: dict[str, str] = {}  # library -> the first change that other ranks see
        self._noted: dict[str, dict[str, None]] = {}  # library -> names that a rank set
        self._set_by: dict[tuple[Any, ...], int] = {}  # value -> the rank that set it
        self._unclear: set[tuple[Any, ...]] = set()  # values set while several ranks ran
        self._ran: dict[int, frozenset[int]] = {}  # rank -> its numbers, for the ranks that ran since the last check
        self._first_turns = max(_FIRST_TURNS, min(2 * num_ranks, 16 * _FIRST_TURNS))
        self._num_turns = 0
        self._known = self._snapshot()

    @property
    def notes(self) -> list[str]:
        """One note per library: the values set by a rank, and the consequence."""
        return [
            f"{library}: ranks share {', '.join(list(names)[:_MAX_NAMES])}"
            + (f" and {plural(len(names) - _MAX_NAMES, 'more values')}" if len(names) > _MAX_NAMES else "")
            + ", which one of them set; processes would each have their own. Caches and registries do no harm; if "
            "results depend on it, compare with torchrun."
            for library, names in self._noted.items()
        ]

    # ---- imports ----

    def is_refused(self, name: str) -> bool:
        """Whether a module is of a library that several ranks cannot share at all."""
        return self._is_shared and _top(name) in REFUSED

    def watched(self, spec: ModuleSpec) -> ModuleSpec | None:
        """The spec of a watched module, with a loader that reports; None for others."""
        if not self._is_shared or not is_watched(spec.name, spec.origin) or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = ReportingLoader(spec.loader, self)  # pyright: ignore[reportAttributeAccessIssue]
        return spec

    def import_begins(self, name: str) -> None:
        """Begin an import: changes until now were made by ranks."""
        if self.is_refused(name):
            raise _error({_top(name): REFUSED[_top(name)]})
        if (process := here()) is not None:
            self._ran[process.rank.rank] = frozenset((process.rank.rank, process.local_rank))
        self.look()

    def import_ended(self) -> None:
        """End an import: its changes are the same on any rank. State is often set soon after: check often."""
        self._known = self._snapshot()
        self._num_turns = 0

    # ---- changes ----

    def turn_ended(self, rank: int, local_rank: int) -> None:
        """End a rank's turn: check at the first turns, then with decreasing frequency."""
        self._ran[rank] = frozenset((rank, local_rank))
        self._num_turns += 1
        if self._num_turns <= self._first_turns or self._num_turns & (self._num_turns - 1) == 0:
            self.look()

    def look(self) -> None:
        now = self._snapshot()
        for name in {**self._known, **now}:
            before, after = self._known.get(name), now.get(name)
            if before != after and after is not None:
                self._changed(name, before, after)
        self._known = now
        self._ran.clear()

    def _changed(self, name: str, before: Record | None, after: Record) -> None:
        library = _top(name)
        is_cache = "cache" in name.rpartition(".")[2].lower()  # as in "lark.load_grammar._get_parser.cache"
        is_harmless = (_is_flag(before) and _is_flag(after)) or library in _LOGGERS or is_cache
        for where, _, now in changes(before, after):
            if not is_harmless and (reason := self._reason((name, *where), now)):
                self._shared.setdefault(library, reason)
            else:
                self._noted.setdefault(library, {})[name] = None

    def _reason(self, value: tuple[Any, ...], now: Record | None) -> str:
        """The reason why other ranks see a changed value; "" if they need not."""
        where = [value[0].split(".")[-1], *value[1:]]
        if any(is_of_a_rank(where, now, numbers) for numbers in self._ran.values()):
            return f"{' or '.join(f'rank {rank}' for rank in self._ran)} set {value[0]} to a different value"
        if len(self._ran) > 1:
            if value not in self._unclear:
                self._unclear.add(value)
                self._num_turns = 0
            return ""
        for rank in self._ran:
            if (first := self._set_by.setdefault(value, rank)) != rank:
                return f"ranks {first} and {rank} both changed {value[0]}"
        return ""

    def _snapshot(self) -> dict[str, Record]:
        return record_modules(is_watched) if self._is_shared else {}

    def error(self) -> SharedLibraryError | None:
        """The error for shared rank state, if any."""
        return _error(self._shared) if self._shared else None


def _error(found: dict[str, str]) -> SharedLibraryError:
    reasons = "; ".join(f"{library}: {reason}" for library, reason in found.items())
    return SharedLibraryError(
        "the ranks of a script share the libraries of site-packages, where processes would each have their own, and a "
        f"library with state of a rank gives wrong results ({reasons}); run the script with torchrun, or "
        "leave the library out of what you simulate."
    )


class Watching:
    """Callback at the end of a rank's turn, as per-rank state (lablib/sim/ranks/rank.py)."""

    def __init__(self, libraries: Libraries, rank: int, local_rank: int):
        self._libraries, self._rank, self._local_rank = libraries, rank, local_rank

    def put(self) -> None:
        pass

    def take(self) -> None:
        self._libraries.turn_ended(self._rank, self._local_rank)


class ReportingLoader:
    """Loads a library's module with `loader`, and reports the begin and end of the outermost import."""

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
    """Whether a module belongs to a library that ranks must not change."""
    return _top(name) not in TRUSTED and file is not None and is_of_package(file)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_flag(record: Record | None) -> bool:
    return record is not None and record[0] in ("bool", "NoneType")
