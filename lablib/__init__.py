"""Learn and predict large-model training: plain torch.distributed programs on a simulated cluster or on real processes.

launch      run a function on every rank and get a Run
calibrate   measure this machine, for predictions that hold here
reconcile   run it predicted and measured: where they differ
simulate_script  run a script written for torchrun on every rank of a simulated cluster
phase       name what the program is doing, for the timeline
Run         values, timeline, memory, traffic, stdout
Summary     where the time of a run went, rank by rank
faults      what can go wrong on a cluster: `launch(..., faults=[SlowRank(3, 2.0)])`
errors      how a launch can fail
hardware    the clusters that have a name
"""

from lablib.calibration import calibrate
from lablib.errors import (
    CollectiveMismatchError,
    DeadlockError,
    FaultError,
    LaunchError,
    LaunchTimeoutError,
    LinkDownError,
    RankError,
    RankKilledError,
    ValueNeededError,
    WorkerError,
)
from lablib.faults import CorruptGradient, DelayStart, DropLink, Fault, KillRank, SlowLink, SlowRank
from lablib.hardware import CLUSTERS, DEVICES, LINKS, Cluster, Device, Link, find_cluster
from lablib.launch import launch
from lablib.phases import phase
from lablib.reconcile import Reconciliation, reconcile
from lablib.record import Allocation, Memory, Span, Summary, Timeline, Traffic, Transfer
from lablib.run import Run
from lablib.script import simulate_script

__all__ = [
    "CLUSTERS",
    "DEVICES",
    "LINKS",
    "Allocation",
    "Cluster",
    "CollectiveMismatchError",
    "CorruptGradient",
    "DeadlockError",
    "DelayStart",
    "Device",
    "DropLink",
    "Fault",
    "FaultError",
    "KillRank",
    "LaunchError",
    "LaunchTimeoutError",
    "Link",
    "LinkDownError",
    "Memory",
    "RankError",
    "RankKilledError",
    "Reconciliation",
    "Run",
    "SlowLink",
    "SlowRank",
    "Span",
    "Summary",
    "Timeline",
    "Traffic",
    "Transfer",
    "ValueNeededError",
    "WorkerError",
    "calibrate",
    "find_cluster",
    "launch",
    "phase",
    "reconcile",
    "simulate_script",
]
