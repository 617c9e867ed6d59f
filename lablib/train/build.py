"""Make a trainer from a configuration, on the ranks that run: model, parallelism, optimizer, scaler, schedule, loader.

    def program():
        build(config.on(dist.get_world_size())).train(config.num_steps)

    tensor, pipeline or context > 1,     `CombinedStep`, with the optimizer state sharded (stage 1; without pipeline
                                         ranks also 2 and 3)
    or expert > 1 with zero_stage 1
    expert > 1 with zero_stage 0         `ExpertParallel`, and `DataParallel` with `ExpertReduce`; 2, 3: `Zero`
    zero_stage 0                         one device, `DataParallel`, or torch's DistributedDataParallel
    zero_stage 1 to 3                    `Zero`; with library "torch" `fully_shard` (2: parameters stay gathered until
                                         backward has used them)

Each part can be replaced by an argument of the same kind.

Cost: every rank draws the whole model before it is cut.
Source: the files of the parts.
Simplified: the configuration refuses stage 1 of torch's library, which has none.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from lablib.batches.schedules import cosine, deepspeed_warmup, linear, warmup_stable_decay
from lablib.data import ResumableBatches, load_corpus, train_val_split
from lablib.memory.checkpointing import checkpoint_each
from lablib.models.gpt import GPT
from lablib.models.llama import Llama, model_of
from lablib.optim import LAMB, Lion
from lablib.parallel.data.overlapped import DataParallel
from lablib.parallel.experts.gradients import ExpertGroup, ExpertReduce, expert_parameters
from lablib.parallel.experts.layer import with_experts
from lablib.parallel.experts.parallelize import ExpertParallel
from lablib.parallel.mesh.check import Combination
from lablib.parallel.mesh.mesh import Mesh
from lablib.parallel.mesh.optimizer import OptimizerFn
from lablib.parallel.mesh.step import CombinedStep
from lablib.parallel.zero.module import Zero
from lablib.parallel.zero.optimizers import require_steps_on_shards
from lablib.precision.loss_scaling import LossScaler, ScaleRule, static_scale
from lablib.signature import Range, check_type, checked
from lablib.train.config import OptimizerConfig, PrecisionConfig, TrainConfig
from lablib.train.guards import Guard, make_guard
from lablib.train.steps import ExpertStep, MeshStep, ReplicaStep, Step, ZeroStep
from lablib.train.trainer import Loader, Metrics, Schedule, Trainer


@checked
def build(
    config: TrainConfig,
    *,
    model: nn.Module | None = None,
    optimizer_fn: OptimizerFn | None = None,
    scaler: LossScaler | None = None,
    schedule: Schedule | None = None,
    loader: Loader | None = None,
    guard: Guard | None = None,
    on_step: Iterable[Callable[[Metrics], Any]] = (),
) -> Trainer:
    """A trainer on all running ranks; without a process group, on one device. Communicates; all ranks call it.

    Arguments:
        config: parts that are not given are made from it.
        model: gives logits; whole, and the same on all ranks. For tensor, pipeline or context ranks a GPT or Llama with
            `config.model.sizes`; to shard, recompute or compile layers, a model with `blocks`. It is changed in place.
        optimizer_fn: makes the optimizer of parameters, or of shards of them.
        loader: this rank's batches; with tensor, pipeline or context ranks, the whole batch on each rank.
        scaler, schedule, guard, on_step: as of `Trainer`.

    ValueError: sizes that do not fit the ranks, a ZeRO stage without a process group, parts that do not fit each other.
    """
    config = config.on(dist.get_world_size() if dist.is_initialized() else 1)
    if (stage := config.parallel.zero_stage) and not dist.is_initialized():
        rule = "parallel.zero_stage must be 0 without a process group"
        raise ValueError(f"{rule}: got {stage}; try parallel.zero_stage=0, or launch(..., ranks=1)")
    scaler = scaler or make_scaler(config.precision)
    model = make_model(config) if model is None else model
    step = make_step(config, model, optimizer_fn or make_optimizer(config.optimizer), scaler)
    return Trainer(
        step,
        make_loader(config) if loader is None else loader,
        schedule=schedule or make_schedule(config),
        scaler=scaler,
        max_norm=config.optimizer.max_norm,
        guard=guard or make_guard(config.health, step),
        on_step=on_step,
    )


@checked
def fitted(config: TrainConfig, ranks: int) -> TrainConfig:
    """`config.on(ranks)`, checked for the mesh. ValueError: sizes that do not fit the axes, as of `Combination`."""
    config = config.on(ranks)
    if config.parallel.is_mesh:
        make_combination(config)
    return config


@checked
def make_model(config: TrainConfig) -> GPT | Llama:
    """The whole model, with experts if it has any."""
    sizes = config.model
    model = model_of(sizes.sizes, seed=sizes.seed, dtype=getattr(torch, config.precision.parameters))
    if sizes.num_experts:
        is_meta = torch.empty(0).is_meta  # on shapes, without values, tokens are spread evenly
        return with_experts(model, sizes.num_experts, sizes.num_active, seed=sizes.seed, balanced=is_meta)
    return model


@checked
def make_step(config: TrainConfig, model: nn.Module, optimizer_fn: OptimizerFn, scaler: LossScaler | None) -> Step:
    """Model and optimizer on the ranks of a configuration that is filled in (`TrainConfig.on`)."""
    axes, precision, micro_batch = config.parallel, config.precision, config.data.micro_batch
    low = None if precision.products == "float32" else getattr(torch, precision.products)
    if axes.is_mesh:
        step = CombinedStep(make_combination(config), optimizer_fn, scaler=scaler, model=model, padded=True)  # pyright: ignore
        return MeshStep(step)
    blocks: list[Any] = list(getattr(model, "blocks", ()))
    if config.memory.recompute != "none" and not blocks:
        raise ValueError(f"memory.recompute must be none for a model without blocks: got {config.memory.recompute}")
    checkpoint_each(blocks, config.memory.recompute)
    for block in blocks if config.memory.compile else ():
        block.compile()
    products = None if precision.master else low
    options: dict[str, Any] = {"param_dtype": low if precision.master else None}
    if axes.expert > 1:
        mesh = Mesh(data=axes.data or 1, expert=axes.expert)
        spread, same = mesh.group("expert"), mesh.group("data")
        model = ExpertParallel(spread).parallelize(model)
        options["experts"] = ExpertGroup(expert_parameters(model), same)
        if axes.zero_stage == 0:
            reduce: Any = ExpertReduce(model)
            replica = DataParallel(model, same, axes.bucket_bytes, reduce)
            return ExpertStep(replica, optimizer_fn(list(replica.parameters())), spread, micro_batch, products)
    if axes.zero_stage and axes.library == "lablib":
        if axes.zero_stage < 3:
            options["bucket_bytes"] = axes.bucket_bytes
        zero = Zero(model, optimizer_fn, axes.zero_stage, **options)
        require_steps_on_shards(zero.optimizer, [unit.layout for unit in zero.units])
        return ZeroStep(zero, micro_batch, products)
    replica, size = model, axes.bucket_bytes
    if axes.zero_stage:
        policy = MixedPrecisionPolicy(param_dtype=low) if precision.master else MixedPrecisionPolicy()
        for part in (*blocks, model):
            fully_shard(part, reshard_after_forward=axes.zero_stage == 3, mp_policy=policy)
    elif axes.data != 1 and axes.library == "torch":
        replica = DistributedDataParallel(model, bucket_cap_mb=size / 2**20)  # pyright: ignore[reportArgumentType]
    elif axes.data != 1:
        replica = DataParallel(model, bucket_bytes=size)
    return ReplicaStep(replica, optimizer_fn(list(model.parameters())), micro_batch, products)


@checked
def make_combination(config: TrainConfig) -> Combination:
    """Axes and sizes of a configuration that is filled in. ValueError: they do not fit."""
    axes, data, products = config.parallel, config.data, config.precision.products
    assert axes.data is not None and data.micro_batch is not None
    sizes = {axis: getattr(axes, axis) for axis in ("data", "pipeline", "expert", "context", "tensor")}
    return Combination(
        config.model.sizes,
        Mesh(**sizes),
        batch_size=data.batch_size,
        seq_len=data.seq_len,
        num_micro_batches=data.batch_size // (axes.data * axes.expert * data.micro_batch),
        schedule=axes.schedule if axes.pipeline > 1 else "1f1b",
        num_chunks=axes.num_chunks,
        sequence_parallel=axes.sequence_parallel,
        recompute=config.memory.recompute,
        autocast=None if products == "float32" else getattr(torch, products),
        num_experts=config.model.num_experts,
        num_active=config.model.num_active,
        zero_stage=max(1, axes.zero_stage),
    )


@checked
def make_optimizer(config: OptimizerConfig) -> OptimizerFn:
    """The function that makes the optimizer."""
    lr, decay, betas = config.lr, config.weight_decay, config.betas
    if config.name == "sgd":
        return partial(torch.optim.SGD, lr=lr, momentum=config.momentum, weight_decay=decay, fused=config.fused)
    if config.name == "lion":
        return partial(Lion, lr=lr, betas=betas, weight_decay=decay)
    if config.name == "lamb":
        return partial(LAMB, lr=lr, betas=betas, eps=config.eps, weight_decay=decay)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return partial(kind, lr=lr, betas=betas, eps=config.eps, weight_decay=decay, fused=config.fused)


@checked
def make_scaler(config: PrecisionConfig) -> LossScaler | None:
    """The scaler of the loss; None without float16."""
    if config.products != "float16":
        return None
    if config.loss_scale:
        return LossScaler(static_scale(config.loss_scale))
    bounds = {"minimum": config.min_scale, "maximum": config.max_scale}
    rule = ScaleRule(config.initial_scale, interval=config.scale_interval, hysteresis=config.hysteresis, **bounds)
    return LossScaler(rule)


@checked
def make_schedule(config: TrainConfig) -> Schedule | None:
    """Factor of the peak rate by the number of updates; None: constant from the start."""
    rate, steps = config.optimizer, config.optimizer.schedule_steps
    warmup, end = rate.num_warmup, steps or config.num_steps
    if rate.schedule.startswith("deepspeed"):
        shape = rate.schedule.removeprefix("deepspeed-")
        return partial(deepspeed_warmup, num_warmup=max(1, warmup), first=rate.first, shape=shape, num_steps=steps)
    if rate.schedule == "constant":
        return partial(warmup_stable_decay, num_steps=2**62, num_warmup=warmup, num_decay=0) if warmup else None
    if rate.schedule == "wsd":
        sizes = {"num_warmup": warmup, "num_decay": rate.num_decay}
        return partial(warmup_stable_decay, num_steps=end, final=rate.final, **sizes)
    kind = cosine if rate.schedule == "cosine" else linear
    return partial(kind, num_steps=end, num_warmup=warmup, final=rate.final)


@checked
def make_loader(config: TrainConfig) -> ResumableBatches:
    """Batches of the text to train on: this rank's part, or with model axes all of it."""
    axes, data = config.parallel, config.data
    check_type("model.vocab_size", config.model.vocab_size, Annotated[int, Range(ge=256)], 256)  # tokens are bytes
    text, _ = train_val_split(load_corpus(data.corpus), data.val_fraction)
    rank, world_size = 0, 1
    if not axes.is_mesh and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    return ResumableBatches(text, data.batch_size, data.seq_len, data.seed, rank, world_size)
