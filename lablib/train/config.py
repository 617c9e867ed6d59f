"""Configuration of a training run: a tree of dataclasses, checked field by field and across fields.

    [model]        family and sizes                      [precision]    dtypes, and the loss scale
    [data]         corpus, batch, sequence               [memory]       recomputation, torch.compile
    [optimizer]    rule, rate, schedule, clipping        [checkpoint]   folder, interval
    [parallel]     axes of the mesh, ZeRO stage          [monitor]      interval, files
    [health]       spikes, drift and hangs: skip, roll back, stop

Each field has its range in its annotation. Rules across fields are checked when the tree is made. Rules that depend on
the number of ranks are checked by `config.on(ranks)`, which also fills in the sizes that follow from it:

    ranks = data x expert x context x tensor x pipeline
    batch_size = data x expert x micro_batch x number of micro-batches

Source: names as in torch and in this package; lablib/train/deepspeed.py has DeepSpeed's names next to them.
Simplified: the model is the plain GPT or Llama, perhaps with experts; one group of parameters.
"""

from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Annotated, Any

from lablib.models import GPTConfig, LlamaConfig
from lablib.pipeline.schedules import SCHEDULES
from lablib.signature import (
    Checked,
    Count,
    Fraction,
    FractionBelow1,
    NonNegative,
    NonNegativeInt,
    OneOf,
    Positive,
    Range,
    check_fields,
    checked,
)

RATES = ("constant", "linear", "cosine", "wsd", "deepspeed-log", "deepspeed-linear")
_LLAMA = 'give none, or with model.family="llama" another number'


@dataclass(frozen=True)
class ModelConfig(Checked):
    """Sizes of the model; as `GPTConfig`, or `LlamaConfig`."""

    family: Annotated[str, OneOf(("gpt", "llama"))] = "gpt"  # llama: RMSNorm, SwiGLU, rotary positions, no biases
    num_layers: Count = 2
    d_model: Count = 64
    num_heads: Count = 4
    vocab_size: Count = 256  # bytes
    max_seq_len: Count = 128
    d_ff: Count | None = None  # hidden width of the MLP; None: 4 d_model, of a llama 8/3
    tied_head: bool | None = None  # None: tied in a gpt, not in a llama
    # Of a llama. num_kv_heads: heads of keys and values; None: num_heads. head_dim: width of a head; None: d_model /
    # num_heads. rope_base: of the rotary angles; None: 500,000
    num_kv_heads: Annotated[int, Range(ge=1), _LLAMA] | None = None
    head_dim: Annotated[int, Range(ge=1), _LLAMA] | None = None
    rope_base: Annotated[float, Range(gt=1), _LLAMA] | None = None
    num_experts: NonNegativeInt = 0  # of each layer; 0: an MLP
    num_active: Count = 2  # experts that a token visits
    seed: NonNegativeInt = 0  # of the initial parameters

    def __post_init__(self) -> None:
        check_fields(self)
        self.sizes  # noqa: B018  checks widths and heads
        if 0 < (most := self.num_experts) < self.num_active:
            raise _broken("model.num_active", f"at most num_experts={most}", self.num_active, most)
        for name in ("num_kv_heads", "head_dim", "rope_base") if self.family == "gpt" else ():
            if (value := getattr(self, name)) is not None:
                raise _broken(f"model.{name}", 'none without model.family="llama"', value, "none")

    @property
    def sizes(self) -> GPTConfig | LlamaConfig:
        kind = LlamaConfig if self.family == "llama" else GPTConfig
        own = {one.name: getattr(self, one.name, None) for one in fields(kind)}
        return kind(**{name: value for name, value in own.items() if value is not None})


@dataclass(frozen=True)
class DataConfig(Checked):
    """Text and batches."""

    corpus: str = "python-stdlib"  # a name of datasets/catalogue.toml
    batch_size: Count = 8  # sequences of a step, over all ranks
    micro_batch: Count | None = None  # sequences at a time on one rank; None: all of its sequences at once
    seq_len: Count = 128
    seed: NonNegativeInt = 0  # of the order
    val_fraction: Annotated[float, Range(gt=0, lt=1)] = 0.1  # end of the corpus, not trained on


