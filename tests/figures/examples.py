"""Made-up runs to draw: data-parallel steps with bucketed all-reduces, long runs of tiny operations, a prediction."""

import random
from typing import Any, NamedTuple

import numpy as np

from lablib.hardware import CLUSTERS, Device
from lablib.kernels.accesses import Access, Launch, Operand
from lablib.models import GPTConfig
from lablib.parallel import Mesh
from lablib.plan import Parallel, Prediction
from lablib.record.memory import Allocation, Memory
from lablib.run import Span, Timeline, Traffic, Transfer
from lablib.studies import PlacedMesh, placements
from lablib.studies.compression import CompressedRun
from lablib.studies.optimizers import OptimizerResult
from lablib.studies.tensor_time import TensorLayerTime
from lablib.validation import ScoreReport, published_rows, score


def ddp_step(num_ranks: int = 4, layers: int = 8, ops: int = 3, slow: float = 1.0, seed: int | None = None) -> Timeline:
    """Forward, backward with an all-reduce after every second layer, optimizer. `slow` stretches communication."""
    rng = random.Random(seed)
    spans: list[Span] = []
    ready_s: list[list[float]] = [[] for _ in range(num_ranks)]
    for rank in range(num_ranks):
        now_s = 0.0
        for phase, seconds in (("forward", 1e-3), ("backward", 2e-3)):
            for layer in range(layers):
                for _ in range(ops):
                    end_s = now_s + seconds / ops * (1.0 if seed is None else 1 + 0.3 * rng.random())
                    spans.append(Span(rank, "compute", "aten.mm", phase, now_s, end_s, 2e9, 1e6))
                    now_s = end_s
                if phase == "backward" and layer % 2:
                    ready_s[rank].append(now_s)
    free_s = 0.0
    for bucket in range(layers // 2):
        start_s = max(free_s, *(ready[bucket] for ready in ready_s))
        free_s = start_s + 3.5e-3 * slow
        spans += [Span(r, "comm:world", "all_reduce", "backward", start_s, free_s, 0, 25e6) for r in range(num_ranks)]
    last_s = max(free_s, *(s.end_s for s in spans))
    spans += [Span(r, "compute", "aten.add_", "optimizer", last_s, last_s + 1e-3, 1e6, 1e8) for r in range(num_ranks)]
    return Timeline.of(spans, num_ranks)


def many_tiny_spans(num_spans: int, seed: int = 0, num_ranks: int = 2) -> Timeline:
    """Phases that alternate faster than a screen can show, with gaps, over two streams."""
    rng = random.Random(seed)
    spans = []
    for rank in range(num_ranks):
        for stream in ("compute", "comm:world"):
            now_s = 0.0
            for _ in range(num_spans // num_ranks // 2):
                now_s += rng.choice((0.0, 1e-6, 5e-6))
                end_s = now_s + rng.random() * 2e-6
                phase = rng.choice(("forward", "backward", "optimizer", "my block"))
                spans.append(Span(rank, stream, "op", phase, now_s, end_s, 1.0, 2.0))
                now_s = end_s
    return Timeline.of(spans, num_ranks)


def some_results() -> dict[str, OptimizerResult]:
    """Two optimizers, as if they had been recorded."""
    tokens, curve = [0, 512, 1024], [5.5, 3.0, 2.2]
    return {
        "adamw": OptimizerResult("adamw", 1e-3, 0.1, 8, True, {1: 2.1, 2: 2.3}, tokens, curve, 8.0, 4.0, 1.0, 1.0),
        "lion": OptimizerResult("lion", 1e-4, 0.0, 7, True, {1: 2.2, 2: 2.25}, tokens, curve, 4.0, 4.0, 0.9, 0.7),
    }


def some_compressed_runs() -> dict[str, CompressedRun]:
    """No compression, and two ways to send less, as if they had been recorded."""
    return {
        "none": CompressedRun("none", 4e-3, True, {1: 2.1, 2: 2.3}, 4e5),
        "top-k": CompressedRun("top-k", 2e-3, True, {1: 2.2, 2: 2.5}, 1e4),
        "DiLoCo 4": CompressedRun("DiLoCo 4", 4e-3, True, {1: 2.2, 2: 2.3}, 1e5, 4),
        "DiLoCo 16": CompressedRun("DiLoCo 16", 4e-3, True, {1: 2.3, 2: 2.4}, 2.5e4, 16),
    }


SCALES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "s": 1.0, "ms": 1e-3, "\N{MICRO SIGN}s": 1e-6, "ns": 1e-9}


def scale(axis: Any) -> float:
    """The unit in the title of an axis."""
    return SCALES[axis.title.text.split("(")[1].rstrip(")")]


def lanes_of(timeline: Timeline) -> dict[tuple[int, str], int]:
    """A number for each rank and stream."""
    return {key: number for number, key in enumerate(sorted({(s.rank, s.stream) for s in timeline}))}


DEVICE = Device("toy", {"float32": 1e12, "bfloat16": 4e12}, 2000.0, 1e12, matmul_efficiency=0.8)


def some_memory() -> Memory:
    """Two ranks hold 1000 bytes of parameters; rank 1 reaches 1750 bytes at 6 ms."""
    blocks = [
        Allocation(rank, "parameter", 1000, 0.0, 20e-3, "aten.empty", "setup", "train.py:3: Linear") for rank in (0, 1)
    ]
    for rank, size in ((0, 100), (1, 150)):
        for layer in range(5):
            times = (2e-3 + 1e-3 * layer, 12e-3 - 1e-3 * layer)
            blocks.append(Allocation(rank, "activation", size, *times, "aten.mm", "forward", "train.py:7: model(x)"))
    return Memory(tuple(blocks), 2)


def some_traffic() -> Traffic:
    """Five all-reduces of four ranks, a broadcast, and a message from 1 to 2."""
    everyone = (0, 1, 2, 3)
    return Traffic(
        (
            *[Transfer("world", "all_reduce", everyone, "ring", 1e6, (1.5e6,) * 4, 0.0, 1.0)] * 5,
            Transfer("world", "broadcast", everyone, "tree", 1e6, (2e6, 1e6, 0.0, 0.0), 0.0, 1.0),
            Transfer("world", "send", (1, 2), "direct", 3e6, (3e6, 0.0), 0.0, 1.0),
        )
    )


def some_prediction(**changes: Any) -> Prediction:
    """A step of 10 s on two stages, with round numbers: 60% compute, 23% communication, 10% bubble, 7% the rest."""
    parts = {"products": 5.0, "attention": 1.0, "launches": 0.2, "tensor axis": 2.0, "context axis": 0.0}
    parts |= {"bubble and messages": 1.0, "data axis": 0.3, "optimizer": 0.4, "fixed": 0.1}
    stage = {"parameter": 4e9, "gradient": 8e9, "optimizer state": 24e9, "activation": 20e9}
    stage |= {"communication buffer": 1e9, "other": 3e9}
    numbers: dict[str, Any] = {
        "name": "toy",
        "cluster": "toy-cluster",
        "parallel": Parallel(data=4, tensor=2, pipeline=2),
        "num_gpus": 16,
        "batch": 32,
        "micro_batch": 1,
        "num_microbatches": 8,
        "seq_len": 1000,
        "schedule": "1f1b",
        "recompute": "none",
        "precision": "bfloat16",
        "step_time_s": 10.0,
        "model_flops": 16 * 10.0 * 4e13,
        "hardware_flops": 16 * 10.0 * 4e13,
        "peak_flops_per_s": 1e14,
        "parts": parts,
        "communication": {"tensor": (3.0, 2.0), "context": (0.0, 0.0), "data": (0.3, 0.3), "pipeline": (0.2, 0.0)},
        "bubble_fraction": 0.1,
        "memory": (stage, stage | {"activation": 10e9}),
        "memory_limit_bytes": 80e9,
    }
    return Prediction(**numbers | changes)


class Predicted(NamedTuple):
    """The same prediction for every run."""

    step_time_s: float = 3.0
    peak_memory_bytes: float = 1e9
    reserved_bytes: float = 1e9
    device_bytes: float = 1e9
    fits: bool = True


def some_report() -> ScoreReport:
    """Every fifth published run, predicted to take 3 s."""
    return score(published_rows()[::5], lambda **_: Predicted())


def some_placements() -> tuple[PlacedMesh, ...]:
    """Both orders of two axes, over two nodes."""
    model = GPTConfig(num_layers=2, d_model=64, num_heads=4, vocab_size=128, max_seq_len=32)
    cluster = CLUSTERS["dgx-a100"].replace(devices_per_node=2)
    return placements(model, Mesh(data=2, tensor=2), cluster, 4)


def some_launch() -> Launch:
    """Two programs that each read half of a matrix and a whole vector, and write a number."""
    tensors = {
        "x": Operand("x", (2, 3), (3, 1), 4, 0),
        "w": Operand("w", (3,), (1,), 4, 24),
        "y": Operand("y", (2,), (1,), 4, 36),
    }
    accesses = []
    for row in (0, 1):
        program = (row, 0, 0)
        accesses.append(Access(program, "load", "x", np.arange(3) + 3 * row, 4))
        accesses.append(Access(program, "load", "w", np.arange(3), 4))
        accesses.append(Access(program, "store", "y", np.array([row]), 4))
    return Launch("product", (2, 1, 1), tensors, accesses)


def layer_times(ranks: list[int], compute_s: list[float], exposed_s: list[float]) -> list[TensorLayerTime]:
    """A layer on each number of ranks."""
    return [
        TensorLayerTime("f and g", *each[:2], each[2], each[2])
        for each in zip(ranks, compute_s, exposed_s, strict=True)
    ]
