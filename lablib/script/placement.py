"""Placement of tensors on host or simulated device: a mark on each storage, propagated by operators.

The simulator computes with CPU tensors, but a script has tensors in two places: the host's memory and the device's. A
storage on the device is marked with the index of the device; its tensors report `cuda:3` (devices.py). Marks are
propagated in the dispatcher, which every operator passes:

    an argument is marked          new memory of the operator is on that device, and it is the device's work
    none, but a device is given    that device: `torch.zeros(3, device="cuda")`, `x.to("cuda")`, `x.cpu()`
    none, inside backward          the device of the backward's outputs: the engine allocates gradients there
    none otherwise                 host memory, and the host's work, which takes no virtual time

For a script that never uses the device (gloo on CPU) all operators have the costs of the cluster's device, as in
`launch`. An operator with tensors in both places raises if CUDA would (mixing.py). Copies between host and device use
PCIe:

    time = alpha + S / beta    S bytes; alpha, beta of the PCIe generation of the device

on the stream that it is issued on. On a side stream it overlaps with compute, and the timeline shows it as
communication: "comm:host:send" to the host, "comm:host:recv" from it. On the default stream it is compute.

Random numbers drawn on the device come from the device's own generator, as on a GPU: seeding it, or dropout, does not
change the host's random numbers (for example the order of a data set).

Simplified: the host's own work is free except in `lablib.phases.host_work`, so data loading never limits a run (the
run's notes count it); pinned memory is as fast as any, and copies on two streams do not share the link.
"""

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch

from lablib.hardware import LINKS, Link
from lablib.hardware.device import Device
from lablib.operators.mode import OperatorMode
from lablib.operators.op import is_free, tensors_in
from lablib.operators.op_bytes import op_bytes
from lablib.process.rank_state import device_seed
from lablib.script.marks import HOST, index_of_storage, is_memory, mark_storage, storage_of
from lablib.script.mixing import check_devices
from lablib.script.process import here, refuse
from lablib.sim.operators.clock import has_own_rule, is_fake
from lablib.sim.operators.op_traits import traits_of
from lablib.sim.ranks.rank import Rank
from lablib.torch_compat import DispatchKey, has_kernel_for, schema


def host_link(device: Device) -> Link:
    generations = {"V100": "pcie3", "A100": "pcie4", "MI250": "pcie4"}
    return LINKS[next((link for name, link in generations.items() if device.name.startswith(name)), "pcie5")]


@cache
def _is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