@dataclass(frozen=True)
class OptimizerConfig(Checked):
    """Update rule, learning rate and clipping."""

    name: Annotated[str, OneOf(("adamw", "adam", "sgd", "lion", "lamb"))] = "adamw"
    lr: NonNegative = 1e-3  # the peak
    betas: tuple[FractionBelow1, FractionBelow1] = (0.9, 0.999)
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.01
    momentum: FractionBelow1 = 0.0  # of sgd
    fused: bool = False  # one kernel for all parameters (torch's adamw, adam, sgd)
    schedule: Annotated[str, OneOf(RATES)] = "constant"
    num_warmup: NonNegativeInt = 0  # steps
    num_decay: NonNegativeInt = 0  # steps, of wsd
    first: Fraction = 0.0  # rate at the start, of deepspeed-*, as a share of the peak
    final: Fraction = 0.0  # rate at the end, of linear, cosine and wsd, as a share of the peak
    schedule_steps: Count | None = None  # end of the schedule; None: num_steps, for deepspeed-* no decay
    max_norm: Annotated[float, Range(gt=0)] = inf  # of the gradient; inf: no clipping

    def __post_init__(self) -> None:
        check_fields(self)
        if self.fused and self.name not in (torchs := ("adamw", "adam", "sgd")):
            raise _broken(
                "optimizer.fused", f"false for {self.name}, as torch has {', '.join(torchs)}", "true", "false"
            )


@dataclass(frozen=True)
class ParallelConfig(Checked):
    """Axes of the mesh, and the ZeRO stage."""

    data: Count | None = None  # replicas; None: all ranks that the other axes leave
    context: Count = 1  # ranks that share every sequence
    tensor: Count = 1  # ranks that share every matrix
    pipeline: Count = 1  # stages
    expert: Count = 1  # ranks that share the experts of a layer, each with its own sequences
    # 1: optimizer state sharded, 2: and gradients, 3: and parameters; 0 is 1 with tensor, pipeline or context ranks
    zero_stage: Annotated[int, Range(ge=0, le=3)] = 0
    library: Annotated[str, OneOf(("lablib", "torch"))] = "lablib"  # torch: DistributedDataParallel and fully_shard
    bucket_bytes: Count = 25 * 2**20  # of gradients that are reduced together
    schedule: Annotated[str, OneOf(SCHEDULES)] = "1f1b"  # of the pipeline
    num_chunks: Count = 1  # pieces of the model per stage, for schedules that take it
    sequence_parallel: bool = False  # norms and residual stream cut over tensor ranks

    @property
    def model_ranks(self) -> int:
        """Ranks that together hold one replica and compute the same sequences."""
        return self.context * self.tensor * self.pipeline

    @property
    def is_mesh(self) -> bool:
        """Whether `CombinedStep` trains: on a mesh, with the optimizer's state sharded."""
        return self.model_ranks > 1 or (self.expert > 1 and self.zero_stage == 1)


@dataclass(frozen=True)
class PrecisionConfig(Checked):
    """Number formats, and the rule of the loss scale (float16 only)."""

    products: Annotated[str, OneOf(("float32", "bfloat16", "float16"))] = "float32"  # by autocast
    parameters: Annotated[str, OneOf(("float32", "float64"))] = "float32"
    # parameters and gradients in `products` as well, with a sharded master copy in `parameters`; needs a ZeRO stage
    master: bool = False
    loss_scale: NonNegative = 0.0  # 0: dynamic
    initial_scale: Positive = 2.0**16
    scale_interval: Count = 2000  # steps without overflow after which it doubles
    hysteresis: Count = 1  # overflows after which it halves
    min_scale: NonNegative = 0.0
    max_scale: Annotated[float, Range(gt=0)] = 2.0**24

    def __post_init__(self) -> None:
        check_fields(self)
        first = self.initial_scale
        if self.products == "float16" and not self.loss_scale and not self.min_scale <= first <= self.max_scale:
            rule = f"from min_scale={self.min_scale:g} to max_scale={self.max_scale:g}"
            near = min(max(first, self.min_scale), self.max_scale)
            raise _broken("precision.initial_scale", rule, first, near)


@dataclass(frozen=True)
class MemoryConfig(Checked):
    """Activation memory, compilation and garbage collection."""

    # full: only the inputs of layers are kept; selective: also results of matrix products and attention
    recompute: Annotated[str, OneOf(("none", "selective", "full"))] = "none"
    compile: bool = False  # torch.compile; the simulator runs the eager program
    # steps between garbage collections, at the same steps on all ranks, without automatic ones; 0: Python's own
    gc_every_steps: NonNegativeInt = 0


