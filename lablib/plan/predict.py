"""What one training step of a model on a cluster would take and keep: the front door of the planner.

    predict("gpt3-175b", "dgx-a100", Parallel(data=8, tensor=8, pipeline=8), batch=1536)

Everything that is asked for is checked here, once; the formulas behind (step.py, memory.py) take it as given.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lablib.errors import unknown_name
from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.hardware.link import Link
from lablib.hardware.links import LINKS
from lablib.models.gpt import GPTConfig
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import step_flops
from lablib.pipeline.closed_form import WITH_CLOSED_FORM
from lablib.plan.default_stack import NAMED, Software, default_stack
from lablib.plan.derating import USUAL, Derating
from lablib.plan.gradient_compression import GradientCompression, find_compression
from lablib.plan.machine import Machine
from lablib.plan.memory import CATEGORIES, stage_memory
from lablib.plan.optimizers import Optimizer, find_optimizer
from lablib.plan.order import PlacedMachine, checked_order, placed_machine
from lablib.plan.parallel import Parallel
from lablib.plan.prediction import AXES, Prediction
from lablib.plan.recompute import Recompute, recompute_policy
from lablib.plan.rules import Question, obstacles
from lablib.plan.setup import Choices, Split
from lablib.plan.stack import Stack, find_stack
from lablib.plan.step import Step, step_of
from lablib.signature import WrongType, shown, whole_number

PRECISIONS = ("float32", "tfloat32", "float16", "bfloat16", "float8", "float4")
NARROW = ("float8", "float4")
TRAINABLE = ("all", "lora")
OFFLOAD = ("optimizer", "activations")


def predict(
    model: str | Transformer | GPTConfig,
    cluster: str | Cluster,
    parallel: Parallel | None = None,
    batch: int = 1,
    *,
    micro_batch: int = 1,
    seq_len: int | None = None,
    precision: str = "bfloat16",
    recompute: str = "none",
    schedule: str = "1f1b",
    optimizer: str | Optimizer = "adamw",
    stack: str | Stack | None = None,
    compression: str | GradientCompression = "none",
    offload: tuple[str, ...] = (),
    trainable: str = "all",
    derating: Derating | None = None,
    host_link: str | Link = "pcie4",
    order: Sequence[str] | None = None,
) -> Prediction:
    """One training step, predicted.

    Arguments:
        model: sizes, or a name of the catalogue of published models.
        cluster: a cluster, a name of the catalogue, or a TOML file.
        parallel: the split; one rank by default.
        batch: sequences of a step, on all ranks together.
        micro_batch: sequences that go through a stage at once, on one rank of the data axis.
        seq_len: tokens of a sequence; the model's longest by default.
        precision: of the linear layers' products: "float32", "tfloat32", "float16", "bfloat16", "float8" or "float4"
            (the last two are no part of the stacks "torch" and "torch-megatron").
        recompute: "none", "selective" (what the stack repeats: attention's core, or every second product), "full"
            (every layer), "every k" or "first k" layers.
        schedule: of the pipeline, one of `lablib.pipeline.closed_form.WITH_CLOSED_FORM`.
        optimizer: a name, or a record of optimizers.py.
        stack: the software, a name or a record of stack.py; None: what is usual today on such a device
            (default_stack.py). The answer says which.
        compression: of the data axis's gradients, a name or a record of gradient_compression.py.
        offload: any of "optimizer" and "activations": kept in the host's memory.
        trainable: "all", or "lora": the model's own weights have no gradients.
        derating: what real machines lose; `lablib.plan.derating.IDEAL` predicts what the simulator would measure.
        host_link: what lies between device and host.
        order: the axes from the one whose ranks are far apart to the one with neighbours (order.py); None: pipeline,
            data, context, tensor. "expert" may be among them, and is then that part of the data axis.

    Raises:
        ValueError: names nobody knows, splits that do not divide, sizes below 1, an order that lacks an axis.
    """
    asked = asked_for(
        *(model, cluster, parallel, batch, micro_batch, seq_len, precision, recompute, schedule, optimizer, stack),
        *(compression, offload, trainable, derating, host_link, order),
    )
    return prediction_of(asked)


class Asked(NamedTuple):
    """What is asked for, looked at: the choices, the numbers, the split as it was given, sequences of a step."""

    choices: Choices
    split: Split
    parallel: Parallel
    batch: int

    @property
    def step(self) -> Step:
        """The step of it."""
        return step_of(self.choices, self.split)


def prediction_of(asked: Asked) -> Prediction:
    """What is predicted for it."""
    return _prediction(*asked, asked.step)


def asked_for(
    model: str | Transformer | GPTConfig,
    cluster: str | Cluster,
    parallel: Parallel | None = None,
    batch: int = 1,
    micro_batch: int = 1,
    seq_len: int | None = None,
    precision: str = "bfloat16",
    recompute: str = "none",
    schedule: str = "1f1b",
    optimizer: str | Optimizer = "adamw",
    stack: str | Stack | None = None,
    compression: str | GradientCompression = "none",
    offload: tuple[str, ...] = (),
    trainable: str = "all",
    derating: Derating | None = None,
    host_link: str | Link = "pcie4",
    order: Sequence[str] | None = None,
) -> Asked:
    """The arguments of `predict`, looked at. Raises as it does."""
    model, cluster = find_model(model), find_cluster(cluster)
    parallel = Parallel() if parallel is None else parallel
    if not isinstance(parallel, Parallel):
        raise ValueError(f"parallel is a Parallel, or None: got {shown(parallel)}; try Parallel(data=8)")
    seq_len = model.max_seq_len if seq_len is None else seq_len
    choices = choices_of(
        *(model, cluster, parallel, precision, recompute, schedule, optimizer, stack, compression, offload),
        *(trainable, derating, host_link),
    )
    batch, micro_batch = whole_number("batch", batch), whole_number("micro_batch", micro_batch)
    seq_len = whole_number("seq_len", seq_len)
    axes = (
        *(parallel.data, parallel.tensor, parallel.pipeline, parallel.context),
        *(parallel.expert, parallel.expert_tensor_ranks, parallel.chunks, parallel.replicas),
    )
    sizes = (micro_batch, batch, seq_len)
    ways = (choices.sequence_parallel, choices.zero_stage, choices.machine.stack.is_eager)
    for reason in obstacles(Question(model, cluster, schedule, *axes, *sizes, *ways)):
        raise ValueError(reason)
    split = Split(*axes, micro_batch, batch // (parallel.data * micro_batch), seq_len)
    if order is not None:
        machine = placed_machine(choices.machine, parallel, checked_order(order, parallel))
        choices = replace(choices, machine=machine)
    return Asked(choices, split, parallel, batch)


def find_model(model: str | Transformer | GPTConfig) -> Transformer:
    """`find_transformer` of what is a name or a record, without experts that no layer has.

    Raises ValueError for a name nobody knows, and for the rest.
    """
    if not isinstance(model, (str, Transformer, GPTConfig)):
        raise WrongType(f'model must be a name, a Transformer or a GPTConfig: got {shown(model)}; try "llama-3-8b"')
    found = find_transformer(model)
    return found if found.num_expert_layers or found.experts is None else replace(found, experts=None)


def choices_of(
    model: Transformer,
    cluster: Cluster,
    parallel: Parallel,
    precision: str,
    recompute: str,
    schedule: str,
    optimizer: str | Optimizer,
    stack: str | Stack | None,
    compression: str | GradientCompression,
    offload: tuple[str, ...],
    trainable: str,
    derating: Derating | None,
    host_link: str | Link,
) -> Choices:
    """The choices of a run, names resolved. Raises ValueError for those nobody knows."""
    for name, value in (("precision", precision), ("schedule", schedule), ("trainable", trainable)):
        if not isinstance(value, str):
            raise WrongType(f"{name} must be text: got {shown(value)}; leave it out for the usual one")
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if schedule not in WITH_CLOSED_FORM:
        raise unknown_name("schedule", schedule, WITH_CLOSED_FORM)
    if trainable not in TRAINABLE:
        raise unknown_name("trainable", trainable, TRAINABLE)
    if not isinstance(offload, (tuple, list)):
        raise ValueError(f'offload is a tuple of what the host keeps: got {shown(offload)}; try offload=("optimizer",)')
    for each in offload:
        if each not in OFFLOAD:
            raise unknown_name("offload", each, OFFLOAD)
    if not isinstance(host_link, Link):
        if not isinstance(host_link, str) or host_link not in LINKS:
            raise unknown_name("link", host_link, list(LINKS))
        host_link = LINKS[host_link]
    if derating is not None and not isinstance(derating, Derating):
        raise ValueError(
            f"derating is a record of lablib.plan.derating, or None: got {shown(derating)}; try lablib.plan.IDEAL"
        )
    stack, software = _software(stack, cluster)
    if stack.has_wide_shards and parallel.zero_stage != 3:
        raise ValueError(
            f"has_wide_shards is of parameters that are split: got zero_stage={parallel.zero_stage}; try zero_stage=3"
        )
    if stack.is_eager and precision in NARROW:
        raise ValueError(
            f"products in 8 bits or less are no part of eager torch: got precision={precision!r} with stack "
            f"{stack.name!r}; try precision='bfloat16', or stack='torch-compile'"
        )
    if stack.is_eager and parallel.zero_plus_plus:
        raise ValueError(
            f"zero_plus_plus is no part of torch's own FSDP: got {parallel.zero_plus_plus} with stack {stack.name!r}; "
            "leave it out, or try stack='megatron-deepspeed'"
        )
    compression = find_compression(compression)
    if not compression.is_none and (parallel.zero_stage == 3 or trainable != "all"):
        raise ValueError(
            "compression is of gradients that are summed over the data axis, before ZeRO-3 and without lora: got "
            f"{compression.name!r} with zero_stage={parallel.zero_stage} and trainable={trainable!r}; leave it out, or "
            "give zero_stage=1 (of ZeRO-3, zero_plus_plus compresses)"
        )
    return Choices(
        model=model,
        machine=_machine(cluster, stack, USUAL if derating is None else derating, precision),
        recompute=recompute_policy(recompute),
        schedule=schedule,
        optimizer=find_optimizer(optimizer),
        compression=compression,
        zero_stage=parallel.zero_stage,
        reshard_after_forward=parallel.reshard_after_forward,
        zero_plus_plus=parallel.zero_plus_plus,
        sequence_parallel=parallel.has_sequence_parallel,
        trainable=trainable,
        offload=tuple(offload),
        host_link=host_link,
        software=software,
    )


def _software(stack: str | Stack | None, cluster: Cluster) -> tuple[Stack, Software]:
    """The stack that is asked for, or what is usual today; and why it."""
    if stack is None:
        software = default_stack(cluster.device)
        return find_stack(software.name), software
    found = find_stack(stack)
    return found, Software(found.name, NAMED)


@lru_cache(maxsize=64)
def _machine(cluster: Cluster, stack: Stack, derating: Derating, precision: str) -> Machine:
    """One machine for all who ask for the same: it remembers its groups and its layers' pieces."""
    return Machine(cluster, stack, derating, precision)


def _prediction(choices: Choices, split: Split, parallel: Parallel, batch: int, step: Step) -> Prediction:
    step.check_takes_time()
    model, machine = choices.model, choices.machine
    device = machine.device
    tokens = batch * split.seq_len
    policy, layers = choices.recompute, model.num_layers / split.pipeline
    useful, recomputed = _token_flops(model, split.seq_len, policy, machine.stack, layers, choices.trainable == "all")
    return Prediction(
        name=model.name,
        cluster=machine.cluster.name,
        parallel=parallel,
        num_gpus=parallel.num_ranks,
        batch=batch,
        micro_batch=split.micro_batch,
        num_microbatches=split.num_microbatches,
        seq_len=split.seq_len,
        schedule=choices.schedule,
        recompute=policy.name,
        precision=choices.machine.precision,
        step_time_s=step.step_s,
        model_flops=tokens * useful,
        hardware_flops=tokens * (useful + recomputed),
        peak_flops_per_s=machine.peak_flops_per_s,
        parts=parts_of(step),
        communication={name: tuple(getattr(step, name)[:2]) for name in AXES},
        bubble_fraction=step.bubble_fraction,
        memory=_stages(choices, split, step),
        memory_limit_bytes=device.memory_bytes - machine.derating.driver_bytes,
        cached_share=machine.derating.cached_share,
        driver_bytes=machine.derating.driver_bytes,
        power_w=device.power_w,
        software=choices.software,
        notes=_order_note(machine),
    )


def _order_note(machine: Machine) -> tuple[str, ...]:
    if not isinstance(machine, PlacedMachine):
        return ()
    sizes = dict(machine.sizes)
    axes = [f"{axis} {sizes[axis]}" for axis in machine.order if sizes[axis] > 1]
    return (f"Order of the axes, the last with neighbouring ranks: {', '.join(axes)}.",) if axes else ()


def _stages(choices: Choices, split: Split, step: Step) -> tuple[dict[str, float], ...]:
    """What each stage keeps, by category: all stages at once, as an array of ranks."""
    if split.pipeline == 1:
        return (dict(zip(CATEGORIES, stage_memory(choices, split, step, 0), strict=True)),)
    memory = stage_memory(choices, split, step, np.arange(split.pipeline))
    columns = [each.tolist() if isinstance(each, np.ndarray) else [each] * split.pipeline for each in memory]
    return tuple(dict(zip(CATEGORIES, stage, strict=True)) for stage in zip(*columns, strict=True))


@lru_cache(maxsize=1024)
def _token_flops(
    model: Transformer, seq_len: int, policy: Recompute, stack: Stack, layers: float, has_weight_gradients: bool
) -> tuple[float, float]:
    """FLOPs of one token of a step, and those again: a search asks for the same few again and again."""
    useful = step_flops(model, 1, seq_len, has_weight_gradients=has_weight_gradients)
    return useful, policy.recomputed_flops(model, stack, layers, seq_len)


def parts_of(step: Step) -> dict[str, float]:
    """The step as a sum, in the order of a waterfall: what the layers compute, then what is added to it.

    Kernels that run a second time are one part. Communication is that of its axis, whichever pass it is for: the parts
    of the axes and of the host's link are the exposed seconds of `Prediction.communication`, to the last digit.
    """
    recomputed = step.repeated
    kernels_s = recomputed.compute_s + recomputed.communication_s
    return {
        "products": step.products_s - recomputed.product_s,
        "attention": step.attention_s - recomputed.attention_s,
        "memory-bound kernels": step.memory_s - recomputed.memory_s,
        "launches": step.launch_s - (step.recompute_s - kernels_s),
        "recomputation": step.recompute_s - recomputed.communication_s,
        "tensor axis": step.tensor.exposed_s,
        "context axis": step.context.exposed_s,
        "expert axis": step.expert.exposed_s,
        "embedding, head, loss": step.ends_s,
        "bubble and messages": step.bubble_s,
        "data axis": step.data.exposed_s,
        "packing": step.data.copies_s,
        "host link": step.host.exposed_s,
        "optimizer": step.optimizer_s,
        "fixed": step.fixed_s,
    }
