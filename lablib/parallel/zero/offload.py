"""ZeRO-Offload: optimizer state and FP32 parameters in host memory, with the optimizer step on the host.

In ZeRO-2 each rank has 1/n of the gradients and of the optimizer's state. Both can leave the GPU: only the optimizer
needs a gradient shard, and it computes little per byte. So each shard is copied to the host while backward continues,
the host updates it, and parameters in 16 bits are copied back. 2 bytes per parameter stay on the GPU; with stage 3 and
its shards also on the host (`ZeroInfinity`), only the gathered units.

    compute   backward 3 | backward 2 | backward 1 | backward 0 |                              | forward
    out                  [ shard 3 ]  [ shard 2 ]  [ shard 1 ]  [ shard 0 ]
    host                            [ step 3   ][ step 2   ][ step 1   ][ step 0   ]
    in                                                          [ 3 ][ 2 ][ 1 ]    [ 0 ]

The host has issued all of backward long before the device is done, so it updates the first shards early. Parameters are
copied back after backward, which still reads the old ones.

Phases of one step (the code has the same headings):
    1. a shard is reduced     start its copy to the host, on a separate stream, and free it
    2. the host steps         unit by unit: wait for the gradients, sum them, update
    3. parameters come back   each unit's copy starts after its update, during the update of the next; all-gather

Cost for n ranks, P parameters of w bytes in M units, gradients of g bytes; Adam in FP32 moves 28 bytes per parameter,
and g + 4 + 4 + w for the casts; beta the host link and h the host's memory, in bytes per second:
    time_s      for a unit  b of backward,  d = g P/(n M)/beta,  c = (28 + casts) P/(n M)/h,  u = w P/(n M)/beta
                exposed     max(M u, b + d + c + M u - M b, b + d + c + (M - 1) max(b, d, c) + u - M b)
    bytes       on the GPU w P at rest, and two buckets while backward runs; 12 P/n on the host with Adam, and g P/n
    sent bytes  as stage 2; over the host link (g + w) P/n
`offload_time` has these. The host's work does not grow with the batch, so many tokens make it a small share.

Shapes: a shard is [N / n].
Source: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", 2021, arXiv 2101.06840, sections 3 to
5; Rajbhandari et al., "ZeRO-Infinity", 2021, arXiv 2104.07857 (parameters).
Simplified: no one-step delayed update (the first, section 5.2: the host steps while the next forward runs, with
parameters a step old); nothing goes to NVMe; no clipping, for which all gradients must be there before the first step;
the formula leaves out the reduce-scatter, the all-gather and latencies.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.overlapped import Handle
from lablib.parallel.zero.module import OptimizerFn
from lablib.parallel.zero.shards import FlatUnit, all_gather_shards
from lablib.parallel.zero.stage1 import Reduction
from lablib.parallel.zero.stage2 import Zero2
from lablib.parallel.zero.stage3 import Zero3
from lablib.parallel.zero.units import GatheredUnit
from lablib.phases import host_work
from lablib.signature import Count, NonNegative, Positive, checked

HOST_BYTES_PER_S = 50e9  # of one of 8 GPUs that share 16 channels of DDR4-3200, 410 GB/s


class HostLink:
    """Copies between a device and its host, each direction on a separate stream; without a GPU, synchronous."""

    def __init__(self, device: torch.device):
        self._has_gpu = device.type == "cuda"
        self._out, self._in = (torch.cuda.Stream(), torch.cuda.Stream()) if self._has_gpu else (None, None)

    def empty(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Memory on the host, pinned if there is a GPU."""
        return torch.empty(like.shape, dtype=dtype, device="cpu", pin_memory=self._has_gpu)

    def to_host(self, target: Tensor, source: Tensor) -> Any:
        """Start to copy; returns an event to `synchronize` before the host reads, None if not needed."""
        return self._copy(self._out, target, source)

    def to_device(self, target: Tensor, source: Tensor) -> Any:
        return self._copy(self._in, target, source)

    def outgoing(self) -> AbstractContextManager[Any]:
        """Work issued inside follows the copies to the host; compute does not wait for it."""
        return torch.cuda.stream(self._out) if self._has_gpu else nullcontext()

    def incoming(self) -> AbstractContextManager[Any]:
        """The same for the copies to the device."""
        return torch.cuda.stream(self._in) if self._has_gpu else nullcontext()

    def _copy(self, stream: Any, target: Tensor, source: Tensor) -> Any:
        if stream is None:
            target.copy_(source)
            return None
        stream.wait_stream(torch.cuda.current_stream())  # kernels that compute the source, or still read the target
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            for tensor in (target, source):
                if tensor.device.type == "cuda":
                    tensor.record_stream(stream)  # its memory is not reused before the end of the copy
            return stream.record_event()


