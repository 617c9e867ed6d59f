"""Share of communication and seconds of waiting for other ranks, in each step of a run.

    meter = CommunicationMeter(step)
    trainer = Trainer(step, loader, phase=meter, on_step=[meter.add_to, ...])     # before other reports
    with meter:
        trainer.train(1000)

    communication_share   time in which the rank communicates and does not compute, over the time of the step
    synchronization_s     seconds in which the rank waits in communication for other ranks

Simulated ranks: virtual seconds between two reports, from the spans of the rank: `exposed_s` and `waiting_s` of
`Timeline` (lablib/record/timeline.py) for this part of the run.

Real ranks: the functions of torch.distributed and `Work.wait` are timed while the block runs. Let b_p be the seconds of
phase p of the step in which this rank is blocked in them. The rank that is blocked least came last, and the others
waited for it:

    synchronization_s = sum_p (b_p - min b_p)     communication_share = sum_p min b_p / step_s     min: over all ranks

On GPUs a wait blocks the stream and not the host. So events on the stream measure it; the minimum is read in the next
report, when it has arrived: the host waits for nothing more, and each step reports the numbers of the step before.

Cost: an all-reduce of 40 bytes per step, and two clock readings per call. Off by default (monitor.communication).
Source: events as timers of streams, compared over ranks: Jiang et al., "MegaScale", 2024, arXiv 2402.15627, 5.1.
Simplified: with two late ranks in one phase, their common part counts as communication. DistributedDataParallel waits
in C++: from its last gradient to the next communication counts as blocked. Functional collectives (DTensor) are not
timed.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lablib.process.replaced import replaced
from lablib.record.timeline import Span, Timeline
from lablib.signature import checked
from lablib.train.breakdown import label
from lablib.train.steps import Step

_TIMED_PHASES = ("data", "gradients", "clip", "judge", "update")
_FUNCTIONS = """
all_reduce all_gather all_gather_into_tensor all_gather_single all_gather_object reduce_scatter reduce_scatter_tensor
reduce_scatter_single broadcast reduce gather scatter all_to_all all_to_all_single barrier send recv
""".split()


class CommunicationMeter:
    """The `phase` of a trainer that measures communication. `step`: the trainer's; `phase`: called as well."""

    @checked
    def __init__(self, step: Step, phase: Callable[[str], AbstractContextManager[Any]] = label):
        self._inner_phase, self._phase = phase, ""
        self._rank = simulated_rank()
        self._is_alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._device = next((param.device for param in step.optimizer.param_groups[0]["params"]), torch.device("cpu"))
        self._blocked: list[tuple[str, Any, Any]] = []  # phase, and readings of the clock
        self._last_gradient: Any = None
        self._is_inside = False
        self._under_way: tuple[Tensor, list[float], float] | None = None
        self._since_s, self._num_spans, self._open = (self._rank.clock_s if self._rank else 0.0), 0, list[tuple]()
        model = getattr(step, "model", None)
        if self._rank is None and isinstance(model, DistributedDataParallel):
            for param in model.parameters():
                param.register_post_accumulate_grad_hook(lambda _: setattr(self, "_last_gradient", self._now()))

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._phase = name
        try:
            with self._inner_phase(name):
                yield
        finally:
            self._phase = ""

    def __enter__(self) -> Self:
        self._replaced = ExitStack()
        if self._rank is None and not self._is_alone:
            places = [*((dist, name) for name in _FUNCTIONS if hasattr(dist, name)), (dist.Work, "wait")]
            timed = ((holder, name, self._timed(getattr(holder, name))) for holder, name in places)
            self._replaced.enter_context(replaced(*timed))
        return self

    def __exit__(self, *_: object) -> None:
        self._replaced.close()

    def add_to(self, metrics: dict[str, Any]) -> None:
        """Add the two numbers to the metrics of a step. Communicates on real ranks; all ranks call it."""
        if self._rank is not None:
            metrics |= self._simulated(self._rank)
        elif self._is_alone:
            metrics |= {"communication_share": 0.0, "synchronization_s": 0.0}
        else:
            metrics |= self._measured(metrics["step_s"])

    # ---- simulated ranks ----

    def _simulated(self, rank: Any) -> dict[str, float]:
        now_s, start_s = rank.clock_s, self._since_s
        self._since_s = now_s
        if not rank.is_traced or now_s <= start_s:
            return {}
        new = [*self._open, *rank.spans[self._num_spans :]]
        self._num_spans = len(rank.spans)
        self._open = [span for span in new if span[5] > now_s]
        part = Timeline(tuple(Span(*span) for span in new), rank.rank + 1).between(start_s, now_s)
        share = part.exposed_s(rank.rank) / part.makespan_s
        return {"communication_share": share, "synchronization_s": part.waiting_s(rank.rank)}

    # ---- real ranks ----

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or not self._phase:
                return function(*args, **kwargs)
            self._is_inside, began = True, self._last_gradient or self._now()
            try:
                return function(*args, **kwargs)
            finally:
                self._is_inside, self._last_gradient = False, None
                self._blocked.append((self._phase, began, self._now()))

        return call

    def _now(self) -> Any:
        """Seconds of the host's clock, or an event on the stream of the GPU."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _measured(self, step_s: float) -> dict[str, float]:
        own: dict[str, float] = dict.fromkeys(_TIMED_PHASES, 0.0)
        for name, began, ended in self._blocked:
            if self._device.type == "cuda":
                ended.synchronize()  # complete: the trainer has waited for the stream to read the loss
                own[name] += began.elapsed_time(ended) / 1000
            else:
                own[name] += ended - began
        self._blocked = []
        least = torch.tensor(list(own.values()), dtype=torch.float64, device=self._device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        under_way, self._under_way = self._under_way, (least, list(own.values()), step_s)
        if self._device.type != "cuda":
            under_way = self._under_way
        if under_way is None:
            return {}
        least, blocked, step_s = under_way
        communication_s = sum(found := least.tolist())
        waiting_s = sum(own_s - least_s for own_s, least_s in zip(blocked, found, strict=True))
        return {"communication_share": communication_s / step_s, "synchronization_s": waiting_s}


def simulated_rank() -> Any:
    """The clock and spans of this rank on the simulator, from its process group; None for a real one."""
    return getattr(dist.group.WORLD, "rank_clock", None) if dist.is_initialized() else None