class DeviceGenerator:
    """The device's counter-based random generator, as CUDA's. A state is a seed and an offset, 16 bytes."""

    def __init__(self, seed: int) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        self.seed, self.offset = seed & (2**64 - 1), 0

    def next_seed(self) -> int:
        """Seed for the host's generator when it is used for this one."""
        return (self.seed * 0x9E3779B97F4A7C15 + self.offset) & (2**63 - 1)

    def advance(self, numel: int) -> None:
        """Count drawn numbers; CUDA's generator makes four at a time."""
        self.offset += -(-numel // 4) * 4

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def get_state(self) -> torch.Tensor:
        return torch.tensor(list(struct.pack("<QQ", self.seed, self.offset)), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        if state.numel() != 16:
            raise RuntimeError(f"RNG state is wrong size: a CUDA state has 16 bytes; got {state.numel()}")
        self.seed, self.offset = struct.unpack("<QQ", bytes(state.tolist()))


class Placement(OperatorMode):
    """Marks the allocations of one rank. Enter it in the rank's thread, beneath the clock.

    Attributes:
        is_used: whether the script uses the device: from then on work on host tensors is not the device's.
        is_initialized: whether torch would have initialized CUDA: a device was queried, chosen or used.
        device_index: the current device, as set by `torch.cuda.set_device`.
        num_host_operators: number of operators on the host, which take no virtual time.
        is_busy: inside code of this file, which reads the true properties of tensors.
    """

    def __init__(self, rank: Rank, device: Device):
        super().__init__()
        self._rank, self._link = rank, host_link(device)
        self.is_used = self.is_initialized = self.is_busy = False
        self.device_index = self.num_host_operators = 0
        self._wanted: int | None = None  # device requested by the current call
        self._assumed: int | None = None  # default device of calls without marked arguments
        self.generator = DeviceGenerator(device_seed(rank.rank))

    def wanting(self, index: int) -> AbstractContextManager[None]:
        """Allocate inside this context on device `index`, or on the HOST."""
        return self._with("_wanted", index)

    def assuming(self, index: int) -> AbstractContextManager[None]:
        """Allocate inside this context on device `index` (or the HOST) without marked arguments."""
        return self._with("_assumed", index)

    @contextmanager
    def _with(self, name: str, index: int) -> Iterator[None]:
        before = getattr(self, name)
        setattr(self, name, index)
        try:
            yield
        finally:
            setattr(self, name, before)

    def use(self, index: int) -> int:
        """Record that the script uses device `index`."""
        self.is_used = self.is_initialized = True
        return index

    def counts(self, storage: Any) -> bool:
        """Whether the rank's memory tracker counts a storage: only device memory, once the script uses the device."""
        return not self.is_used or index_of_storage(storage) is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if has_own_rule(types):
            # A wrapper (DTensor) is first turned into operators on its shards.
            return func(*args, **kwargs) if is_fake(types) else NotImplemented
        was_busy, self.is_busy = self.is_busy, True
        try:
            given = [(t, storage_of(t)) for t in tensors_in((*args, *kwargs.values())) if is_memory(t)]
            places = {index_of_storage(s) for _, s in given}
            if len(places) > 1:
                check_devices(func, args, kwargs)
            index = next((i for _, s in given if (i := index_of_storage(s)) is not None), None)
            if index is None and not given and self._wanted is None:
                index = None if self._assumed == HOST else self._assumed
            out = self._computed(func, args, kwargs, self._wanted if self._wanted is not None else index)
            self._mark_new(out, given, self._wanted if self._wanted is not None else index)
            is_device_work = index is not None or self._wanted not in (None, HOST) or not self.is_used
            if not is_device_work:
                self._host_works(func, args, kwargs, out)
            self._rank.is_priced = is_device_work and not self._crosses(func, given, out)
        finally:
            self.is_busy = was_busy
        return out

    def _host_works(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Count an operator on the host, or add its time in a block of host_work."""
        bandwidth = self._rank.host_bandwidths[-1] if self._rank.host_bandwidths else None
        process = here()
        if bandwidth is None or process is None or is_free(func):
            self.num_host_operators += 1
            return
        size_bytes = op_bytes(func, args, kwargs, out)
        process.streams.host_works(traits_of(func).name, size_bytes / bandwidth, size_bytes)

    def _computed(self, func: Any, args: tuple, kwargs: dict, index: int | None) -> Any:
        """Run the operator. Raises NotSimulatedError: torch has the operator only for GPUs."""
        if index is None or index == HOST:
            return func(*args, **kwargs)
        try:
            if not _is_random(func) or kwargs.get("generator") is not None:
                return func(*args, **kwargs)
            return self._drawn(func, args, kwargs)
        except NotImplementedError:
            name = schema(func).name
            if has_kernel_for(name, DispatchKey.CPU) or any(t.is_meta for t in tensors_in(args)):
                raise
            why = "torch has it for GPUs alone, and the simulator computes with the CPU's operators"
            refuse(name, why, "use another operator when simulating, or run the program on GPUs")

    def _drawn(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator that draws random numbers, with the device's generator."""
        host = torch.default_generator.get_state()
        torch.default_generator.manual_seed(self.generator.next_seed())
        try:
            out = func(*args, **kwargs)
        finally:
            torch.default_generator.set_state(host)
        self.generator.advance(max((t.numel() for t in tensors_in((out,))), default=0))
        return out

    def _mark_new(self, out: Any, given: list, index: int | None) -> None:
        if index is None or index == HOST:
            return
        for tensor in tensors_in((out,)):
            if is_memory(tensor) and not tensor.is_meta:
                storage = storage_of(tensor)
                # An in-place result, or a view of an argument, is not moved.
                if index_of_storage(storage) is None and not any(storage is s for _, s in given):
                    mark_storage(storage, index)

    def _crosses(self, func: Any, given: list, out: Any) -> bool:
        """Whether this was a copy between host and device; if so, the current stream spends the PCIe time on it."""
        name = schema(func).name
        if name not in ("aten::copy_", "aten::_to_copy", "aten::clone") or not given:
            return False
        is_in_place = name == "aten::copy_"
        target, source = (given[0], given[-1]) if is_in_place else ((out, storage_of(out)), given[0])
        to, come_from = index_of_storage(target[1]), index_of_storage(source[1])
        if (to is None) == (come_from is None):
            return False
        size_bytes = source[0].nbytes
        rank, time_s = self._rank, self._link.latency_s + size_bytes / self._link.bandwidth_bytes_per_s
        label, way = ("copy host to device", "recv") if come_from is None else ("copy device to host", "send")
        stream = rank.stream
        if rank.is_on_side_stream:
            rank.stream = f"comm:host:{way}"
        rank.compute(label, time_s, 0.0, size_bytes)
        rank.stream = stream
        return True
