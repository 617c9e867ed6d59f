"""A training step on a mesh: data, expert, context, tensor and pipeline parallelism, ZeRO, mixed precision, clipping.

    how = Combination(config, Mesh(data=2, pipeline=2, tensor=2), batch_size=8, seq_len=16, num_micro_batches=2)

    def program():
        step = CombinedStep(how, partial(torch.optim.AdamW, lr=1e-3), max_norm=1.0)
        for tokens, targets in batches:                  # the whole batch, the same on all ranks
            loss, norm, was_skipped = step(tokens, targets)          # as on one device, on all ranks

    launch(program, ranks=how.mesh.num_ranks)

Each technique has its own file, and is used unchanged. Together they define:

    the part of a rank     `mesh/part.py`: layers by pipeline, tokens by context, rows by tensor, experts by expert
    the loss               the mean over micro-batches, data, expert and context ranks, each token with the same weight
    the gradient           tensor ranks: complete; pipeline ranks: of their layers; data, expert and context: a mean
    the norm               over all ranks, each number once: `mesh/optimizer.py`
    an overflow            on one rank skips the step on all

Phases of a step (the code has the same headings):
    1. share     this rank's sequences and tokens, as micro-batches
    2. run       the pipeline's plan; gradients of a piece are reduced as soon as it is done
    3. clip      unscale, norm over all axes, scale down
    4. step      update the shards, then gather parameters

Cost: the sum of its techniques: activations between stages, B T D w bytes per micro-batch and boundary, divided by
context and, with sequence parallelism, tensor ranks; tensor parallelism's all-reduces in every layer; keys and values
around the context ring; once per step 2 (n-1)/n of the part's gradients, n = data * expert * context, of experts
data * context; tokens to experts and back in every layer (`experts/bytes.py`); two numbers for loss and norm.
Shapes: B batch, T time, D width, V vocabulary; lower-case letters are a rank's part.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
arXiv 2104.04473 (data, pipeline and tensor); Llama Team, 2024, arXiv 2407.21783, section 3.3.2 (context); Korthikanti
et al., 2022, arXiv 2205.05198 (sequence); Rajbhandari et al., 2020, arXiv 1910.02054 (ZeRO-1) and 2022, arXiv
2201.05596, section 5.2 (experts).
Simplified: every rank gets the whole batch; no dropout; no balancing loss of experts.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.batches.accumulation import IGNORED, summed_loss
from lablib.models.gpt import GPT, next_token_loss
from lablib.models.llama import Llama
from lablib.parallel.context.model import ContextParallel
from lablib.parallel.experts.gradients import ExpertGroup, expert_parameters
from lablib.parallel.experts.layer import mixtures
from lablib.parallel.mesh.check import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, Combination
from lablib.parallel.mesh.optimizer import CombinedOptimizer, OptimizerFn, Owned
from lablib.parallel.mesh.part import ModelPart, make_model, pieces_of, tied_parameter
from lablib.parallel.mesh.zero import ZeroOptimizer
from lablib.parallel.tensor.regions import Group
from lablib.parallel.tensor.state import whole
from lablib.parallel.tensor.vocabulary import vocabulary_parallel_loss, vocabulary_parallel_summed_loss
from lablib.parallel.zero.module import MaxNorm
from lablib.phases import phase
from lablib.pipeline.executor import Pipeline
from lablib.pipeline.executor.boundaries import Shape
from lablib.precision.loss_scaling import LossScaler
from lablib.signature import check_type, check_types
from lablib.torch_compat import disable_current_modes


class Stepped(NamedTuple):
    """The mean loss of the batch in nats, the gradient's norm before clipping, and whether the step was skipped."""

    loss: Tensor
    norm: Tensor
    was_skipped: bool


