"""A few records of each class, for calls that get as far as they can; and what is public, found by looking."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import Any

import torch

import lablib.labs
from lablib import (
    CLUSTERS,
    DEVICES,
    LINKS,
    Allocation,
    Cluster,
    Device,
    KillRank,
    Link,
    Memory,
    Reconciliation,
    Run,
    SlowRank,
    Span,
    Timeline,
    Traffic,
    Transfer,
)
from lablib.cost import GroupNetwork
from lablib.errors import DeadlockError, Wait
from lablib.hardware import Dragonfly, Edge, FatTree, Topology, Torus
from lablib.models import TRANSFORMERS, GPTConfig, Transformer
from lablib.pipeline import Costs, Plan, replay
from lablib.plan import Parallel, Prediction, predict


@cache
def step() -> Timeline:
    """Two ranks compute and talk."""
    spans = []
    for rank in (0, 1):
        spans.append(Span(rank, "compute", "aten.mm", "forward", 0.0, 1e-3, 2e9, 1e6, "float32"))
        spans.append(Span(rank, "comm:world", "all_reduce", "backward", 1e-3, 3e-3, 0.0, 25e6))
    return Timeline.of(spans, 2)


@cache
def run() -> Run:
    transfer = Transfer("world", "all_reduce", (0, 1), "ring", 1e6, (1e6, 1e6), 1e-3, 3e-3)
    memory = Memory(
        tuple(Allocation(rank, "activation", 1000, 0.0, 2e-3, "aten.mm", "forward", "a.py:1") for rank in (0, 1)), 2
    )
    device = DEVICES["A100-80GB-SXM"]
    return Run([1, 2], step(), Traffic((transfer,)), ["", ""], "sim", "dgx-a100", memory=memory, device=device)


@cache
def plan() -> Plan:
    return Plan.parse("1f1b", ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"])


@cache
def prediction() -> Prediction:
    return predict(model="gpt3-13b", cluster="dgx-a100", batch=16, parallel=Parallel(data=1, tensor=8))


SAMPLES: dict[type, Callable[[], list[Any]]] = {
    Timeline: lambda: [step(), Timeline.of([], 2), Timeline.of([], 0)],
    Span: lambda: [step().spans[0], Span(0, "compute", "", "", 0.0, 0.0)],
    Memory: lambda: [run().memory, Memory()],
    Traffic: lambda: [run().traffic, Traffic(())],
    Transfer: lambda: [run().traffic.transfers[0]],
    Allocation: lambda: [Allocation(0, "activation", 1000, 0.0, 2e-3, "aten.mm", "forward", "a.py:1")],
    Run: lambda: [run(), Run([], Timeline.of([], 0), Traffic(()), [], "gloo", "laptop")],
    Reconciliation: lambda: [Reconciliation.of(run(), [run()])],
    Device: lambda: [DEVICES["A100-80GB-SXM"], DEVICES["laptop-core"]],
    Link: lambda: [LINKS["nvlink3"], Link("ideal", 0.0, float("inf"))],
    Cluster: lambda: [CLUSTERS["dgx-a100"], CLUSTERS["tpu-v4"]],
    Edge: lambda: [CLUSTERS["dgx-a100"].edge(0, 1), CLUSTERS["dgx-a100"].edge(0, 0)],
    GroupNetwork: lambda: [GroupNetwork(CLUSTERS["dgx-a100"], range(n)) for n in (1, 4, 16)],
    FatTree: lambda: [FatTree(), FatTree(oversubscription=2.0)],
    Dragonfly: lambda: [Dragonfly(4, 16)],
    Torus: lambda: [Torus((2, 2))],
    Topology: lambda: [FatTree()],
    SlowRank: lambda: [SlowRank(0, 2.0)],
    KillRank: lambda: [KillRank(0, 1.0)],
    DeadlockError: lambda: [DeadlockError("no", [Wait(0, "waits in recv")]), DeadlockError("", [])],
    Plan: lambda: [plan()],
    Costs: lambda: [Costs()],
    type(replay(plan())): lambda: [replay(plan())],
    Parallel: lambda: [Parallel(), Parallel(data=2, tensor=4)],
    Prediction: lambda: [prediction()],
    Transformer: lambda: list(TRANSFORMERS.values())[:2],
    GPTConfig: lambda: [GPTConfig(num_layers=2, d_model=32, num_heads=2, vocab_size=64, max_seq_len=16)],
    torch.Tensor: lambda: [torch.ones(4), torch.zeros(0), torch.arange(6).reshape(2, 3)],
    torch.nn.Module: lambda: [torch.nn.Linear(2, 2)],
}  # fmt: skip


def public() -> dict[str, Callable[..., Any]]:
    """Every function and class of the indices of lablib and its packages, by its full name; no exceptions, no enums."""
    found = {}
    for module in packages():
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            value = getattr(module, name)
            home = getattr(value, "__module__", "") or ""
            is_kind = isinstance(value, type) and issubclass(value, BaseException | Enum)
            if callable(value) and not is_kind and home.startswith("lablib"):
                found[f"{home}.{getattr(value, '__qualname__', name)}"] = value
    for one in pkgutil.iter_modules(lablib.labs.__path__, "lablib.labs."):  # notebooks call their figures by file
        figures = vars(importlib.import_module(one.name)).items()
        found |= {f"{one.name}.{name}": value for name, value in figures if name.startswith("figure_")}
    return found


def packages() -> Iterator[Any]:
    yield lablib
    for found in pkgutil.walk_packages(lablib.__path__, "lablib."):
        if found.ispkg:
            yield importlib.import_module(found.name)


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    """What a class offers by name, besides the methods of Python."""
    own = inspect.getmembers(kind, inspect.isfunction)
    return {name: value for name, value in own if not name.startswith("_") and value.__module__.startswith("lablib")}
