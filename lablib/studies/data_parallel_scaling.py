"""Predicted step time and scaling efficiency of data parallelism on n ranks, without running any rank.

One device is priced once: its forward, its backward, and the time in backward at which each gradient is ready. More
ranks add communication, which depends only on the ranks, the bucket size and the cluster. So a curve of efficiencies
costs one profile and some sums.

    efficiency(n) = T(1) / T(n)        weak scaling: the batch per rank is constant, so the ideal is 1

With F forward, B backward, buckets i = 1..M that are ready at r_i (packing included) and take c_i to all-reduce:
    naive        T = F + B + sum of c_i, one "bucket" per parameter
    bucketed     T = F + B + packing + sum of c_i
    overlapped   T = F + max(B + packing, e_M)    with e_0 = 0, e_i = max(e_{i-1}, r_i) + c_i: one stream, in order

Cost of a prediction: M sums. Of a profile: one step on one device; on device "meta" shapes alone, so any size fits.
Legend: S bytes of a bucket, W memory bandwidth. Packing: S read and written, S divided in place: 4 S / W and 2 kernels.
Source: Li et al., "PyTorch Distributed", VLDB 2020, arXiv 2006.15704, sections 3.2 and 5 (overlap); all-reduce times
from `lablib/cost` (Thakur et al. 2005).
Simplified: all ranks are equally fast; the optimizer is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lablib.cost import collective_cost
from lablib.cost.network import network_of
from lablib.hardware import Cluster, Device
from lablib.operators.fused_attention import FusedAttention
from lablib.operators.mode import OperatorMode
from lablib.operators.op import is_free, op_cost
from lablib.parallel.data.bucketed import BUCKET_BYTES, plan_buckets
from lablib.signature import Count, checked
from lablib.text.units import format_quantity

Method = Literal["naive", "bucketed", "overlapped"]
METHODS: tuple[Method, ...] = ("naive", "bucketed", "overlapped")


@dataclass(frozen=True, eq=False)
class StepProfile:
    """One step on one device, without communication."""

    device: Device
    forward_s: float
    backward_s: float
    params: tuple[Tensor, ...]  # the trainable parameters in order of registration, as shapes (device "meta")
    ready_s: tuple[float, ...]  # seconds from the start of backward to each parameter's final gradient

    @property
    def step_s(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def gradient_bytes(self) -> int:
        return sum(param.nbytes for param in self.params)

    def __repr__(self) -> str:
        forward, backward = (format_quantity(seconds, "s") for seconds in (self.forward_s, self.backward_s))
        gradients = f"{len(self.params)} gradients of {format_quantity(self.gradient_bytes, 'B')}"
        return f"StepProfile(forward {forward}, backward {backward}, {gradients}, on {self.device.name})"


@dataclass(frozen=True, slots=True)
class StepTime:
    """A predicted step. `exposed_s` is the part of it that communication adds to compute; all in seconds."""

    step_s: float
    communication_s: float
    exposed_s: float


class _Stopwatch(OperatorMode):
    """Adds up the cost of every operation on a device."""

    def __init__(self, device: Device):
        super().__init__()
        self.time_s, self._host_s, self._device = 0.0, 0.0, device

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not is_free(func):
            cost = op_cost(func, args, kwargs or {}, out, self._device)
            self._host_s += cost.launch_s  # as lablib/sim/ranks/rank.py
            self.time_s = max(self.time_s, self._host_s) + cost.time_s - cost.launch_s
        return out


@checked
def profile_step(module: nn.Module, loss_of: Callable[[nn.Module], Tensor], device: Device) -> StepProfile:
    """Price forward and backward of one device, operation by operation.

    Arguments:
        module: with real tensors, or on device "meta" for shapes alone. Its gradients are set to None.
        loss_of: runs the forward pass on one rank's batch and returns the loss.
        device: the modelled device, independent of the present machine.
    """
    params = [param for param in module.parameters() if param.requires_grad]
    ready_s: dict[Tensor, float] = {}
    module.zero_grad(set_to_none=True)
    with _Stopwatch(device) as watch, FusedAttention():
        hooks = [
            p.register_post_accumulate_grad_hook(lambda param: ready_s.__setitem__(param, watch.time_s)) for p in params
        ]
        loss = loss_of(module)
        forward_s = watch.time_s
        loss.backward()
    for hook in hooks:
        hook.remove()
    module.zero_grad(set_to_none=True)
    shapes = tuple(torch.empty_like(param, device="meta", requires_grad=False) for param in params)
    ready = tuple(ready_s[param] - forward_s for param in params)
    return StepProfile(device, forward_s, watch.time_s - forward_s, shapes, ready)


@checked
def predict_step(
    profile: StepProfile,
    cluster: Cluster,
    ranks: Count,
    bucket_bytes: Count = BUCKET_BYTES,
    method: Method = "overlapped",
) -> StepTime:
    """The seconds of one data-parallel step. Pure.

    Arguments:
        profile: of one rank's part of the batch, on the cluster's device.
        ranks: at least 1; one rank does not communicate.
        bucket_bytes: most bytes of a bucket; not used by "naive".
    """
    if ranks == 1:
        return StepTime(profile.step_s, 0.0, 0.0)
    if method == "naive":
        sizes = [param.nbytes for param in profile.params]
        communication_s = sum(all_reduce_s(cluster, ranks, size) for size in sizes)
        divide_s = sum(_touch_s(profile.device, 2 * size) for size in sizes)
        return _step_time(profile, profile.step_s + divide_s + communication_s, communication_s)
    plan = plan_buckets(profile.params, bucket_bytes)
    sizes = [sum(profile.params[i].nbytes for i in bucket) for bucket in plan]
    bucket_s = [all_reduce_s(cluster, ranks, size) for size in sizes]
    packing_s = [2 * _touch_s(profile.device, 2 * size) for size in sizes]  # copy, then divide
    compute_s = profile.step_s + sum(packing_s)
    if method == "bucketed":
        return _step_time(profile, compute_s + sum(bucket_s), sum(bucket_s))
    ready_s = [max(profile.ready_s[i] for i in bucket) for bucket in plan]
    last_s = profile.forward_s + end_of_last_bucket(ready_s, packing_s, bucket_s)
    return _step_time(profile, max(compute_s, last_s), sum(bucket_s))


def end_of_last_bucket(ready_s: Sequence[float], packing_s: Sequence[float], bucket_s: Sequence[float]) -> float:
    """End of the last all-reduce, in seconds after the start of backward: e_M of the formula above.

    Arguments:
        ready_s: time of the last gradient of each bucket in backward without packing.
        packing_s: time of packing each bucket; it delays the rest of backward.
        bucket_s: time of its all-reduce.
    """
    issued_s = delay_s = end_s = 0.0
    for ready, packing, communication in zip(ready_s, packing_s, bucket_s, strict=True):
        delay_s += packing
        issued_s = max(issued_s, ready + delay_s)  # never before the previous bucket: launched in order
        end_s = max(end_s, issued_s) + communication
    return end_s


@checked
def scaling_efficiency(
    profile: StepProfile,
    cluster: Cluster,
    ranks: Count,
    bucket_bytes: Count = BUCKET_BYTES,
    method: Method = "overlapped",
) -> float:
    """T(1) / T(n), in (0, 1]: the share of n devices' work that remains after communication. Pure.

    Arguments and Raises as in `predict_step`.
    """
    return profile.step_s / predict_step(profile, cluster, ranks, bucket_bytes, method).step_s


@lru_cache(maxsize=4096)  # a curve uses the same buckets for each of its methods
def all_reduce_s(cluster: Cluster, ranks: int, size_bytes: int) -> float:
    """Seconds of one all-reduce over the first `ranks` ranks of the cluster, by its fastest algorithm."""
    return collective_cost("all_reduce", size_bytes, network_of(cluster, ranks)).time_s


def _touch_s(device: Device, size_bytes: int) -> float:
    """Seconds of one operation that moves so many bytes."""
    return size_bytes / device.memory_bandwidth_bytes_per_s + device.queued_s


def _step_time(profile: StepProfile, step_s: float, communication_s: float) -> StepTime:
    return StepTime(step_s, communication_s, step_s - profile.step_s)