class CombinedStep:
    """This rank's part of a model in training on a mesh.

    Arguments:
        how: the combination.
        optimizer_fn: makes the optimizer of this rank's shards; it must work element by element.
        max_norm: limit for the norm of the whole model's gradient; infinity: it is only measured.
        scaler: of the loss; None: for torch.float16 one with the default rule.
        model: the whole model, the same on all ranks, not changed; None: drawn from `seed`.
        seed, dtype: of a drawn model.
        padded: whether targets may be -100, which have no loss; the loss is then the mean over the others.

    Attributes:
        part: this rank's modules, by their names in the whole model.
        pipeline: of `part`.
        sharded: the optimizer and its buffers.

    Communicates, to make groups; all ranks of the mesh call it.

    Raises ValueError: another number of ranks than the mesh, another model, or one with frozen parameters.
    """

    def __init__(
        self,
        how: Combination,
        optimizer_fn: OptimizerFn,
        *,
        max_norm: float = math.inf,
        scaler: LossScaler | None = None,
        model: GPT | Llama | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        padded: bool = False,
    ):
        check_types(
            "CombinedStep",
            [
                *[("how", how, Combination), ("optimizer_fn", optimizer_fn, Callable), ("max_norm", max_norm, MaxNorm)],
                *[("scaler", scaler, LossScaler | None), ("model", model, GPT | Llama | None), ("seed", seed, int)],
                *[("dtype", dtype, torch.dtype), ("padded", padded, bool)],
            ],
        )
        how.mesh.require(dist.get_world_size())
        _require_model(model, how)
        if scaler is None and how.autocast == torch.float16:
            scaler = LossScaler()
        self.how, self.max_norm, self.scaler, self.padded = how, max_norm, scaler, padded
        self.num_tokens: Tensor | None = None  # with a loss, in the whole batch; None: all
        mesh = how.full_mesh
        self.at = mesh.coordinates(dist.get_rank())
        self._groups: dict[str, Group] = {axis: mesh.group(axis) for axis in (TENSOR, PIPELINE, CONTEXT)}
        replicas = mesh.group(DATA, EXPERT, CONTEXT)
        spreads = how.size(EXPERT) > 1  # one expert rank: every replica has all experts, or their tensor shards
        alike = mesh.group(DATA, CONTEXT) if spreads else replicas  # ranks with the same experts
        self._groups[EXPERT] = mesh.group(EXPERT) if how.num_experts else None
        self.context = None
        if how.size(CONTEXT) > 1:
            self.context = ContextParallel(self._groups[CONTEXT], how.order, how.attention)
        model = make_model(how, seed, dtype) if model is None else model
        own = [number for number, stage in enumerate(how.plan.plan.rank_of) if stage == self.at[PIPELINE]]
        units = [unit for number in own for unit in how.units[number]]
        self.part = ModelPart(model, how, units, self.context, self._groups[TENSOR], self._groups[EXPERT])
        self._dtype = next(self.part.parameters()).dtype
        pieces = pieces_of(self.part, how, own)
        experts = ExpertGroup(expert_parameters(self.part), alike)
        shared = self._counts, optimizer_fn, experts
        zero = ZeroOptimizer(how.zero_stage, self.part, pieces[0], replicas, *shared) if how.zero_stage > 1 else None
        self.pipeline = Pipeline(
            how.plan,
            pieces if zero is None else [zero.module],
            self._loss,
            group=self._groups[PIPELINE],
            shapes_of=self._shapes,
        )
        tied = tied_parameter(self.part) if how.config.tied_head else None
        self.sharded = zero or CombinedOptimizer(self.part, self.pipeline.pieces, replicas, tied, *shared)

    def __call__(self, tokens_BT: Tensor, targets_BT: Tensor) -> Stepped:
        """One step on the whole batch: gradients of its mean loss, and the update. Communicates. As `backward`."""
        loss = self.backward(tokens_BT, targets_BT)
        return Stepped(loss, *self.update())

    def backward(self, tokens_BT: Tensor, targets_BT: Tensor, scale: float | None = None) -> Tensor:
        """The batch's mean loss, on all ranks, and gradients, in shards (`full_gradients`). Communicates; no update.

        `scale`: of the gradients; None: the scaler's. ValueError: a batch of another shape than in the combination, or
        with numbers outside the vocabulary.
        """
        # ---- 1. share ----
        inputs, targets = self._micro_batches(tokens_BT, targets_BT)
        self.num_tokens = (targets_BT != IGNORED).sum() if self.padded else None
        # ---- 2. run ----
        num = len(inputs)
        if scale is None:
            scale = 1.0 if self.scaler is None else self.scaler.loss_scale
        self.sharded.begin()
        losses = self.pipeline.step(inputs, targets, [scale / num] * num, on_gradients=self.sharded.reduce)
        self.sharded.finish()
        return self._mean(losses)

    def update(self) -> tuple[Tensor, bool]:
        """Clip, and step the optimizer; returns the norm before, and whether the step was skipped. Communicates."""
        with phase("optimizer"):
            # ---- 3. clip ----
            norm, was_skipped = self.sharded.clip(self.max_norm, self.scaler)
            # ---- 4. step ----
            self.sharded.step(self.scaler)
        return norm, was_skipped

    # ---- the whole model, on every rank ----

    def full_gradients(self) -> dict[str, Tensor]:
        """The whole gradients, by the model's names. Communicates.

        Between `backward` and `update` they include the loss scale, if any; after `update` they are clipped.
        """
        return self._full(dict(self.sharded.gradients()))

    def full_parameters(self) -> dict[str, Tensor]:
        """The whole parameters, by the model's names. Communicates."""
        return self._full(dict(self.sharded.parameters()))

    def full_optimizer_state(self, key: str) -> dict[str, Tensor]:
        """The optimizer's state under a key ("exp_avg") for each parameter, by the model's names. Communicates."""
        state = self.sharded.optimizer.state
        return self._full(dict(self.sharded.gathered(lambda buffer: state[buffer.unit.master][key])))

    def _full(self, here: dict[Owned, Tensor]) -> dict[str, Tensor]:
        own = {one.name: whole(tensor, one.owner, one.key) for one, tensor in here.items()}
        parts: list[dict[str, Tensor]] = [{} for _ in range(self.how.size(PIPELINE))]
        dist.all_gather_object(parts, own, group=self._groups[PIPELINE])
        found = {name: tensor for each in reversed(parts) for name, tensor in each.items()}
        if self.how.config.tied_head:
            found.pop("head.weight", None)
        return found

    # ---- helpers of a step ----

    def _micro_batches(self, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        for name, given in (("tokens", tokens_BT), ("targets", targets_BT)):
            _require_batch(name, given, self.how, self.padded and name == "targets")
        number = self.at[DATA] * self.how.size(EXPERT) + self.at[EXPERT]
        own = [x.chunk(self.how.replicas)[number] for x in (tokens_BT, targets_BT)]
        if self.context is not None:
            own = list(self.context.shard(*own))
        tokens, targets = (list(x.split(self.how.micro_batch_size)) for x in own)
        return tokens, targets

    def _loss(self, logits_BtV: Tensor, targets_Bt: Tensor) -> Tensor:
        size, group = self.how.config.vocab_size, self._groups[TENSOR]
        is_cut = self.how.size(TENSOR) > 1
        if self.num_tokens is None and not is_cut:
            return next_token_loss(logits_BtV, targets_Bt)
        if self.num_tokens is None:
            return vocabulary_parallel_loss(logits_BtV, targets_Bt, size, group)
        if is_cut:
            summed = vocabulary_parallel_summed_loss(logits_BtV, targets_Bt, size, group)
        else:
            summed = summed_loss(logits_BtV, targets_Bt)
        # The mean over the batch, times the micro-batches and ranks over which losses and gradients are averaged.
        parts = self.how.num_micro_batches * self.how.replicas * self.how.size(CONTEXT)
        return summed * parts / self.num_tokens.clamp(min=1)

    def _shapes(self, tokens_bt: Tensor) -> list[Shape]:
        num_tokens = tokens_bt.shape[1] // (self.how.size(TENSOR) if self.how.sequence_parallel else 1)
        shape = (tokens_bt.shape[0], num_tokens, self.how.config.d_model)
        return [(shape, self._dtype)] * (len(self.how.units) - 1)

    def _mean(self, losses: list[Tensor]) -> Tensor:
        """The mean over all micro-batches of all ranks that have a loss, on all ranks. Communicates: one number."""
        copies = self.how.mesh.num_ranks // self.how.size(PIPELINE)
        dtype = torch.promote_types(self._dtype, torch.float32)
        mean = torch.stack(losses).mean().to(dtype) / copies if losses else torch.zeros((), dtype=dtype)
        dist.all_reduce(mean)
        return mean

    def _counts(self, owned: Owned) -> bool:
        """Whether this rank counts a parameter in the norm, and saves it: one rank per copy."""
        is_cut = owned.key in getattr(owned.owner, "cuts", {})
        is_second = self.how.config.tied_head and owned.name == "head.weight"  # the embedding is on another stage
        return (is_cut or self.at[TENSOR] == 0) and not is_second


def _require_batch(name: str, given: Tensor, how: Combination, padded: bool) -> None:
    """Raise ValueError for another batch than the combination's. Reads values only on the host."""
    check_type(f"CombinedStep: {name}", given, Tensor)
    wanted, size = [how.batch_size, how.seq_len], how.config.vocab_size
    if list(given.shape) != wanted:
        raise ValueError(
            f"a batch must be batch_size x seq_len = {wanted} of the combination, whole on every rank: "
            f"got {name} {list(given.shape)}."
        )
    if given.dtype != torch.int64:
        raise ValueError(f"{name} must be words' numbers in torch.int64: got {given.dtype}; try {name}.long().")
    with disable_current_modes():  # not part of the timed step
        values = given.masked_fill(given == IGNORED, 0) if padded else given
        odd = [] if given.device.type != "cpu" else [x for x in map(int, values.aminmax()) if not 0 <= x < size]
    if odd:
        raise ValueError(
            f"{name} must be 0 to {size - 1}, words of the vocabulary: got {odd[0]}; an ignored target "
            "needs CombinedStep(..., padded=True)."
        )


def _require_model(model: GPT | Llama | None, how: Combination) -> None:
    if model is None:
        return
    if model.config != how.config:
        raise ValueError(f"the model must be as in the combination, {how.config}: got {model.config}.")
    found, wanted = [(one.config.num_experts, one.config.k) for one in mixtures(model)], how.num_experts
    if found != [(wanted, how.num_active)] * (how.config.num_layers if wanted else 0):
        rule = f"a mixture of {wanted} experts in each layer, {how.num_active} per token" if wanted else "no mixtures"
        raise ValueError(
            f"the model must have {rule}, as in the combination: got {sorted(set(found)) or 'none'}; give the "
            "combination its num_experts and num_active."
        )
    frozen = [name for name, param in model.named_parameters() if not param.requires_grad]
    if frozen:
        raise ValueError(
            f"every parameter must train, as they share flat buffers: {frozen[0]} requires no gradient; call "
            "model.requires_grad_(), or take Zero, which has frozen parameters."
        )
