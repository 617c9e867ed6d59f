"""A script under torchrun, on one or several nodes, with its measured run saved in a file.

    torchrun --nnodes 2 ... -m lablib.real.nodes run.json train.py --steps 10        started by `lab run --nnodes 2`

Every rank runs the script as `__main__` while it is measured, as in a launch. Then rank 0 collects the measurements of
all ranks and writes one run, which a notebook reads with `Run.load` and compares with a prediction
(`Reconciliation.of`).

Rendezvous: torchrun's own store on the first node, with JSON values and nothing that is unpickled. It opens the ports
that torchrun opens (docs/security.md), and no more.

Clocks. Spans are stamped by the clock of their node, and clocks differ. One rank of each node asks rank 0 for the time
repeatedly; the fastest answer gives the offset, to within half of its round-trip time.

Simplified: the script's output goes where torchrun sends it, and is not in the run; a rank that fails leaves none.

A record is rebuilt only from the types of its fields: network input creates no objects of other classes.
"""

import json
import os
import platform
import runpy
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import timedelta
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from lablib.inside import RANK_VARIABLE
from lablib.process.lifetime import ends_well
from lablib.real.gpu.kernel_notes import kernel_notes
from lablib.real.launch import measured_records
from lablib.real.measurement.measure import Measurement, measure
from lablib.real.measurement.profiler import warm_up_kernel_count
from lablib.run import Run
from lablib.text.units import format_quantity, plural

_PIECE_BYTES = 2**20  # the store takes values of a few megabytes
_ASKED = 16
_TIMEOUT = timedelta(hours=24)  # a rank may end long before another; torchrun ends all when one fails


@dataclass(frozen=True)
class Place:
    """Rank, node and numbers of both, from the environment that torchrun sets."""

    rank: int
    ranks: int
    local_rank: int
    node: int
    nodes: int

    @staticmethod
    def here() -> "Place":
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE")
        try:
            return Place(*(int(os.environ[name]) for name in names))
        except KeyError as missing:
            raise SystemExit(
                f"a rank of several nodes needs torchrun's environment: {missing} is not set; start the script with "
                "`lab run SCRIPT.py --nnodes 2`"
            ) from None


def main(words: Sequence[str]) -> None:
    """Run `words[1:]`, a script and its arguments, as one rank, and save the run in the file `words[0]`."""
    out, script, *arguments = words
    at = Place.here()
    os.environ |= {RANK_VARIABLE: str(at.rank), "KINETO_LOG_LEVEL": "99"}  # the profiler's log is not for users
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(at.local_rank)
    store = _meeting_place(at)
    measure(int, lambda: None, True, on_gpu, warm_up_kernel_count(1))  # a process's first profile is slow
    offset_ns, within_ns = _clock(store, at)
    began = time.perf_counter()
    program = partial(_run, script, arguments)
    _, measured = measure(program, lambda: _all_are_here(store, at), True, on_gpu, warm_up_kernel_count(2))
    wall_s = time.perf_counter() - began
    packed = zlib.compress(json.dumps(asdict(shifted(measured, offset_ns))).encode(), 1)
    pieces = [packed[start : start + _PIECE_BYTES] for start in range(0, len(packed), _PIECE_BYTES)]
    for number, piece in enumerate(pieces):
        store.set(f"measured/{at.rank}/{number}", piece)  # pyright: ignore[reportArgumentType] - it takes bytes as well
    store.set(f"measured/{at.rank}/pieces", str(len(pieces)))
    store.set(f"within/{at.rank}", str(within_ns))
    if at.rank == 0:
        _collect(store, at, "nccl" if on_gpu else "gloo", wall_s).save(out)
        store.set("saved", "1")
    store.wait(["saved"], _TIMEOUT)  # the store is part of rank 0's agent


