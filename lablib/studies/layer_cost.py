"""Cost of a layer by technique: its own program on the simulator, with shapes instead of values.

    def program(*sizes):            # on each rank
        layer, x = ...              # setup, not counted
        return lambda: layer(x).sum().backward()

    layer_cost(program, ranks, cluster, sizes)

The simulator is the cost model of the techniques: every operator and every collective of the program has its time from
lablib/cost, and overlap is as in the program. A cost is computed once for equal arguments.

Cost: about 10 ms, and 10 to 40 ms per simulated rank and layer. Where all ranks do the same, `simulate` runs one.
Simplified: as the simulator: messages take no cores of the GPU.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from lablib.errors import RankError
from lablib.hardware import Cluster
from lablib.launch import launch
from lablib.phases import phase
from lablib.record.timeline import COMPUTE

Program = Callable[..., Callable[[], Any]]
_DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Time, bytes and FLOPs of one run of a program, until its last rank is done."""

    ranks: int  # number of ranks, simulated or not
    time_s: float  # from the common start to the end of the last rank
    compute_s: float  # compute of the busiest rank. Its other attributes are of the same rank.
    communication_s: float  # communication, hidden or not
    sent_bytes: float
    seconds: Mapping[str, float] = field(repr=False)  # compute time by operator, such as "aten.mm"
    flops: Mapping[str, float] = field(repr=False)  # FLOPs by phase, such as "forward" and "backward"

    @property
    def exposed_s(self) -> float:
        """Time in which the busiest rank does not compute: it communicates, or waits for others or for launches."""
        return self.time_s - self.compute_s

    def seconds_of(self, *operators: str) -> float:
        """Compute time of some operators; 0 s for those that the program does not run."""
        return sum(self.seconds.get(name, 0.0) for name in operators)


def layer_cost(
    program: Program, ranks: int, cluster: Cluster, *sizes: Hashable, simulate: Iterable[int] | None = None
) -> LayerCost:
    """Simulate one run of the function that `program(*sizes)` returns on each rank.

    Arguments:
        program: a function of a module; it builds a layer and its input.
        simulate: the ranks to run, if the others do the same (`lablib.launch`); None: all.

    Raises ValueError: as the program.
    """
    return _layer_cost(program, ranks, cluster, sizes, None if simulate is None else tuple(simulate))


@lru_cache(maxsize=1024)
def _layer_cost(
    program: Program, ranks: int, cluster: Cluster, sizes: tuple[Hashable, ...], simulate: tuple[int, ...] | None
) -> LayerCost:
    try:
        run = launch(_step, program, sizes, ranks=ranks, cluster=cluster, fidelity="shapes", simulate=simulate)
    except RankError as error:
        if isinstance(error.__cause__, ValueError):  # sizes that the technique refuses
            raise error.__cause__ from None
        raise
    step = run.timeline.without("setup")
    busiest = max(range(ranks) if simulate is None else simulate, key=step.busy_s)
    spans = step.select(busiest)
    seconds: dict[str, float] = defaultdict(float)
    flops: dict[str, float] = defaultdict(float)
    for span in spans:
        if span.stream == COMPUTE:
            seconds[span.name] += span.duration_s
            flops[span.phase] += span.flops
    communication_s = sum(span.duration_s for span in spans if span.is_communication)
    sent_bytes = run.traffic.sent_bytes(busiest)
    return LayerCost(
        ranks, step.makespan_s, step.busy_s(busiest), communication_s, sent_bytes, dict(seconds), dict(flops)
    )


def _step(program: Program, sizes: tuple[Any, ...]) -> None:
    with phase("setup"):
        run = program(*sizes)
        dist.barrier()
    run()


def dtype_of(element_bytes: int) -> torch.dtype:
    """The floating-point type of so many bytes that the studies use."""
    if element_bytes not in _DTYPES:
        raise ValueError(f"element_bytes must be one of {sorted(_DTYPES)}: got {element_bytes}; try 2.")
    return _DTYPES[element_bytes]