class HostUnit:
    """A unit's shard on the host: the master parameters, and the gradients that have arrived."""

    def __init__(self, unit: FlatUnit, link: HostLink):
        self.unit, self._link = unit, link
        master = link.empty(unit.master.detach(), unit.master.dtype)
        master.copy_(unit.master.detach())
        self.master = nn.Parameter(master)  # the shard in the module's dtype
        # gradients of this step's micro-batches, each with the event of its arrival
        self.arrived: list[tuple[Tensor, Any]] = []
        self._params = link.empty(unit.shard.detach(), unit.shard.dtype)
        unit.master = unit.shard  # the device's copy is freed

    def take(self, shard: Tensor) -> None:
        """Start to copy a reduced gradient to the host."""
        host = self._link.empty(shard, shard.dtype)
        self.arrived.append((host, self._link.to_host(host, shard)))

    def gather_gradient(self) -> None:
        """Wait for the gradients, and sum them in the master's dtype."""
        for host, event in self.arrived:
            if event is not None:
                event.synchronize()
            grad = host.to(self.master.dtype)
            self.master.grad = grad if self.master.grad is None else self.master.grad.add_(grad)
        self.arrived.clear()

    def give_back(self, target: Tensor) -> None:
        """Cast the parameters on the host, and start to copy them to the device."""
        self._params.copy_(self.master.detach())
        self._link.to_device(target, self._params)


class _Offloaded:
    """Units on the host, one optimizer each: base of both classes below."""

    def __init__(self, units: list[FlatUnit], optimizer_fn: OptimizerFn, host_bytes_per_s: float):
        device = units[0].shard.device
        self.link, self.host_bytes_per_s = HostLink(device), host_bytes_per_s
        self.hosts = {unit: HostUnit(unit, self.link) for unit in units if unit.is_trainable}
        self.optimizers = [optimizer_fn([host.master]) for host in self.hosts.values()]

    def step(self, give_back: Any) -> None:
        """Phases 2 and 3; `give_back(host)` starts to copy one unit back."""
        missing = [host.unit.layout.names[0] for host in self.hosts.values() if not host.arrived]
        if missing:
            raise ValueError(f"a step needs reduced gradients: there are none for {missing[0]}; run backward first.")
        for host, optimizer in zip(self.hosts.values(), self.optimizers, strict=True):
            with host_work(self.host_bytes_per_s):
                host.gather_gradient()
                optimizer.step()
                host.master.grad = None
                give_back(host)

    def forget(self) -> None:
        for host in self.hosts.values():
            host.arrived.clear()


