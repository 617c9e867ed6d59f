"""Streaming DiLoCo: synchronize the model fragment by fragment, in turn, during training.

DiLoCo communicates rarely, but then everything at once, and waits. Here layers are assigned to P fragments that
synchronize one after another, H/P steps apart, so 1/P of the bytes is sent at a time. No rank waits: the mean of an
outer gradient sent at step t is applied at step t + tau. Mixing keeps the steps in between:

    w_r = alpha w_r + (1 - alpha) Nesterov(w, delta)          of the fragment, alpha = 0.5

    H = 4, P = 2, tau = 1     step        1   2   3   4   5   6   7   8
                              fragment 0      >   =           >   =          > leaves    = arrives, is mixed in
                              fragment 1              >   =           >

Layers are assigned in turn (layer l to fragment l mod P), which the paper finds slightly better than in blocks. Outer
gradients in 4 bits do not hurt it: give a `reduce` that compresses.

Cost for n ranks, S bytes of parameters:
    time_s      0 exposed if tau steps take longer than a fragment's all-reduce
    peak bytes  2 S kept; S/P in flight
    sent bytes  2(n-1)/n S / H per rank and step as DiLoCo; at most 2(n-1)/n S/P in one step
Shapes: a fragment's outer gradients are sent flat.
Source: Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch", 2025,
arXiv 2501.18512, algorithm 2.
Simplified: tau and the time of a step are the same on all ranks; 4 bits are a choice of `reduce` (in the paper E3M0).
"""

from collections.abc import Sequence
from typing import Annotated

import torch.distributed as dist
from torch import nn

from lablib.compress.diloco import Fragment, Outer, nesterov
from lablib.compress.local_sgd import trainable
from lablib.parallel.data.naive import broadcast_module
from lablib.parallel.data.overlapped import Reduce, all_reduce_average, reduce_for
from lablib.signature import Count, FractionBelow1, NonEmpty, NonNegativeInt, checked


@checked
def layer_fragments(
    module: nn.Module, layers: Sequence[nn.Module], num_fragments: Annotated[Count, "try num_fragments=2"]
) -> list[list[nn.Parameter]]:
    """Layers assigned in turn; other parameters (embeddings, norm, head) join the first. ValueError: too few layers."""
    if num_fragments > len(layers):
        raise ValueError(f"num_fragments must be at most the number of layers: got {num_fragments} of {len(layers)}.")
    params = trainable("layer_fragments", module)
    fragment_of = {param: index % num_fragments for index, layer in enumerate(layers) for param in layer.parameters()}
    return [[param for param in params if fragment_of.get(param, 0) == index] for index in range(num_fragments)]


class StreamingDiLoCo:
    """Synchronize fragments in turn: each every H steps, applied `overlap` steps after it is sent.

        outer = StreamingDiLoCo(model, layer_fragments(model, list(model.blocks), 2), every=16, overlap=2)
        for inputs, targets in text:
            ...                                  # forward, backward, AdamW's step
            outer.step()
        outer.finish()

    Construction broadcasts parameters and buffers from the group's first rank. One fragment, no overlap and keep=0 is
    DiLoCo.

    Arguments:
        module: the replica.
        fragments: the parameters of each; together all trained parameters, each once.
        every: H, a multiple of the number of fragments.
        overlap: tau, 0 to H - 1 steps.
        keep: alpha, the share of a rank's parameters that it keeps when a fragment arrives.
        outer, group, reduce: as in DiLoCo.
    """

    @checked
    def __init__(
        self,
        module: nn.Module,
        fragments: Annotated[Sequence[Sequence[nn.Parameter]], NonEmpty()],
        every: Annotated[Count, "try every=64"],
        overlap: NonNegativeInt = 1,
        keep: FractionBelow1 = 0.5,
        outer: Outer = nesterov,
        group: dist.ProcessGroup | None = None,
        reduce: Reduce = all_reduce_average,
    ):
        self.every, self.overlap, self.keep, self.num_steps = every, overlap, keep, 0
        if every % len(fragments) or overlap >= every:
            rule = "StreamingDiLoCo needs `every` to be a multiple of the number of fragments, and `overlap` below it"
            raise ValueError(f"{rule}: got {every}, {len(fragments)}, {overlap}; try 16, 2, 1")
        given = [param for fragment in fragments for param in fragment]
        if len(given) != len(set(given)) or set(given) != set(trainable("StreamingDiLoCo", module)):
            rule = "fragments must hold every parameter that is trained, and each once"
            raise ValueError(f"{rule}; use layer_fragments(...).")
        broadcast_module(module, group)
        reduces = [reduce_for(reduce, index, params) for index, params in enumerate(fragments)]
        self.fragments = [Fragment(params, outer, group, own) for params, own in zip(fragments, reduces, strict=True)]
        self._arrivals: list[tuple[int, Fragment]] = []

    def step(self) -> None:
        """Count a step; receive and send the fragments that are due. Communicates; changes parameters."""
        self.num_steps += 1
        apart = self.every // len(self.fragments)
        if self.num_steps % apart == 0:
            fragment = self.fragments[(self.num_steps // apart - 1) % len(self.fragments)]
            fragment.start()
            self._arrivals.append((self.num_steps + self.overlap, fragment))
        while self._arrivals and self._arrivals[0][0] <= self.num_steps:
            self._arrivals.pop(0)[1].finish(self.keep)

    def finish(self) -> None:
        """Receive all fragments in flight, after the last step."""
        while self._arrivals:
            self._arrivals.pop(0)[1].finish(self.keep)
