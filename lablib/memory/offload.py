"""Activation offload: copy activations to host memory, and prefetch them for backward.

The host has more memory than the GPU, behind a slow link. An activation of S bytes takes c = alpha + S / beta seconds
in each direction. Nothing is recomputed; the cost is the copy time that compute does not hide:

    naive      the compute stream copies, so every copy is exposed            2 n c
    offload    a stream for each direction; layer i + 1 computes         max(0, (n - a) c - (n - 1) f) forward
               while the activation of layer i leaves, and in backward        max(0, (n - a) c - (n - 1) g) backward
               activations of the next a layers are prefetched

    compute  F0 F1 F2 F3 .. | B3 B2 B1 B0          n layers, each f seconds forward, g backward, S bytes kept
    out         o0 o1 o2    |
    in                      | i1 i0                a = 2: the last two are still on the device

For many layers that is max(0, c - f) + max(0, c - g) per layer: a copy is hidden if it takes no longer than the next
layer. A layer of width D does about 24 D FLOPs per number of its input and keeps some 16 numbers for it, so whether its
copy is hidden depends on D, on FLOP/s and on the link, not on the batch. With checkpoints only the inputs are copied (1
number instead of 16), and 1 / 16 of that width is enough.

Cost: 2 n c seconds on the link; device memory a S in each direction instead of n S; host memory n S, pinned.
Shapes: any.
Source: Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design", 2016,
arXiv 1602.08124, section 3 (offload and prefetch on a separate stream); torch.autograd.graph.save_on_cpu (naive).
Simplified: the prefetch order is the reverse of forward; `num_ahead` counts tensors, not bytes, so it suits layers that
keep about the same bytes.
"""

import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lablib.memory.packed_memory import packed_memory
from lablib.signature import Count, checked

Event = Any  # torch.cuda.Event, or the simulator's event


@dataclass(slots=True, eq=False, weakref_slot=True)
class OnHost:
    """A flat tensor that has been sent to the host."""

    host: Tensor  # the copy on the host
    device: torch.device  # its original device
    place: int = 0  # its index in the order of forward
    on_device: Tensor | None = None  # the tensor on the device: not freed yet, or fetched again
    arrived: Event | None = None  # event at the end of its copy


@checked
def naive_offload(parameters: Iterable[Tensor] = (), *, min_numel: int = 1024) -> AbstractContextManager[None]:
    """In this block, tensors saved by autograd are copied to the host, and back when backward needs them (naive).

    Arguments: as of `offload`.
    """
    _require_gpu()
    return packed_memory(
        lambda flat: OnHost(flat.to("cpu"), flat.device), lambda kept: kept.host.to(kept.device), parameters, min_numel
    )


@checked
def offload(
    parameters: Iterable[Tensor] = (), *, num_ahead: Count = 2, min_numel: int = 1024
) -> AbstractContextManager[None]:
    """The same, with copies during compute: `with offload(model.parameters()): loss = model(x)`, then `backward()`.

    `parameters`, and tensors below `min_numel`, stay on the device. `num_ahead`: copies in flight per direction; the
    same number of tensors stays on the device. ValueError: there is no GPU.
    """
    _require_gpu()
    mover = Mover(num_ahead)
    return packed_memory(mover.send, mover.fetch, parameters, min_numel)


@checked
def exposed_s(num_layers: int, num_ahead: int, copy_s: float, forward_s: float, backward_s: float) -> float:
    """Additional seconds of a step of equal layers with `offload`: the formulas at the head of this file."""
    copied_s = max(0, num_layers - num_ahead) * copy_s
    return sum(max(0.0, copied_s - (num_layers - 1) * layer_s) for layer_s in (forward_s, backward_s))


class Mover:
    """Copies of one forward and its backward: two streams, and the copies in flight on them."""

    def __init__(self, num_ahead: int):
        self._num_ahead = num_ahead
        self._out, self._in = torch.cuda.Stream(), torch.cuda.Stream()
        self._leaving: deque[OnHost] = deque()  # still on the device, the oldest first
        self._sent: list[weakref.ref[OnHost]] = []  # in the order of forward

    def send(self, flat: Tensor) -> OnHost:
        """Begin to copy a flat tensor to the host, after the kernels that compute it."""
        while len(self._leaving) >= self._num_ahead:
            # Free the device's memory once the copy has arrived: compute waits here if it is faster than the link.
            gone = self._leaving.popleft()
            self._wait_for(gone)
            gone.on_device = None
        kept = OnHost(torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=True), flat.device)
        kept.on_device, kept.place = flat, len(self._sent)
        kept.arrived = self._copy(self._out, kept.host, flat)
        self._leaving.append(kept)
        self._sent.append(weakref.ref(kept))
        return kept

    def fetch(self, kept: OnHost) -> Tensor:
        """The tensor on the device; starts to prefetch the next tensors for backward."""
        is_here = kept in self._leaving  # not freed yet, so it can stay
        if is_here:
            self._leaving.remove(kept)
        elif kept.on_device is None:
            self._bring_back(kept)
        for place in range(kept.place - 1, max(-1, kept.place - 1 - self._num_ahead), -1):
            before = self._sent[place]()
            if before is not None and before.on_device is None:
                self._bring_back(before)
        if not is_here:
            self._wait_for(kept)
        assert kept.on_device is not None
        return kept.on_device

    def _bring_back(self, kept: OnHost) -> None:
        kept.on_device = torch.empty(kept.host.shape, dtype=kept.host.dtype, device=kept.device)
        kept.arrived = self._copy(self._in, kept.on_device, kept.host)

    def _wait_for(self, kept: OnHost) -> None:
        assert kept.arrived is not None
        torch.cuda.current_stream().wait_event(kept.arrived)

    @staticmethod
    def _copy(stream: Any, target: Tensor, source: Tensor) -> Event:
        # Kernels issued so far compute the source, or may still use the target's memory.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            return stream.record_event()


def _require_gpu() -> None:
    if not torch.cuda.is_available():
        raise ValueError(
            "activations are offloaded from a GPU to its host: got no GPU. "
            'On the simulator, launch(program, ranks=1, device="cuda").'
        )