def _meeting_place(at: Place) -> Store:
    """torchrun's store, under a separate prefix: the script's groups use it as well."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise SystemExit("ranks meet in the store of torchrun's agent: it has none here; leave out --rdzv-conf")
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), at.ranks, False, _TIMEOUT)
    return PrefixStore(f"lablib/{os.environ.get('TORCHELASTIC_RUN_ID', '')}", store)


def _run(script: str, arguments: Sequence[str]) -> None:
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if not ends_well(end.code):
            raise


# ---- rendezvous ----


def _all_are_here(store: Store, at: Place) -> None:
    """Wait until every rank has called this."""
    if store.add("here", 1) == at.ranks:
        store.set("all", "1")
    store.wait(["all"], _TIMEOUT)


def _clock(store: Store, at: Place) -> tuple[int, int]:
    """Nanoseconds to add to this node's clock to get rank 0's, and the largest error. Every rank calls it."""
    if at.rank == 0:
        for node in range(1, at.nodes):
            for number in range(_ASKED):
                store.wait([f"ask/{node}/{number}"], _TIMEOUT)
                store.set(f"time/{node}/{number}", str(time.time_ns()))
    elif at.node > 0 and at.local_rank == 0:
        within_ns, offset_ns = min(_ask(store, f"{at.node}/{number}") for number in range(_ASKED))
        store.set(f"clock/{at.node}", json.dumps([offset_ns, within_ns]))
    return tuple(json.loads(store.get(f"clock/{at.node}"))) if at.node else (0, 0)


def _ask(store: Store, number: str) -> tuple[int, int]:
    """Half the round-trip time of an answer, and the lead of rank 0's clock in the middle of it."""
    asked_ns = time.time_ns()
    store.set(f"ask/{number}", "1")
    theirs_ns = int(store.get(f"time/{number}"))
    took_ns = time.time_ns() - asked_ns
    return took_ns // 2, theirs_ns - (asked_ns + took_ns // 2)


def _get(store: Store, name: str) -> str:
    store.wait([f"{name}/pieces"], _TIMEOUT)
    pieces = [store.get(f"{name}/{number}") for number in range(int(store.get(f"{name}/pieces")))]
    return zlib.decompress(b"".join(pieces)).decode()


def _collect(store: Store, at: Place, backend: str, wall_s: float) -> Run:
    measured = [rebuilt(Measurement, json.loads(_get(store, f"measured/{rank}"))) for rank in range(at.ranks)]
    notes = ["what ranks printed went where torchrun sends it"]
    if at.nodes > 1:
        within_s = max(int(store.get(f"within/{rank}")) for rank in range(at.ranks)) / 1e9
        exact = format_quantity(within_s, "s", 2)
        notes.append(f"times of {plural(at.nodes, 'nodes')} are on rank 0's clock, known to within {exact}")
    notes += kernel_notes(measured)
    timeline, traffic = measured_records(measured, backend)
    machine = f"{plural(at.nodes, 'nodes')}, {plural(at.ranks, 'ranks')} (the first is {platform.node()})"
    return Run([None] * at.ranks, timeline, traffic, [""] * at.ranks, backend, machine, wall_s, tuple(notes))


def shifted(measured: Measurement, offset_ns: int) -> Measurement:
    """The measurement on a clock that is `offset_ns` ahead."""
    spans = [replace(s, start_ns=s.start_ns + offset_ns, end_ns=s.end_ns + offset_ns) for s in measured.spans]
    calls = [
        replace(call, start_ns=call.start_ns + offset_ns, end_ns=call.end_ns and call.end_ns + offset_ns)
        for call in measured.calls
    ]
    return replace(measured, start_ns=measured.start_ns + offset_ns, spans=spans, calls=calls)


def rebuilt(kind: Any, plain: Any) -> Any:
    """A value of this type, a record or a part of one, from its JSON value. TypeError, ValueError: other contents."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):  # an optional record
        return None if plain is None else rebuilt(next(one for one in arguments if one is not type(None)), plain)
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(rebuilt(arguments[0], value) for value in plain)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: rebuilt(hints[field.name], plain[field.name]) for field in fields(kind)})
    if not isinstance(plain, (str, int, float, bool)):
        raise TypeError(f"a measurement holds numbers and texts: got {type(plain).__name__}")
    return plain


if __name__ == "__main__":
    main(sys.argv[1:])
