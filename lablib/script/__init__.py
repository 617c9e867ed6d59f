"""Script mode: run a script written for torchrun on the simulator, unchanged.

Read in this order:

    run.py         a script, and the environment of its ranks
    program.py     a file as `__main__`
    process.py     per-rank process state, and the current rank of a thread
    modules.py     per-rank copies of the script's modules
    libraries.py   detection of rank state in shared libraries; module_state.py records it
    own.py         arguments, standard error, logging, working folder
    python.py      atexit, signals, DataLoader, checkpoints, autocast
    backends.py    simulated nccl and gloo
    placement.py   tensors on the device
    mixing.py      tensors of host and device in one operator
    marks.py       the mark of a tensor on the device
    dtensor.py     DTensors on the device
    cuda_kernels.py  operators that torch has for GPUs only
    gpu_answers.py   the simulated GPU of each rank: replaced functions of torch
    stand_in.py    a stand-in for a GPU: programs as with backend="nccl"
    devices.py     "cuda" in arguments and attributes
    classes.py     torch.device and torch.Generator
    streams.py     streams and events in virtual time
    cuda.py        functions of torch.cuda
    patches.py     replacements for the duration of a run
    report.py      files and figures of a run
"""

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
    fidelity: str = "values",
) -> Run:
    """Run a script written for torchrun on every rank of a simulated cluster, unchanged. Returns the run.

    The script has the environment of torchrun, initializes its process group itself (with any backend), and may use
    "cuda" devices, one per rank. `values` of the run holds the exit code of each rank: 0.

    Args:
        args: its arguments, `sys.argv[1:]`.
        cluster: name or record of the simulated cluster; ranks fill its nodes in order.
        timeout_s: real seconds after which the run is ended; None: no limit.
        trace: record the timeline and count memory.
        fidelity: "values", or "shapes": tensors that the script makes have no values, as in `launch`, and count as the
            device's once it uses one. Copies between host and device are then free.
        show: stream for rank 0's output while it runs; None: none. `run.stdout` has all of it, with standard error.

    Raises:
        ValueError: no such file, or an argument that breaks its rule.
        SharedLibraryError: a library keeps a rank's state in its shared modules (libraries.py).
        RankError: the script raised, or ended with an exit code other than 0.
        LaunchError: the run failed in another way; for the subclasses see lablib/errors.py.
    """
    check_type("simulate_script: path", path, str | os.PathLike)
    check_trace(trace)
    timeout_s = checked_timeout(timeout_s)
    from lablib.script.run import Script  # keeps torch's second out of `import lablib`

    return Script(path, args, ranks, cluster, show, fidelity).run(timeout_s, trace)


__all__ = ["simulate_script"]
