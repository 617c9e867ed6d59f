"""Launch a `torch.distributed` program on a simulated cluster or on real processes (gloo, NCCL).

Only this file distinguishes the backends. Each returns the same `Run`.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from lablib.faults import Fault, check_faults
from lablib.hardware import Cluster, find_cluster
from lablib.inside import check_outside
from lablib.launch_checks import (
    check_device,
    check_fidelity,
    check_like,
    check_program,
    check_share_gpus,
    check_trace,
    checked_simulate,
    checked_size,
    checked_timeout,
)
from lablib.run import Run

REAL_TIMEOUT_S = 600.0

if "torch" in sys.modules:
    # A program has imported torch already: load the simulator now, for a fast first launch. The command line has not,
    # and `lab --help` should not take the second that importing torch takes.
    import_module("lablib.sim")


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    cluster: str | Cluster = "dgx-h100",
    backend: str = "sim",
    timeout_s: float | None = None,
    trace: bool = True,
    fidelity: str = "values",
    faults: Sequence[Fault] = (),
    device: str | None = None,
    simulate: Sequence[int] | None = None,
    share_gpus: bool = False,
    like: str | None = None,
) -> Run:
    """Run `fn(*args)` on every rank and return a `Run`.

    The default process group is initialized before `fn` starts; `fn` itself is plain `torch.distributed` code. On `sim`
    a buffer is filled by the `wait()` of its work; a handle dropped without a wait is an `UnwaitedWarning` and a note,
    and so is the use of a tensor in flight (`WriteInFlightWarning`, `ReadInFlightWarning`). A function of
    `torch.compile` runs there operator by operator, with the costs of the eager program and a note
    (lablib/sim/operators/compiled.py).

    A rank starts with the notebook's settings (default dtype, working directory, ...), with random generators seeded by
    its number, and computes with one thread, as under torchrun; its changes of these are its own, and discarded when
    the run ends (lablib/process/settings).

    Args:
        fn: a plain function, neither async nor a generator; it runs once on each rank. `functools.partial` gives
            keyword arguments.
        args: passed on; every rank gets its own copy (lablib/sim/ranks/copies.py), also of the arguments in a
            `functools.partial` and the object of a bound method. Globals and closure of `fn` are copied on real
            backends; on `sim` all ranks share the notebook's own, and `Run.notes` lists those that they changed.
        ranks: number of ranks, at least 1; at most 16,384 on sim, 1024 on real backends.
        cluster: name or record of the simulated cluster (`lablib.hardware.CLUSTERS`); ranks fill its nodes in order.
            Real backends ignore it.
        backend: "sim" (threads of this process, virtual time), "gloo" (processes on this CPU), "nccl" (GPUs).
        timeout_s: real seconds after which the run is ended; None: no limit on sim, 600 s on real backends. On sim a
            rank inside C code that holds the interpreter lock (`sum(iter(int, 1))`) cannot be ended: backend="gloo"
            runs ranks as processes, which can.
        trace: record the timeline. Without it a run is a little faster and `timeline` has no compute spans.
        fidelity: "values" computes with real tensors; "shapes" (on sim) runs the same program on meta tensors, which
            have shapes and no values: time, memory and traffic of models too large for this machine.
        device: "cuda" (on sim, with values): each rank has a GPU, its default device, as on nccl, and the host's memory
            is separate: copies between them take the time of the host link, torch.cuda's streams and events have
            virtual time, and `memory` counts the GPU's. None: all memory is the accelerator's.
        simulate: the ranks to run (on sim, with fidelity="shapes"); None: all. The others are phantoms, assumed to do
            the same as the simulated ranks of their groups, at the same time: so 128 replicas of a model take as long
            as one. A collective has the cost of its whole group. A message to or from a phantom is an error, and so is
            a call that needs values of one (for example an object).
        share_gpus: let several ranks share a GPU (on nccl) if there are fewer GPUs than ranks: values are correct,
            times mean nothing. Otherwise such a launch is an error. LABLIB_SHARE_GPUS=1 also allows it.
        like: "nccl" (on sim): reject calls that NCCL does not support, with its words and a remedy: bitwise reductions,
            some types, tensors with gaps, a receive from any source, unbatched messages in a circular wait, messages
            that only their tags match (lablib/sim/communication/nccl_limits.py). A possible hang at larger sizes is a
            `NotOnNcclWarning` and a note. With device="cuda" groups are NCCL's anyway. None: all of torch.distributed
            is supported.
        faults: faults (on sim), as records: `[SlowRank(3, 2.0), KillRank(5, at_s=0.8)]` (lablib/faults.py).

    Returns:
        A `Run`: values, timeline, memory, traffic, stdout.

    Raises:
        ValueError, TypeError: an argument is invalid.
        LaunchError: the program failed; for the subclasses see lablib/errors.py.
    """
    check_program(fn, args)
    ranks = checked_size(ranks, backend)
    check_fidelity(fidelity, backend)
    check_trace(trace)
    check_share_gpus(share_gpus, backend)
    check_like(like, backend)
    timeout_s = checked_timeout(timeout_s)
    check_outside("call launch from the notebook, not from the program it runs")
    simulated = find_cluster(cluster)
    faults = check_faults(faults, ranks, simulated.num_nodes(ranks), backend, trace, fidelity)
    check_device(device, backend, fidelity)
    simulate = checked_simulate(simulate, ranks, backend, fidelity, faults)
    if backend == "sim":
        if device is None:
            from lablib.sim import run_sim as run
        else:
            from lablib.script.stand_in import run_on_cuda as run

        return run(
            fn,
            args,
            ranks=ranks,
            cluster=simulated,
            timeout_s=timeout_s,
            trace=trace,
            fidelity=fidelity,
            faults=faults,
            simulate=simulate,
            like=like,
        )
    from lablib.real import run_real

    limit_s = REAL_TIMEOUT_S if timeout_s is None else timeout_s
    return run_real(fn, args, {}, ranks=ranks, backend=backend, timeout_s=limit_s, trace=trace, share_gpus=share_gpus)
