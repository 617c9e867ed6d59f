"""Averaging of gradients with expert parallelism: the ranks and the divisor for each parameter.

Ranks along "data" and "expert" have different tokens, and the loss is the mean over them. A rank's experts process the
tokens of all ranks of its expert group, so their gradient is already a sum over these:

    Mesh(data=2, expert=2)         sum over                        divided by
    router, attention, norms       all 4 ranks                     4
    experts                        2 ranks along "data"            4, not 2: the summed gradients came from 4 losses

Two mistakes raise no error and train a different model: averaging experts over all ranks (adds gradients of different
experts), and dividing by the number of ranks in the sum (experts learn n times as fast as the rest).

    naive   after backward, an all-reduce for each parameter
    real    `DataParallel(model, data_group, reduce=ExpertReduce(model, everyone))`: in buckets, during backward
    ZeRO    `Zero(model, optimizer_fn, stage, everyone, experts=ExpertGroup(expert_parameters(model), data_group))`

Cost for n_d data ranks and n_e expert ranks, P dense parameters and Q of all experts, of w bytes:
    sent bytes  2 (n-1)/n P w with n = n_d n_e, and 2 (n_d - 1)/n_d (Q / n_e) w: 0 for experts without replicas
Shapes: a bucket is flat.
Source: Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv 2201.05596, section 5.2 (groups); Singh et al., 2023, arXiv
2303.06318, section 3.
Simplified: a bucket is cut between dense and expert parameters; each piece is a separate collective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.naive import parameters_with_gradients
from lablib.parallel.data.overlapped import Handle, Reduce, all_reduce_sum
from lablib.parallel.experts.layer import mixtures
from lablib.parallel.tensor.regions import Group
from lablib.signature import check_type


class ExpertGroup(NamedTuple):
    """The parameters of this rank's experts, and the ranks with the same ones."""

    params: set[Tensor]
    group: dist.ProcessGroup


def expert_parameters(model: nn.Module) -> set[Tensor]:
    """The parameters of routed experts, which only ranks with the same experts share; not routers or shared experts."""
    return {param for mixture in mixtures(model) for param in mixture.experts.parameters()}


def average_expert_gradients(model: nn.Module, data_group: Group, everyone: Group = None) -> None:
    """Naive: average all gradients after backward, so that they are of the mean over all ranks' losses.

    Communicates: one all-reduce for each parameter. Changes `param.grad` in place. ValueError: one has no gradient.

    Arguments:
        data_group: ranks with the same experts.
        everyone: ranks with different tokens, along data and expert together; None: all ranks.
    """
    of_experts = expert_parameters(model)
    for param in parameters_with_gradients(model):
        assert param.grad is not None
        param.grad.div_(dist.get_world_size(everyone))
        dist.all_reduce(param.grad, group=data_group if param in of_experts else everyone)


class ExpertReduce:
    """Real: for `DataParallel(model, data_group, reduce=ExpertReduce(model, everyone))`.

    The group of DataParallel is the ranks with the same experts, over which it broadcasts the model. Dense parameters
    must also be equal along "expert": `ExpertParallel.parallelize` broadcasts them.

    Arguments:
        model: as `ExpertParallel.parallelize` returned it.
        everyone: ranks with different tokens, along data and expert together; None: all ranks.

    Raises ValueError: a model without mixtures.
    """

    def __init__(self, model: nn.Module, everyone: Group = None):
        check_type("ExpertReduce: model", model, nn.Module)
        check_type("ExpertReduce: everyone", everyone, dist.ProcessGroup | None)
        self.of_experts, self.everyone = expert_parameters(model), everyone
        if not self.of_experts:
            raise ValueError("ExpertReduce is for a model with mixtures: got none; use DataParallel without it.")

    def for_bucket(self, index: int, params: Sequence[Tensor]) -> Reduce:
        """The `Reduce` of one bucket: its parameters in runs of expert and dense parameters."""
        runs = [
            (is_of_expert, sum(param.numel() for param in run))
            for is_of_expert, run in groupby(params, self.of_experts.__contains__)
        ]

        def reduce(buffer: Tensor, data_group: Group = None) -> Handle:
            buffer.div_(dist.get_world_size(self.everyone))
            pieces = buffer.split([size for _, size in runs])
            return _Several(
                [
                    all_reduce_sum(piece, data_group if is_of_expert else self.everyone)
                    for piece, (is_of_expert, _) in zip(pieces, runs, strict=True)
                ]
            )

        return reduce

    def __call__(self, buffer: Tensor, group: Group = None) -> Handle:
        raise AssertionError("a call needs the parameters of a bucket: DataParallel asks for_bucket")


@dataclass(frozen=True, slots=True)
class _Several:
    handles: Sequence[Handle]

    def wait(self) -> None:
        for handle in self.handles:
            handle.wait()
