"""The parallel part of a training step: gradients, clipping and update, in one interface for every setting.

    ReplicaStep   a plain model; DataParallel or DistributedDataParallel; fully_shard (FSDP2)
    ExpertStep    DataParallel with experts on several ranks
    ZeroStep      `Zero`, stages 1 to 3, perhaps with experts on several ranks
    MeshStep      `CombinedStep`: tensor, pipeline, context, data and expert axes, with a ZeRO stage

Each takes a batch with targets of -100 for padding, and takes the gradient of the mean loss over all tokens with a loss
of all micro-batches and ranks, as on one device. With N such tokens in the whole batch,

    loss = (1 / N) sum of the tokens' losses          backward of a micro-batch: scale x W / N x its summed loss

since W replicas average their gradients: once in a step, or, where gradients are sharded (ZeRO stages 2 and 3,
fully_shard), in every micro-batch, so that they are never whole. The phases of a step are calls, in this order:
`backward`, `clip`, `update`.

Cost: in addition to the technique, two all-reduces of 8 bytes for N and the loss.
Shapes: B sequences of this rank, T time. `MeshStep` gets the whole batch on every rank, the others this rank's part.
Source: see the files of the techniques; lablib/batches/accumulation.py (weights of tokens).
Simplified: replicas are in one group, without hybrid sharding.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lablib.batches.accumulation import IGNORED, backward_all
from lablib.batches.clipping import clip_grad_norm_
from lablib.data import Batch
from lablib.parallel.data.overlapped import DataParallel
from lablib.parallel.experts.gradients import expert_parameters
from lablib.parallel.mesh.checkpoint import boxes_of_buffer, counted_names, name_in_model
from lablib.parallel.mesh.optimizer import Sharded
from lablib.parallel.mesh.step import CombinedStep
from lablib.parallel.tensor.regions import shard_range
from lablib.parallel.tensor.state import each_parameter
from lablib.parallel.zero.checkpoint import whole_tensors
from lablib.parallel.zero.module import Zero
from lablib.parallel.zero.shards import FlatUnit
from lablib.precision.autocast import autocast
from lablib.precision.loss_scaling import LossScaler
from lablib.signature import Count, checked
from lablib.torch_compat import disable_current_modes
from lablib.train.boxes import BoxedTensor, LocalBox, boxed_shard
from lablib.train.state import Held, load_named_state, named_state


class Step(Protocol):
    """A model and its optimizer on some ranks, as the trainer calls them."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def backward(self, batch: Batch, scale: float) -> tuple[Tensor, Tensor]:
        """Gradients of `scale` times the mean loss; returns the loss and the tokens with a loss, of all ranks."""
        ...

    def clip(self, max_norm: float, scaler: LossScaler | None) -> tuple[Tensor, bool]:
        """Unscale and clip; returns the norm of the whole gradient before, and whether it overflowed on any rank."""
        ...

    def update(self, scaler: LossScaler | None) -> None:
        """Step the optimizer, unless the gradient overflowed, and move the loss scale."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], has_stepped: bool) -> None:
        """Load a state; `has_stepped`: whether the optimizer had made a step."""
        ...


class ReplicaStep:
    """A model that is whole on every rank, or that averages and shards by itself.

    Arguments:
        model: gives logits. On several ranks it averages gradients over `group` in backward: `DataParallel`,
            DistributedDataParallel, or a module after `fully_shard`.
        optimizer: of its parameters.
        micro_batch: sequences at a time; None: all of this rank's.
        products: dtype of products, by autocast; None: the parameters' dtype.
        group: of the replicas; None: all ranks.

    ValueError: several ranks, and a model that does not average.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        micro_batch: Count | None = None,
        products: torch.dtype | None = None,
        group: dist.ProcessGroup | None = None,
    ):
        self.model, self.optimizer, self.micro_batch = model, optimizer, micro_batch
        self.products, self.group = products, group
        self.world_size = dist.get_world_size(group) if dist.is_initialized() else 1
        shards_gradients = isinstance(model, FSDPModule) or (isinstance(model, Zero) and model.stage > 1)
        if self.world_size > 1 and not (shards_gradients or hasattr(model, "no_sync")):
            rule = f"a model on {self.world_size} ranks must average its gradients"
            raise ValueError(f"{rule}: got {type(model).__name__}; wrap it in DataParallel")
        # `Zero` reduces on one rank, too.
        self._no_sync: Callable[[], Any] = nullcontext if shards_gradients else getattr(model, "no_sync", nullcontext)

    def backward(self, batch: Batch, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        self._zero_grad()
        size = self.micro_batch or len(batch.inputs)
        micro_batches = [Batch(*pair) for pair in zip(batch.inputs.split(size), batch.targets.split(size), strict=True)]
        num_tokens = (batch.targets != IGNORED).sum()
        self._sum(num_tokens)
        weight = scale * self.world_size
        loss = backward_all(self._logits, micro_batches, num_tokens.clamp(min=1), weight, self._no_sync)
        self._sum(loss)
        return loss, num_tokens

    def clip(self, max_norm: float = math.inf, scaler: LossScaler | None = None) -> tuple[Tensor, bool]:
        overflowed = scaler.unscale_(self.optimizer) if scaler else False
        norm = clip_grad_norm_(self.model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm, overflowed

    def update(self, scaler: LossScaler | None = None) -> None:
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Parameters, buffers and optimizer state by the names of the whole model (lablib/train/state.py)."""
        return named_state(self.optimizer, self._held())

    def load_state_dict(self, state: Mapping[str, Any], has_stepped: bool = True) -> None:
        load_named_state(self.optimizer, self._held(), state, has_stepped)

    def _held(self) -> list[Held]:
        """The tensors of the module, in boxes where ranks share the experts; then those that are no parameters."""
        # The model without its wrapper.
        module = self.model if isinstance(self.model, FSDPModule) else getattr(self.model, "module", self.model)
        parts = each_parameter(module)
        held = [Held(param, partial(_expert_part, name, owner, key)) for name, param, owner, key in parts]
        params = dict(module.named_parameters(remove_duplicate=False))
        others = [(name, tensor) for name, tensor in module.state_dict().items() if name not in params]
        return held + [Held(tensor, partial(_named, name)) for name, tensor in others]

    def _zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def _logits(self, inputs: Tensor) -> Tensor:
        device = "cuda" if inputs.is_cuda else "cpu"
        with nullcontext() if self.products is None else autocast(device, self.products):
            return self.model(inputs)

    def _sum(self, value: Tensor) -> None:
        if self.world_size > 1:
            dist.all_reduce(value, group=self.group)


class ExpertStep(ReplicaStep):
    """`DataParallel` with `ExpertReduce`, of a model after `ExpertParallel.parallelize`; all ranks have other tokens.

    `expert_group`: the ranks that share the experts.
    """

    def __init__(
        self,
        model: DataParallel,
        optimizer: torch.optim.Optimizer,
        expert_group: dist.ProcessGroup,
        micro_batch: int | None = None,
        products: torch.dtype | None = None,
    ):
        super().__init__(model, optimizer, micro_batch, products)
        self.expert_group = expert_group

    def clip(self, max_norm: float = math.inf, scaler: LossScaler | None = None) -> tuple[Tensor, bool]:
        overflowed, experts = scaler.unscale_(self.optimizer) if scaler else False, expert_parameters(self.model)
        dense = [param for param in self.model.parameters() if param not in experts]
        norm = clip_grad_norm_(self.model.parameters(), max_norm, sharded_over=self.expert_group, replicated=dense)
        return norm, overflowed


class ZeroStep(ReplicaStep):
    """`Zero`: its optimizer has this rank's shards."""

    @checked
    def __init__(self, zero: Zero, micro_batch: int | None = None, products: torch.dtype | None = None):
        super().__init__(zero, zero.optimizer, micro_batch, products, zero.group)
        self.zero = zero

    def clip(self, max_norm: float = math.inf, scaler: LossScaler | None = None) -> tuple[Tensor, bool]:
        self.zero.sharded.before_step()
        overflowed = scaler.unscale_(self.optimizer) if scaler else False
        return self.zero.clip_grad_norm_(max_norm), overflowed

    def update(self, scaler: LossScaler | None = None) -> None:
        self.zero.step(scaler)

    def load_state_dict(self, state: Mapping[str, Any], has_stepped: bool = True) -> None:
        super().load_state_dict(state, has_stepped)
        self.zero.sharded.after_step()

    def _held(self) -> list[Held]:
        layers = {name: (owner, key) for name, _, owner, key in each_parameter(self.zero.module)}

        def boxed(unit: FlatUnit, shard: Tensor) -> dict[str, Tensor]:
            found = boxed_shard(unit.layout, dist.get_rank(unit.group), shard)
            return {name: _expert_part(name, *layers[name], part)[name] for name, part in found.items()}

        shards = [Held(unit.master, partial(boxed, unit)) for unit in self.zero.units]
        return shards + [Held(tensor, partial(_named, name)) for name, tensor in whole_tensors(self.zero).items()]

    def _zero_grad(self) -> None:
        self.zero.zero_grad()


class MeshStep:
    """`CombinedStep` of padded targets, with the scaler of the trainer."""

    @checked
    def __init__(self, combined: CombinedStep):
        self.combined = combined
        with disable_current_modes():  # not part of the simulation
            whole = combined.how.model(device="meta")
        self._shapes = {name: tuple(param.shape) for name, param in whole.named_parameters()}

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.combined.sharded.optimizer

    def backward(self, batch: Batch, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        loss = self.combined.backward(*batch, scale)
        num_tokens = self.combined.num_tokens
        return loss, (batch.targets != IGNORED).sum() if num_tokens is None else num_tokens

    def clip(self, max_norm: float = math.inf, scaler: LossScaler | None = None) -> tuple[Tensor, bool]:
        return self.combined.sharded.clip(max_norm, scaler)

    def update(self, scaler: LossScaler | None = None) -> None:
        self.combined.sharded.step(scaler)

    def state_dict(self) -> dict[str, Any]:
        return named_state(self.optimizer, self._held())

    def load_state_dict(self, state: Mapping[str, Any], has_stepped: bool = True) -> None:
        load_named_state(self.optimizer, self._held(), state, has_stepped)
        self.combined.sharded.gather()

    def _held(self) -> list[Held]:
        return [Held(buffer.unit.master, partial(self._boxed, buffer)) for buffer in self.combined.sharded.buffers]

    def _boxed(self, buffer: Sharded, shard: Tensor) -> dict[str, Tensor]:
        """A tensor like a buffer's shard, as boxes by name; the first buffer also lists the names of other stages."""
        combined, boxes = self.combined, dict[str, list[LocalBox]]()
        for _, name, box, view in boxes_of_buffer(combined, buffer, {"": shard}):
            boxes.setdefault(name, []).append((box.corner, view))
        names, counted = {name_in_model(combined, one) for one in buffer.owned}, counted_names(combined, buffer)
        if buffer is (buffers := combined.sharded.buffers)[0]:
            names |= self._shapes.keys() - {name_in_model(combined, one) for each in buffers for one in each.owned}
        return {
            name: BoxedTensor(shape, shard.dtype, boxes.get(name, ()), name in counted)
            for name, shape in self._shapes.items()
            if name in names
        }


def _named(name: str, tensor: Tensor) -> dict[str, Tensor]:
    return {name: tensor}


def _expert_part(name: str, owner: Any, key: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor like a parameter of a layer, or its boxes; in boxes of the whole if the layer has a shard of it."""
    if key not in getattr(owner, "cuts", {}):
        return {name: tensor}
    dim, size = owner.cuts[key]
    start, _ = shard_range(size, dist.get_rank(owner.group), dist.get_world_size(owner.group), owner.multiple_of)
    shape = [*tensor.shape[:dim], size, *tensor.shape[dim + 1 :]]
    boxes = tensor.boxes if isinstance(tensor, BoxedTensor) else [([0] * tensor.ndim, tensor)]
    moved = [([*at[:dim], at[dim] + start, *at[dim + 1 :]], view) for at, view in boxes]
    return {name: BoxedTensor(shape, tensor.dtype, moved)}
