"""DiLoCo: H local steps of AdamW, then one step of an outer optimizer along the mean change over ranks.

Local SGD sets parameters to the ranks' mean. DiLoCo takes the change to the mean as a gradient for an optimizer with
momentum, which accelerates along directions that persist over synchronizations:

    inner    every rank from the same w: H steps of AdamW on its own data           -> w_r
    outer    delta = w - mean_r w_r              the outer gradient, one all-reduce
             w = Nesterov(w, delta)              rate 0.7, momentum 0.9; on all ranks the same

An outer SGD with rate 1 and without momentum is local SGD: w - (w - mean w_r).

Cost for n ranks, S bytes of parameters:
    time_s      an all-reduce every H steps, exposed
    peak bytes  2 S kept for outer parameters and momentum, S more at a synchronization
    sent bytes  2(n-1)/n S / H per rank and step, on average: the paper's H of 500 sends 500 times less
Shapes: outer gradients are sent flat, [N].
Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, arXiv 2311.08105,
algorithm 1; rates: section 3.
Simplified: every "worker" is one rank, while in practice a worker is data or tensor parallel. Inner states are never
sent, as in the paper.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.compress.local_sgd import trainable
from lablib.compress.lossy_average import check_gradients
from lablib.parallel.data.naive import broadcast_module
from lablib.parallel.data.overlapped import Handle, Reduce, all_reduce_average, reduce_for
from lablib.signature import Count, check_type, checked

Outer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def nesterov(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The paper's outer optimizer: SGD with Nesterov momentum, rate 0.7, momentum 0.9."""
    return torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)


class DiLoCo:
    """Makes a step of the outer optimizer after every H steps of the inner one.

        outer = DiLoCo(model, every=64)
        for inputs, targets in text:
            ...                                  # forward, backward, AdamW's step: nothing is sent
            outer.step()

    Construction broadcasts parameters and buffers from the group's first rank.

    Arguments:
        module, every, group: as in `LocalSGD`.
        outer: makes the outer optimizer for given parameters.
        reduce: averages outer gradients, optionally with compression.
    """

    @checked
    def __init__(
        self,
        module: nn.Module,
        every: Annotated[Count, "try every=64"],
        outer: Outer = nesterov,
        group: dist.ProcessGroup | None = None,
        reduce: Reduce = all_reduce_average,
    ):
        self.every, self.num_steps = every, 0
        params = trainable("DiLoCo", module)
        broadcast_module(module, group)
        self.fragment = Fragment(params, outer, group, reduce_for(reduce, 0, params))

    def step(self) -> bool:
        """Count a step; after every H-th, synchronize. Returns whether it did. Communicates; changes parameters."""
        self.num_steps += 1
        if self.num_steps % self.every:
            return False
        self.fragment.start()
        self.fragment.finish()
        return True


class Fragment:
    """Some parameters, their last synchronized values, and the outer optimizer of these."""

    def __init__(self, params: Sequence[nn.Parameter], outer: Outer, group: dist.ProcessGroup | None, reduce: Reduce):
        check_type("outer", outer, Outer)
        check_type("reduce", reduce, Reduce)
        self.params, self.group, self.reduce = list(params), group, reduce
        self.agreed = [nn.Parameter(param.detach().clone()) for param in params]
        self.optimizer = outer(self.agreed)
        self._under_way: tuple[Tensor, Handle] | None = None

    @torch.no_grad()
    def start(self) -> None:
        """Start to average the outer gradient: the synchronized values less this rank's."""
        flat = torch.cat([(w - param).flatten() for w, param in zip(self.agreed, self.params, strict=True)])
        check_gradients("DiLoCo", flat, "parameters")
        self._under_way = flat, self.reduce(flat, self.group)

    @torch.no_grad()
    def finish(self, keep: float = 0.0) -> None:
        """Wait for the mean, make the outer step, and load it; `keep` is the share of this rank's parameters."""
        assert self._under_way is not None
        (flat, handle), self._under_way = self._under_way, None
        handle.wait()
        for w, delta in zip(self.agreed, flat.split([w.numel() for w in self.agreed]), strict=True):
            w.grad = delta.view_as(w).to(w.dtype)
        self.optimizer.step()
        for w, param in zip(self.agreed, self.params, strict=True):
            w.grad = None
            param.copy_(w if keep == 0 else torch.lerp(w, param, keep))
