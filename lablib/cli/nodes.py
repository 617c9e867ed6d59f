"""`lab run SCRIPT.py --nnodes 2`: a script on several nodes under torchrun, measured into one run.

    lab run train.py --nnodes 2 --ranks 4                                     two nodes, both on this machine (gloo)
    lab run train.py --nnodes 2 --master 10.0.0.1:29500 --node 0 -- --steps 9 on the first of two machines
    lab run train.py --nnodes 2 --master 10.0.0.1:29500 --node 1 -- --steps 9 on the second
    lab run train.py --nnodes 2 --ranks 16 --slurm train.sbatch               a job for `sbatch`; nothing is started

It prints the command of each node, and starts the nodes of this machine: all without --master, otherwise --node.
The first node writes the run to run.json, for `Run.load`.
"""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lablib.course.errors import CourseError, CourseFailure
from lablib.launch_checks import MAX_RANKS
from lablib.process.torchrun import LOOPBACK, free_port
from lablib.text.files import new_folder, write_text
from lablib.text.units import plural

_MAX_NODES = 1024
_FOLDER = str(Path(__file__).resolve().parents[2])  # the ranks find lablib from any current directory
_SLURM_PORT = 29500


@dataclass(frozen=True)
class Nodes:
    """A script, its arguments, and its nodes."""

    script: str  # script, arguments: as after `python`
    arguments: tuple[str, ...]
    nodes: int  # nodes, ranks: numbers of nodes and ranks; all nodes have the same number of ranks
    ranks: int
    host: str  # host, port: address of the first node's store
    port: int
    node: int | None  # the number of this machine; None: all nodes
    out: Path  # output file for the run

    def command(self, node: int) -> list[str]:
        """The command that starts the ranks of a node; `torchrun` is a name for its first three words."""
        options = {
            "--nnodes": self.nodes,
            "--nproc-per-node": self.ranks // self.nodes,
            "--node-rank": node,
            "--master-addr": self.host,
            "--master-port": self.port,
        }
        words = [str(word) for pair in options.items() for word in pair]
        program = ["-m", "lablib.real.nodes", str(self.out), self.script, *self.arguments]
        return [sys.executable, "-m", "torch.distributed.run", *words, *program]

    def slurm(self) -> str:
        """A batch job for Slurm: one task per node, which starts the node's ranks; node 0 has the store."""
        words = self.command(0)
        for option, value in (("--node-rank", '"$SLURM_NODEID"'), ("--master-addr", '"$MASTER"')):
            words[words.index(option) + 1] = value
        quoted = [word if word.startswith('"$') else shlex.quote(word) for word in words]
        per_node = self.ranks // self.nodes
        return f"""#!/bin/bash
#SBATCH --job-name={shlex.quote(Path(self.script).stem)}
#SBATCH --nodes={self.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={per_node}
#SBATCH --exclusive
#SBATCH --time=01:00:00
# The measured run: {self.out}
set -euo pipefail
export MASTER="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export OMP_NUM_THREADS=1 PYTHONPATH={shlex.quote(_FOLDER)}"${{PYTHONPATH:+:$PYTHONPATH}}"
# One task per node; `bash -c`, so that each task reads its own SLURM_NODEID.
srun --kill-on-bad-exit=1 bash -c {shlex.quote(" ".join(quoted))}
"""

    def environment(self, node: int) -> dict[str, str]:
        """Environment of the command on this machine. If all nodes are here they share its GPUs, and use loopback."""
        path = [_FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(path)}
        if self.node is None:
            interface = "lo0" if sys.platform == "darwin" else "lo"
            environment |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
            if gpus := _gpus():
                first = node * (self.ranks // self.nodes)
                mine = gpus[first : first + self.ranks // self.nodes]
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        return environment


def run_on_nodes(options: argparse.Namespace) -> int:
    """Print the commands, start those of this machine, and wait for them; or write a batch job.

    Raises:
        CourseError: an invalid option.
        CourseFailure: a node failed.
    """
    nodes = checked(options)
    if options.slurm:
        try:
            write_text(Path(options.slurm), nodes.slurm())
        except OSError as error:
            raise CourseFailure(str(error)) from error
        print(f"To start it: sbatch {shlex.quote(options.slurm)}\nThe run is then on node 0, in {nodes.out}")
        return 0
    here = range(nodes.nodes) if nodes.node is None else [nodes.node]
    for node in range(nodes.nodes):
        where = "here" if node in here else "start it there"
        print(f"node {node} ({where}): torchrun {shlex.join(nodes.command(node)[3:])}", flush=True)
    codes = _wait([subprocess.Popen(nodes.command(node), env=nodes.environment(node)) for node in here])
    failed = [f"node {node} ended with exit code {code}" for node, code in zip(here, codes, strict=True) if code]
    if failed:
        raise CourseFailure(f"{nodes.script} failed: {', '.join(failed)}; its output is above")
    if 0 in here:
        print(f'measured: {nodes.out}\nTo read it: Run.load("{nodes.out}")')
    else:
        print(f"measured: the run is on node 0, in {nodes.out}")
    return 0


def checked(options: argparse.Namespace) -> Nodes:
    """Check the options. Raises CourseError: an invalid option; nothing has started."""
    script = Path(options.lab)
    if script.suffix != ".py" or not script.is_file():
        raise CourseError(f"several nodes run a script, a Python file: got {options.lab}; try train.py")
    if options.slurm is not None and (not options.slurm or Path(options.slurm).resolve() == script.resolve()):
        raise CourseError(
            f"--slurm must be a file for the job, other than the script: got {options.slurm!r}; try job.sbatch"
        )
    if not 1 <= options.nnodes <= _MAX_NODES:
        raise CourseError(f"--nnodes must be 1 to {_MAX_NODES}: got {options.nnodes}; try --nnodes 2")
    if options.backend is not None:
        raise CourseError("a script names its backend in init_process_group: leave out --backend")
    ranks = _ranks(options)
    host, port = _master(options)
    folder = Path(options.out) if options.out else new_folder(Path("runs") / script.stem)
    node = options.node if options.master else None
    about = (str(script), tuple(options.passed_on), options.nnodes, ranks, host, port, node)
    return Nodes(*about, out=(folder / "run.json").resolve())


def _ranks(options: argparse.Namespace) -> int:
    """Total number of ranks: by default one per GPU, or two per node without GPUs."""
    gpus = len(_gpus())
    # This machine's GPUs belong to one node, or to all if all are here.
    is_elsewhere = bool(options.master or options.slurm)
    default = (gpus * options.nnodes if is_elsewhere else gpus) or 2 * options.nnodes
    try:
        ranks = default if options.ranks is None else int(options.ranks)
    except ValueError:
        ranks = 0
    if ranks < 1 or ranks % options.nnodes:
        raise CourseError(
            f"--ranks must be a multiple of --nnodes, the same number per node: got {options.ranks or default} for "
            f"{plural(options.nnodes, 'nodes')}; try --ranks {2 * options.nnodes}"
        )
    here = ranks // options.nnodes if is_elsewhere else ranks
    if here > MAX_RANKS["gloo"]:
        raise CourseError(
            f"--ranks must leave {MAX_RANKS['gloo']:,} processes or fewer on a machine: got {here:,}; try --ranks "
            f"{options.nnodes * max(1, MAX_RANKS['gloo'] // options.nnodes)}, or lab sim"
        )
    if gpus and here > gpus and not options.slurm:
        raise CourseError(
            f"each rank needs a separate GPU: got {plural(here, 'ranks')} here, and {plural(gpus, 'GPUs')}; "
            f"try --ranks {gpus * (options.nnodes if options.master else 1)}, or CUDA_VISIBLE_DEVICES= for gloo"
        )
    return ranks


def _master(options: argparse.Namespace) -> tuple[str, int]:
    """Address of the first node's store: loopback if all nodes are here; of a batch job, its first node."""
    if options.slurm and (options.master is not None or options.node is not None):
        raise CourseError("a job of Slurm finds its nodes itself: leave out --master and --node, or --slurm")
    if options.slurm:
        return "", _SLURM_PORT
    if options.master is None:
        if options.node is not None:
            raise CourseError(f"--node {options.node} needs --master HOST:PORT, an address of node 0 on every machine")
        return LOOPBACK, free_port()
    host, _, port = options.master.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise CourseError(f"--master must be HOST:PORT: got {options.master}; try --master 10.0.0.1:29500")
    if options.node is None or not 0 <= options.node < options.nnodes:
        raise CourseError(
            f"--master needs --node, this machine's number from 0 to {options.nnodes - 1}: got {options.node}; "
            "give each machine a different one"
        )
    return host, int(port)


def _gpus() -> list[str]:
    """The GPUs of this process, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else list(map(str, range(count))))[:count]


def _wait(processes: list[subprocess.Popen]) -> list[int]:
    """Exit codes. When one process fails, or the user interrupts, the others are ended, as they would wait for it."""
    left = list(processes)
    try:
        while left:
            for process in left:
                try:
                    if process.wait(timeout=0.2):
                        return [_ended(other) for other in processes]
                    left.remove(process)
                    break
                except subprocess.TimeoutExpired:
                    continue
    finally:
        for process in processes:
            _ended(process)
    return [_ended(process) for process in processes]


def _ended(process: subprocess.Popen, patience_s: float = 30.0) -> int:
    """Exit code; the process is asked to end, so that torchrun ends its ranks, and killed if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode or 0