@dataclass(frozen=True)
class CheckpointConfig(Checked):
    """Checkpoints of the whole state."""

    folder: str = ""  # empty: none
    every: Count = 100  # steps
    keep: Count = 2  # newest ones; also the one with the lowest training loss in its step
    asynchronous: bool = True  # written during the next steps
    resume: bool = True  # from the newest in the folder


@dataclass(frozen=True)
class MonitorConfig(Checked):
    """Reports during the run."""

    every: Count = 10  # steps
    folder: str = ""  # gets metrics.jsonl, with the alerts; empty: none
    rules: str = ""  # file of alert rules; empty: with a folder, TRAINING_RULES of alerts.py
    breakdown: bool = False  # seconds of the phases of each step
    communication: bool = False  # metrics communication_share and synchronization_s of each step


@dataclass(frozen=True)
class HealthConfig(Checked):
    """Responses to bad steps (NaN, or a spike of loss or gradient norm), to replicas that differ, and to a hang.

    policy   off        bad steps are not looked for; a run that ends with a loss of NaN fails
             skip       the update of a bad step is skipped; more than `most_skips` in the window stop the run
             roll_back  more than that load the newest checkpoint of before them; after `most_roll_backs` the run stops
             stop       the first bad step stops the run
    """

    policy: Annotated[str, OneOf(("off", "skip", "roll_back", "stop"))] = "off"
    num_deviations: Positive = 8.0  # standard deviations above the median that make a spike
    window: Count = 100  # last steps that count
    warm_up: Count = 20  # good steps before anything finite can be a spike
    most_skips: NonNegativeInt = 3  # bad steps of the window that are only skipped; 0: none
    most_roll_backs: NonNegativeInt = 2
    skip_batches: bool = True  # after a roll back, go on after the batch of the bad step; false: the same batches again
    drift_every: NonNegativeInt = 0  # steps between comparisons of the replicas' parameters; 0: none
    drift: Annotated[str, OneOf(("stop", "roll_back"))] = "stop"  # response to replicas that differ
    hang_s: NonNegative = 1800.0  # real ranks end if no step has ended for so long; 0: never. The simulator: --timeout

    def __post_init__(self) -> None:
        check_fields(self)
        if self.warm_up > self.window:
            raise _broken("health.warm_up", f"at most health.window={self.window}", self.warm_up, self.window)

    @property
    def rolls_back(self) -> bool:
        return self.policy == "roll_back" or (self.drift_every > 0 and self.drift == "roll_back")


