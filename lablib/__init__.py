"""Learn and predict large-model training: plain torch.distributed programs on a simulated cluster or on real processes.

launch      run a function on every rank and get a Run
Run         values, timeline, traffic, stdout
errors      how a launch can fail
hardware    the clusters that have a name
"""

from lablib.errors import (
    CollectiveMismatchError,
    DeadlockError,
    LaunchError,
    LaunchTimeoutError,
    RankError,
    WorkerError,
)
from lablib.hardware import CLUSTERS, DEVICES, LINKS, Cluster, Device, Link, find_cluster
from lablib.launch import launch
from lablib.run import Run, Span, Timeline, Traffic, Transfer

__all__ = [
    "CLUSTERS",
    "DEVICES",
    "LINKS",
    "Cluster",
    "CollectiveMismatchError",
    "DeadlockError",
    "Device",
    "LaunchError",
    "LaunchTimeoutError",
    "Link",
    "RankError",
    "Run",
    "Span",
    "Timeline",
    "Traffic",
    "Transfer",
    "WorkerError",
    "find_cluster",
    "launch",
]
