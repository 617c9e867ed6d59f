"""Run a script on simulated ranks: `Script("train.py", ["--steps", "10"], ranks=8).run()`.

It is `launch`'s simulation (lablib/sim) with another function, "run this file as `__main__`", in an environment that
emulates a separate process with a CUDA device for each rank (process.py, modules.py, own.py, cuda.py, devices.py), and
`nccl` and `gloo` by the simulator (backends.py).
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, TextIO

from lablib.errors import LaunchError
from lablib.hardware import Cluster, find_cluster
from lablib.inside import check_outside
from lablib.launch_checks import check_fidelity, checked_size
from lablib.run import Run
from lablib.script.gpu_answers import answer_gpu, processes_of, with_gpu
from lablib.script.libraries import Libraries, SharedLibraryError, Watching
from lablib.script.modules import HostModules, Modules
from lablib.script.own import Output, begins_with
from lablib.script.patches import Patches
from lablib.script.process import Process, here
from lablib.script.program import compiled, main_module, run_program
from lablib.script.python import answer_python
from lablib.signature import whole_number
from lablib.sim import run_sim
from lablib.sim.communication.store import SimStore
from lablib.sim.ranks.rank import Rank


class Script:
    """A script and the environment of its ranks (`lablib.sim.simulation.RankEnvironment`). Runs once."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        args: Sequence[str] = (),
        ranks: int = 8,
        cluster: str | Cluster = "dgx-h100",
        show: TextIO | None = None,
        fidelity: str = "values",
    ):
        check_fidelity(fidelity, "sim")
        ranks = checked_size(whole_number("ranks", ranks, maximum=inf), "sim")
        if isinstance(args, str):
            raise ValueError(f'args must be a list of words: got {args!r}; try args=["--steps", "10"]')
        self.path = Path(path)
        self.cluster = find_cluster(cluster)
        self.processes: list[Process] = []
        self._code = compiled(self.path)
        self._argv = [str(path), *map(str, args)]
        self._num_ranks, self._fidelity = ranks, fidelity
        self._show = show
        self._libraries = Libraries(1)
        self._mains = [main_module(self.path) for _ in range(ranks)]

    def run(self, timeout_s: float | None = None, trace: bool = True) -> Run:
        """Run it; arguments, result and errors as in `simulate_script`."""
        check_outside("simulate a script from outside, not from the program it runs")
        try:
            where: dict[str, Any] = {"ranks": self._num_ranks, "cluster": self.cluster, "environment": self}
            run = run_sim(self._program, (), **where, timeout_s=timeout_s, trace=trace, fidelity=self._fidelity)
        except LaunchError as error:
            if (shared := self._libraries.error()) is not None and not isinstance(error, SharedLibraryError):
                raise shared from error  # shared state of the ranks may have caused any error
            for note in (*self._libraries.notes, *_out_of_memory(error, self._num_ranks)):
                error.add_note(note)
            raise
        if (shared := self._libraries.error()) is not None:
            raise shared
        if number := self.processes[0].placement.num_host_operators:
            self.processes[0].note(
                f"The host's work took no virtual time: {number:,} operators of rank 0 had tensors in host memory "
                "only; on a real machine they run in parallel with the device, and loading data can limit a step."
            )
        clock = next((note for process in self.processes for note in process.clock.note(process.rank.rank)), None)
        notes = dict.fromkeys(note for process in self.processes for note in process.notes)
        return replace(run, notes=(*run.notes, *notes, *([clock] if clock else []), *self._libraries.notes))

    @property
    def clock_s(self) -> float:
        """Virtual time of the slowest rank."""
        return min((process.rank.clock_s for process in self.processes), default=0.0)

    def output(self, rank: int) -> str:
        return self.processes[rank].rank.stdout.getvalue() if self.processes else ""

    def _program(self) -> int:
        process = here()
        assert process is not None
        return run_program(self._code, lambda: self._mains[process.rank.rank])

    @contextmanager
    def of_the_run(self, ranks: list[Rank], store: SimStore, cluster: Cluster) -> Iterator[None]:
        """Context of the run: replaced functions, and the host's modules removed."""
        folder = os.path.dirname(os.path.realpath(self.path))  # which Python puts first on `sys.path` for a script
        with ExitStack() as stack:
            self._libraries = Libraries(len(ranks))
            hidden = stack.enter_context(HostModules(folder, self._libraries))
            stack.callback(self._libraries.look)
            patches = stack.enter_context(Patches())
            answer_gpu(patches)
            answer_python(patches)
            self.processes += processes_of(ranks, cluster, store, self._fidelity == "shapes")
            for process in self.processes:
                rank = process.rank
                output = Output(self._show if rank.rank == 0 else None)
                rank.stdout = rank.stderr = output
                stack.callback(output.release)
                # The check comes first, while the rank's modules are in place.
                watching = Watching(self._libraries, rank.rank, process.local_rank)
                rank.per_rank_state += [watching, Modules(hidden.finder, self._mains[rank.rank])]
                rank.begins_with |= begins_with(self._argv, folder)
            yield

    def of_a_rank(self, rank: Rank) -> AbstractContextManager[None]:
        return with_gpu(self.processes[rank.rank])


def _out_of_memory(error: LaunchError, ranks: int) -> Iterator[str]:
    """The remedy if this machine ran out of memory for the tensors of a rank."""
    cause = error.__cause__
    if isinstance(cause, MemoryError) or (isinstance(cause, RuntimeError) and "can't allocate memory" in str(cause)):
        yield (
            f"this machine's memory holds the tensors of all {ranks} simulated ranks, those on simulated devices too, "
            "and was full; try fewer --ranks or a smaller model, or --fidelity shapes, which computes no values"
        )
