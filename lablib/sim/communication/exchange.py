"""The effect of each collective on its tensors, run once the last rank has joined.

Every function takes the ranks' arguments in group order: `sent[i]` holds the input tensors of rank i, `received[i]` the
buffers to fill. Buffers are the rank's own, or memory of the simulator (delivery.py) that ranks with the same result
may share. A phantom has no buffers. Real tensors move; time is not modelled here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lablib.sim.communication.reduce import Op, reduce_to_all
from lablib.torch_compat import foreach_copy_

Tensors = Sequence[Tensor]
PerRank = Sequence[Tensors]


def all_reduce(sent: PerRank, received: PerRank, op: Op) -> None:
    """received[i][k] = reduction over r of sent[r][k]."""
    for k in range(len(sent[0])):
        reduce_to_all([s[k] for s in sent], [r[k] for r in received], op)


def reduce(sent: PerRank, received: PerRank, op: Op, root: int) -> None:
    """received[root][k] = reduction over r of sent[r][k]; the other ranks receive nothing."""
    for k in range(len(sent[0])):
        reduce_to_all([s[k] for s in sent], [received[root][k]], op)


def broadcast(sent: PerRank, received: PerRank, root: int) -> None:
    """received[i][k] = sent[root][k]; the root receives nothing."""
    for outputs in received:
        if outputs:
            _copy(outputs, sent[root])


def all_gather(sent: PerRank, received: PerRank) -> None:
    """received[i][r] = sent[r][0]."""
    inputs = [s[0] for s in sent]
    for outputs in received:
        _copy(outputs, inputs)


def all_gather_single(sent: PerRank, received: PerRank) -> None:
    """received[i][k] = concatenation over r of sent[r][k]."""
    for k in range(len(sent[0])):
        everything = torch.cat([s[k].reshape(-1) for s in sent])
        for outputs in received:
            if outputs:
                outputs[k].copy_(everything.view(outputs[k].shape))


def gather(sent: PerRank, received: PerRank, root: int) -> None:
    """received[root][r] = sent[r][0]."""
    _copy(received[root], [s[0] for s in sent])


def scatter(sent: PerRank, received: PerRank, root: int) -> None:
    """received[i][0] = sent[root][i]."""
    there = [place for place, outputs in enumerate(received) if outputs]
    _copy([received[place][0] for place in there], [sent[root][place] for place in there])


def reduce_scatter(sent: PerRank, received: PerRank, op: Op) -> None:
    """received[i][0] = reduction over r of sent[r][i]."""
    for i, outputs in enumerate(received):
        reduce_to_all([s[i] for s in sent], [outputs[0]], op)


def reduce_scatter_single(sent: PerRank, received: PerRank, op: Op) -> None:
    """received[i][k] = reduction over r of the i-th of n equal parts of sent[r][k]."""
    n = len(sent)
    for k in range(len(sent[0])):
        parts = [s[k].reshape(n, -1) for s in sent]
        for i, outputs in enumerate(received):
            total = torch.empty_like(parts[0][i])
            reduce_to_all([p[i] for p in parts], [total], op)
            outputs[k].copy_(total.view(outputs[k].shape))


def all_to_all(sent: PerRank, received: PerRank) -> None:
    """received[i][r] = sent[r][i]."""
    for i, outputs in enumerate(received):
        _copy(outputs, [s[i] for s in sent])


def nothing(sent: PerRank, received: PerRank) -> None:
    """A barrier moves no data."""


def _copy(outputs: Tensors, inputs: Tensors) -> None:
    pairs = [(o, x) for o, x in zip(outputs, inputs, strict=True) if o.data_ptr() != x.data_ptr() or o.numel() == 0]
    if len(pairs) > 1:
        fitted = [x.reshape(o.shape) if x.shape != o.shape else x for o, x in pairs]
        foreach_copy_([o for o, _ in pairs], fitted)
    elif pairs:
        pairs[0][0].copy_(pairs[0][1].reshape(pairs[0][0].shape))
