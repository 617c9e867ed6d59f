"""Script mode: a script written for torchrun runs on the simulator, unchanged.

Read in this order:

    run.py         a script, and what its ranks find around them
    program.py     a file as `__main__`
    process.py     what a rank has for itself, and how code finds its rank
    modules.py     each rank's own copies of the script's modules
    libraries.py   what ranks share and must not change; module_state.py records it
    own.py         arguments, standard error, logging, working folder
    python.py      atexit, signals, DataLoader, checkpoints, autocast
    backends.py    nccl and gloo, answered by the simulator
    placement.py   which tensors are on the device
    mixing.py      which tensors of host and device an operator may mix
    marks.py       the mark of a tensor on the device
    dtensor.py     DTensors on the device
    cuda_kernels.py  operators that torch has for GPUs alone
    gpu_answers.py   functions of torch that are replaced on a simulated GPU
    stand_in.py    a stand-in for a GPU: programs as with backend="nccl"
    devices.py     "cuda" in arguments and attributes
    classes.py     torch.device and torch.Generator
    streams.py     streams and events in virtual time
    cuda.py        what each function of torch.cuda answers
    patches.py     replaced for the run, and put back
    report.py      files and figures of a run
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from lablib.hardware import Cluster
from lablib.launch_checks import check_trace, checked_timeout
from lablib.run import Run
from lablib.signature import check_type


def simulate_script(
    path: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    ranks: int = 8,
    cluster: str | Cluster = "dgx-h100",
    timeout_s: float | None = None,
    trace: bool = True,
    show: TextIO | None = None,
) -> Run:
    """Run a script written for torchrun on every rank of a simulated cluster, unchanged; return what happened.

    The script finds the environment that torchrun sets, initializes its process group itself (with any backend), and
    may use "cuda" devices, one a rank. `values` of the run holds the exit code of each rank: 0.

    Args:
        path: the script.
        args: its arguments, `sys.argv[1:]`.
        ranks: how many, at least 1.
        cluster: name or record of the simulated cluster; ranks fill its nodes in order.
        timeout_s: real seconds after which the run is ended; None: no limit.
        trace: record the timeline and count memory.
        show: where what rank 0 prints is shown while it runs; None: nowhere. All of it is in `run.stdout`, with what
            went to standard error.

    Raises:
        ValueError: no such file, or an argument that breaks its rule.
        SharedLibraryError: a library keeps a rank's state in its modules, which ranks share (libraries.py).
        RankError: the script raised, or ended with an exit code other than 0.
        LaunchError: the run failed in another way; the subclass says how (lablib/errors.py).
    """
    check_type("simulate_script: path", path, str | os.PathLike)
    check_trace(trace)
    timeout_s = checked_timeout(timeout_s)
    from lablib.script.run import Script  # here: `import lablib` does without the second that torch takes

    return Script(path, args, ranks, cluster, show).run(timeout_s, trace)


__all__ = ["simulate_script"]
