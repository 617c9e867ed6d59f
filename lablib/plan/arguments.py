"""Check the arguments of `predict` and `predict_many`, and build the `Setup`; the formulas take it as valid."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated

from lablib.errors import find_named
from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.hardware.link import Link
from lablib.hardware.links import LINKS
from lablib.models.published import find_transformer
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import WITH_CLOSED_FORM
from lablib.plan.default_stack import NAMED, Software, default_stack
from lablib.plan.derating import USUAL, Derating
from lablib.plan.gradient_compression import GradientCompression, find_compression
from lablib.plan.machine import Machine
from lablib.plan.optimizers import Optimizer, find_optimizer
from lablib.plan.order import checked_order, placed_machine
from lablib.plan.parallel import Parallel
from lablib.plan.recompute import recompute_policy
from lablib.plan.rules import obstacles
from lablib.plan.setup import Setup
from lablib.plan.stack import Stack, find_stack
from lablib.signature import Count, OneOf, WrongType, check_arguments, shown

PRECISIONS = ("float32", "tfloat32", "float16", "bfloat16", "float8", "float4", "int8")
NARROW = ("float8", "float4", "int8")
TRAINABLE = ("all", "lora", "qlora")
OFFLOAD = ("optimizer", "activations", "parameters")
_AXES = ("data", "tensor", "pipeline", "context", "expert", "chunks", "replicas")
# One machine for equal arguments, as it caches its groups and its layers' pieces.
_machine = lru_cache(maxsize=64)(Machine)


def setup_of(
    model: str | Transformer | GPTConfig,
    cluster: str | Cluster,
    parallel: Annotated[Parallel | None, "try Parallel(data=8)"] = None,
    batch: Count = 1,
    micro_batch: Count = 1,
    seq_len: Count | None = None,
    precision: Annotated[str, OneOf(PRECISIONS)] = "bfloat16",
    recompute: str = "none",
    schedule: Annotated[str, OneOf(WITH_CLOSED_FORM)] = "1f1b",
    optimizer: str | Optimizer = "adamw",
    stack: str | Stack | None = None,
    compression: str | GradientCompression = "none",
    offload: tuple[Annotated[str, OneOf(OFFLOAD)], ...] = (),
    trainable: Annotated[str, OneOf(TRAINABLE)] = "all",
    derating: Annotated[Derating | None, "try lablib.plan.IDEAL"] = None,
    host_link: str | Link = "pcie4",
) -> Setup:
    """The setup of one plan, names resolved; it may break rules (rules.py). Arguments and Raises as `predict`."""
    model, cluster = find_model(model), find_cluster(cluster)
    host_link = find_named("link", host_link, LINKS, Link)
    offload = tuple(offload) if isinstance(offload, list) else offload
    given = {"parallel": parallel, "batch": batch, "micro_batch": micro_batch, "seq_len": seq_len}
    given |= {"precision": precision, "schedule": schedule, "offload": offload, "trainable": trainable}
    check_arguments("predict", setup_of, {**given, "derating": derating})
    parallel = Parallel() if parallel is None else parallel
    software = default_stack(cluster.device) if stack is None else Software(find_stack(stack).name, NAMED)
    stack = find_stack(software.name if stack is None else stack)
    _check_stack(stack, parallel, precision)
    machine = _machine(cluster, stack, USUAL if derating is None else derating, precision)
    return Setup(
        model=model,
        parallel=parallel,
        compression=_find_compression(compression, parallel, trainable),
        machine=machine,
        recompute=recompute_policy(recompute),
        schedule=schedule,
        optimizer=_with_moments(find_optimizer(optimizer), machine),
        trainable=trainable,
        offload=offload,
        host_link=host_link,
        software=software,
        **{axis: getattr(parallel, axis) for axis in _AXES},
        expert_tensor=parallel.expert_tensor_ranks,
        batch=int(batch),
        micro_batch=int(micro_batch),
        seq_len=model.max_seq_len if seq_len is None else int(seq_len),
    )


def possible(setup: Setup, order: Sequence[str] | None = None) -> Setup:
    """Check a setup against the rules, and place its ranks in this order of the axes (order.py; None: the planner's).

    Raises ValueError for the first broken rule, and for an order without an axis.
    """
    for reason in obstacles(setup):
        raise ValueError(reason)
    if order is None:
        return setup
    order = checked_order(order, setup.parallel)
    return replace(setup, machine=placed_machine(setup.machine, setup.parallel, order))


def find_model(model: str | Transformer | GPTConfig) -> Transformer:
    """The model of a name or a record; experts are dropped if no layer has them.

    Raises ValueError for an unknown name, and for any other type.
    """
    if not isinstance(model, (str, Transformer, GPTConfig)):
        raise WrongType(f'model must be a name, a Transformer or a GPTConfig: got {shown(model)}; try "llama-3-8b"')
    found = find_transformer(model)
    return found if found.num_expert_layers or found.experts is None else replace(found, experts=None)


def _with_moments(optimizer: Optimizer, machine: Machine) -> Optimizer:
    """The optimizer with moments as wide as the parameters if these have no masters, as torch's have.

    Those of an eager stack are in eager/optimizer.py.
    """
    is_narrow = machine.width < 4 and not machine.has_master and not machine.stack.is_eager
    return replace(optimizer, moment_bytes=machine.width) if is_narrow and optimizer.moment_bytes == 4 else optimizer


def _check_stack(stack: Stack, parallel: Parallel, precision: str) -> None:
    if stack.has_wide_shards and parallel.zero_stage != 3:
        raise ValueError(
            f"has_wide_shards needs sharded parameters: got zero_stage={parallel.zero_stage}; try zero_stage=3"
        )
    if stack.is_eager and precision in NARROW:
        raise ValueError(
            f"eager torch has no products in 8 bits or less: got precision={precision!r} with stack {stack.name!r}; "
            "try precision='bfloat16', or stack='torch-compile'"
        )
    if stack.is_eager and parallel.zero_plus_plus:
        raise ValueError(
            f"torch's own FSDP has no zero_plus_plus: got {parallel.zero_plus_plus} with stack {stack.name!r}; "
            "leave it out, or try stack='megatron-deepspeed'"
        )


def _find_compression(
    compression: str | GradientCompression, parallel: Parallel, trainable: str
) -> GradientCompression:
    found = find_compression(compression)
    if not found.is_none and (parallel.zero_stage == 3 or trainable != "all"):
        raise ValueError(
            "compression needs gradients that are summed over the data axis, before ZeRO-3 and without lora: got "
            f"{found.name!r} with zero_stage={parallel.zero_stage} and trainable={trainable!r}; leave it out, or "
            "give zero_stage=1 (ZeRO-3 has zero_plus_plus instead)"
        )
    return found
