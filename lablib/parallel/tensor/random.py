"""Random numbers on tensor-parallel ranks: which must agree and which must differ.

Ranks with the same computation must draw the same numbers; ranks with different parts must draw different ones.

                                                        f and g        sequence parallel
    dropout outside of regions (residual, embedding)    the same       different: for different tokens
    dropout inside (scores, hidden columns)             different      different
    initial values of a shard                           different: parts of the draw of one device
    initial values of whole parameters (norms, biases)  the same       the same
    order of the data                                   the same       the same

If numbers differ that should agree, ranks that should hold the same x diverge, without an error. If numbers agree that
should differ, every rank draws the same shard: the n shards of a hidden layer are n copies of F / n columns. Equal
columns get equal gradients, so they *stay* equal during training: the model has only 1/n of its hidden units, n times,
and its loss falls, but less. For this reason SmolLM3's run of 3B parameters was restarted after a trillion tokens: each
tensor rank had the same seed, found when it was no better than a model of 1.7B at the same stage; the fix was seed +
rank.

Naive: `naive_sharded_normal`, each rank draws its shard from the given seed. Real: `sharded_normal` draws the whole
matrix on every rank, from one seed, and keeps a shard: the same model as on one device, for any number of ranks.

Cost for n ranks, a matrix of P numbers: naive P / n draws and memory; real P draws, P temporary numbers.
Shapes: any, cut along one dimension.
Source: Hugging Face, "The Smol Training Playbook", 2025, chapter "The training marathon" (SmolLM3's restart); the two
generators: NVIDIA/Megatron-LM, megatron/core/tensor_parallel/random.py (model_parallel_cuda_manual_seed, with seed +
2718 + rank on tensor ranks); the whole matrix on the CPU: layers.py there, _initialize_affine_weight_cpu.
Simplified: one group; with data parallelism each replica has another `seed`, or its dropout repeats. `wrong_draws`
finds shards that are equal on all ranks, not on some.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.tensor.regions import Group, shard_of, shard_range
from lablib.parallel.tensor.state import each_parameter
from lablib.signature import NonNegativeInt, checked

_OWN_SEEDS = 2**20  # far from the seeds that a program derives from its own


class TensorGenerators:
    """The two generators of a rank.

    Arguments:
        seed: the same on all ranks of the group.
        group: None for all ranks.
        device: of the generators; None: torch's default device.
    """

    @checked
    def __init__(self, seed: NonNegativeInt, group: Group = None, device: torch.device | str | None = None):
        device = torch.get_default_device() if device is None else torch.device(device)
        self.shared = torch.Generator(device).manual_seed(seed)  # draws the same on all ranks
        # draws differently on each
        self.own = torch.Generator(device).manual_seed(seed + _OWN_SEEDS + dist.get_rank(group))


def dropout(x: Tensor, p: float, generator: torch.Generator, training: bool = True) -> Tensor:
    """`x` with a share `p` of its numbers set to 0 and the others divided by 1 - p.

    For backward it keeps one byte for each number. Arguments:
        p: 0 up to, but not including, 1.
        generator: `own` or `shared`, by the table above.
        training: False: returns `x`.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p must be from 0 to below 1: got {p}; try 0.1.")
    if not training or p == 0:
        return x
    stays = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return x * stays / (1 - p)


def sharded_normal(
    shape: tuple[int, ...], dim: int, std: float, seed: int, group: Group = None, multiple_of: int = 1
) -> Tensor:
    """This rank's shard of a normal matrix: together the shards are `whole_normal(shape, std, seed)`.

    `shape`: of the whole; `dim`, `multiple_of`: the cut, as in `shard_of`; `seed`: the same on all ranks.
    """
    return shard_of(whole_normal(shape, std, seed), dim, group, multiple_of).clone()


def naive_sharded_normal(shape: tuple[int, ...], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    """This rank's shard, drawn separately: with the same seed on all ranks, n equal shards. As `sharded_normal`."""
    start, end = shard_range(shape[dim], dist.get_rank(group), dist.get_world_size(group))
    own = list(shape)
    own[dim] = end - start
    return whole_normal(tuple(own), std, seed)


def whole_normal(shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    """The draw of one device, on the CPU, in float64: the same on every machine."""
    drawn = torch.empty(shape, dtype=torch.float64, device="cpu")
    return drawn.normal_(0.0, std, generator=torch.Generator("cpu").manual_seed(seed))


@torch.no_grad()
def wrong_draws(module: nn.Module, group: Group = None) -> dict[str, str]:
    """Parameters that wrongly agree or wrongly differ over ranks: name -> "equal shards" or "differs".

    Communicates: two all-reduces of each parameter's size. Shards of one value, such as biases of 0, are left out.
    """
    found = {}
    if dist.get_world_size(group) == 1:
        return found
    for name, param, owner, key in each_parameter(module):
        cut = getattr(owner, "cuts", {}).get(key)
        part = param if cut is None else _comparable(param, cut[0], cut[1], owner)
        lowest, highest = part.clone(memory_format=torch.contiguous_format), part.clone().contiguous()
        dist.all_reduce(lowest, dist.ReduceOp.MIN, group=group)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
        is_equal = torch.equal(lowest, highest)
        if cut is None and not is_equal:
            found[name] = "differs"
        elif cut is not None and is_equal and part.numel() > 1 and bool((part != part.flatten()[0]).any()):
            found[name] = "equal shards"
    return found


def _comparable(shard: Tensor, dim: int, size: int, owner: Any) -> Tensor:
    """The part of a shard that every rank has: the last rank has the least."""
    world_size = dist.get_world_size(owner.group)
    start, end = shard_range(size, world_size - 1, world_size, owner.multiple_of)
    return shard.narrow(dim, 0, end - start)