class ZeroOffload(Zero2):
    """ZeRO-2 with the optimizer on the host.

        zero = ZeroOffload(model, partial(torch.optim.AdamW, fused=True), param_dtype=torch.bfloat16)
        loss_of(zero(inputs), targets).backward()      # gradients are copied while it runs
        zero.step()                                    # on the host; communicates

    Arguments:
        module: on this rank's device.
        optimizer_fn: makes the optimizer of one unit's shard, in the host's memory.
        host_bytes_per_s: a rank's share of the host's memory bandwidth, for the simulated time of the step.
        options: of `Zero2`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_fn: OptimizerFn,
        *,
        host_bytes_per_s: float = HOST_BYTES_PER_S,
        **options: Any,
    ):
        super().__init__(module, **options)
        self._offloaded = _Offloaded(self.units, optimizer_fn, host_bytes_per_s)
        self.optimizers = self._offloaded.optimizers  # one for each unit

    # ---- 1. a shard is reduced ----

    def _start(self, unit: FlatUnit, full: Tensor) -> Reduction:
        reduction = super()._start(unit, full)
        with self._offloaded.link.outgoing():
            reduction.handle.wait()  # the copy waits, backward continues
            self._offloaded.hosts[unit].take(reduction.shard)
        return reduction

    def _finish(self, reduction: Reduction) -> None:
        reduction.handle.wait()  # at most one bucket is in flight; its shard has been copied

    # ---- 2. the host steps, 3. parameters come back ----

    def step(self) -> None:
        """Update on the host, then the parameters on every rank. Communicates. ValueError: no new reduced gradients."""
        handles: list[Handle] = []

        def give_back(host: HostUnit) -> None:
            host.give_back(host.unit.shard.data)
            with self._offloaded.link.incoming():
                handles.append(self._all_gather(host.unit.shard.detach(), host.unit.full, host.unit.group))

        self._offloaded.step(give_back)
        for handle in handles:
            handle.wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._offloaded.forget()


class ZeroInfinity(Zero3):
    """ZeRO-3 with all shards on the host: the GPU has only gathered units and activations.

    A unit's shard is copied to the device just before its gather, also when prefetched. Used as `ZeroOffload`, with the
    options of `Zero3` except `all_gather` and `backward_all_gather`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_fn: OptimizerFn,
        *,
        host_bytes_per_s: float = HOST_BYTES_PER_S,
        **options: Any,
    ):
        super().__init__(module, all_gather=self._gather_from_host, **options)
        self._free_all()
        self._offloaded = _Offloaded(self.units, optimizer_fn, host_bytes_per_s)
        self.optimizers = self._offloaded.optimizers
        for unit in self._gathered_units:
            shards_to_host(unit, self._offloaded.link)
        for unit, host in self._offloaded.hosts.items():
            unit.add_gradient = host.take  # phase 1: a reduced gradient goes to the host

    def _gather_from_host(self, shard: Tensor, full: Tensor, group: dist.ProcessGroup | None) -> Handle:
        link = self._offloaded.link
        on_device = torch.empty_like(shard, device=full.device)
        link.to_device(on_device, shard)
        with link.incoming():
            return all_gather_shards(on_device, full, group)

    # ---- 2. the host steps; parameters come back when they are gathered ----

    def step(self) -> None:
        """Step on the host. Raises ValueError if gradients have not been reduced since the last step."""
        self._free_all()
        self._offloaded.step(lambda host: host.unit.shard.data.copy_(host.master.detach()))

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._offloaded.forget()


def shards_to_host(unit: GatheredUnit, link: HostLink) -> None:
    """Move a unit's shards, and the module's pieces of them, to host memory."""
    kept = dict.fromkeys(kept for *_, kept, _ in unit._slots)  # in the order of the layouts, tied ones once
    places = iter(kept)
    for flat in unit.flats:
        shard = link.empty(flat.shard.detach(), flat.shard.dtype)
        shard.copy_(flat.shard.detach())
        flat.shard = flat.master = nn.Parameter(shard, requires_grad=flat.is_trainable)
        pieces = {piece.name: piece for piece in flat.layout.pieces(dist.get_rank(flat.group))}
        for name in flat.layout.names:
            start, numel = (pieces[name].start_in_shard, pieces[name].numel) if name in pieces else (0, 0)
            next(places).data = shard[start : start + numel]


# ---- time and memory ----


@dataclass(frozen=True, slots=True)
class OffloadTime:
    """Seconds that ZeRO-Offload adds to a step, and the bytes that it saves."""

    gradients_s: float  # gradients_s, host_s, params_s: of the copies to the host, the host's step, and the copies back
    host_s: float
    params_s: float
    exposed_s: float  # the part that does not overlap with compute
    saved_bytes: float  # of the device's memory, at rest


@checked
def offload_time(
    params: Positive,
    ranks: Count,
    units: Count,
    backward_s: NonNegative,
    link_bytes_per_s: Positive,
    host_bytes_per_s: Positive = HOST_BYTES_PER_S,
    param_bytes: Count = 2,
    grad_bytes: Count = 2,
) -> OffloadTime:
    """The formulas at the head of this file, for Adam in FP32 and equal units.

    P `params`, n `ranks`, M `units`; beta, h: bytes per second of link and host; w, g: bytes of a parameter and of a
    gradient; `backward_s`: of the whole model.
    """
    numbers = params / ranks
    moved = 7 * 4 + (grad_bytes + 4) + (4 + param_bytes)
    gradients_s, params_s = (numbers * size / link_bytes_per_s for size in (grad_bytes, param_bytes))
    host_s = numbers * moved / host_bytes_per_s
    b, d, c, u = (seconds / units for seconds in (backward_s, gradients_s, host_s, params_s))
    first_s = b + d + c
    last_s = first_s + (units - 1) * max(b, d, c)
    exposed_s = max(params_s, first_s + params_s - backward_s, last_s + u - backward_s)
    return OffloadTime(gradients_s, host_s, params_s, exposed_s, numbers * (12 + grad_bytes))