@dataclass(frozen=True)
class TrainConfig(Checked):
    """A whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    num_steps: Count = 100

    def __post_init__(self) -> None:
        check_fields(self)
        model, data, rate, axes = self.model, self.data, self.optimizer, self.parallel
        if data.seq_len > model.max_seq_len:
            raise _broken("data.seq_len", f"at most model.max_seq_len={model.max_seq_len}", data.seq_len)
        end = rate.schedule_steps or self.num_steps
        used = rate.num_warmup + (rate.num_decay if rate.schedule == "wsd" else 0)
        if rate.schedule == "wsd" and rate.num_decay > end:
            raise _broken("optimizer.num_decay", f"at most the {end} steps of the schedule", rate.num_decay, end)
        if rate.schedule != "constant" and not rate.schedule.startswith("deepspeed") and used > end:
            rule = f"at most the {end} steps of the schedule, with the decay"
            raise _broken("optimizer.num_warmup", rule, used, max(0, end - used + rate.num_warmup))
        if axes.is_mesh:
            self._check_mesh()
        elif axes.library == "torch" and axes.zero_stage == 1:
            raise _broken("parallel.zero_stage", "0, 2 or 3 with torch, as fully_shard has no stage 1", 1, 2)
        for name, is_off, axis in (("num_chunks", 1, "pipeline"), ("sequence_parallel", False, "tensor")):
            if (value := getattr(axes, name)) != is_off and getattr(axes, axis) == 1:
                rule = f"{str(is_off).lower()} without {axis} ranks"
                raise _broken(f"parallel.{name}", rule, value, str(is_off).lower())
        if axes.expert > 1 and (model.num_experts == 0 or model.num_experts % axes.expert):
            rule = f"a multiple of {axes.expert} expert ranks"
            raise _broken("model.num_experts", rule, model.num_experts, 2 * axes.expert)
        if axes.expert > 1 and axes.library == "torch":
            raise _broken("parallel.library", "lablib with expert ranks", "torch", "lablib")
        if rate.fused and rate.name == "sgd" and axes.library == "torch" and axes.zero_stage:
            rule = "false for sgd with fully_shard, as torch has no fused SGD of sharded parameters"
            raise _broken("optimizer.fused", rule, "true", "false")
        if self.optimizer.name == "lamb" and (axes.zero_stage or axes.model_ranks > 1):
            raise _broken("optimizer.name", "element-wise where parameters are in shards", "lamb", '"adamw"')
        if self.precision.master and (axes.zero_stage == 0 or self.precision.products == "float32"):
            got = f"zero_stage {axes.zero_stage} and {self.precision.products}"
            raise _broken("precision.master", "false without a ZeRO stage and 16-bit products", got, "false")
        if self.precision.products == "float16" and axes.library == "torch" and axes.zero_stage:
            rule = "bfloat16 or float32 with fully_shard, as the loss scaler does not read its gradients"
            raise _broken("precision.products", rule, "float16", '"bfloat16"')

        health = self.health
        if health.rolls_back and not self.checkpoint.folder:
            name = "policy" if health.policy == "roll_back" else "drift"
            rule = "another than roll_back without checkpoints"
            raise _broken(f"health.{name}", rule, "roll_back", '"stop", or give checkpoint.folder')
        if health.drift_every and (axes.zero_stage == 3 or (axes.library == "torch" and axes.zero_stage)):
            rule = "0 where each parameter is on one rank (ZeRO stage 3, fully_shard), as there are no replicas"
            raise _broken("health.drift_every", rule, health.drift_every, 0)

    def _check_mesh(self) -> None:
        axes = self.parallel
        if axes.pipeline > 1 and (stage := axes.zero_stage) > 1:
            rule = "0 or 1 with pipeline ranks, as every micro-batch would reduce its gradients again"
            raise _broken("parallel.zero_stage", rule, stage, 1)
        if self.memory.recompute == "selective" and (
            axes.context > 1 or (axes.tensor > 1 and not axes.sequence_parallel)
        ):
            rule = "none or full with context ranks, and with tensor ranks without sequence_parallel"
            raise _broken("memory.recompute", rule, "selective", '"full"')
        kind, products = SCHEDULES[axes.schedule], self.precision.products
        if axes.pipeline > 1 and kind.defers_weights and products != "float32":
            rule = f"float32 with {axes.schedule}, which defers weight gradients"
            raise _broken("precision.products", rule, products, 'float32, or parallel.schedule="1f1b"')
        others = "tensor, pipeline or context ranks" + " or expert ranks and ZeRO-1" * (axes.expert > 1)
        for name, value, usual in (
            ("parallel.library", axes.library, "lablib"),
            ("precision.master", self.precision.master, False),
            ("memory.compile", self.memory.compile, False),
        ):
            if value != usual:
                raise _broken(name, f"{usual} with {others}", value, usual)

    @checked
    def on(self, ranks: Count) -> "TrainConfig":
        """The configuration with data axis and micro-batch filled in for a number of ranks.

        ValueError: axes that do not multiply to the ranks, or a batch that they do not divide.
        """
        axes, data = self.parallel, self.data
        data_ranks = axes.data or max(1, ranks // (axes.expert * axes.model_ranks))
        replicas = data_ranks * axes.expert  # ranks with different sequences
        if replicas * axes.model_ranks != ranks:
            others = [f"{axis} {getattr(axes, axis)}" for axis in ("expert", "context", "tensor", "pipeline")]
            got = " x ".join([f"data {data_ranks}", *others])
            rule = f"parallel must be axes with the product {ranks}, the ranks"
            raise ValueError(f"{rule}: got {got}; run on {replicas * axes.model_ranks} ranks, or change an axis")
        micro = data.micro_batch or max(1, data.batch_size // replicas)
        if data.batch_size % (replicas * micro):
            near = max(1, round(data.batch_size / (replicas * micro))) * replicas * micro
            rule = f"a multiple of {replicas} data and expert ranks x micro_batch {micro}"
            raise _broken("data.batch_size", rule, data.batch_size, near)
        return replace(self, parallel=replace(axes, data=data_ranks), data=replace(data, micro_batch=micro))


def _broken(name: str, rule: str, value: Any, remedy: Any = None) -> ValueError:
    text = "change one of them" if remedy is None else f"try {name}={remedy}"
    return ValueError(f"{name} must be {rule}: got {value}; {text}")
