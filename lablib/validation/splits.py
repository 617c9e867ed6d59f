"""Split of a row's model over its GPUs: rules C1, C8 and C9 of case.py."""

from math import gcd
from typing import Any

from lablib.hardware import Cluster
from lablib.plan.parallel import Parallel
from lablib.validation.rows import PublishedRow
from lablib.validation.software import FLASH_MEGATRON, OLD_MEGATRON
from lablib.validation.synonyms import sharding_named


def data_ranks(row: PublishedRow) -> int:
    """Ranks of the data axis (rule C1). Raises ValueError if the axes do not give the number of GPUs."""
    axes, gpus = row.parallel, row.hardware["gpus"]
    others = axes.get("tp", 1) * axes.get("pp", 1) * axes.get("cp", 1)
    data = axes.get("dp", gpus // others)
    if data * others != gpus:
        raise ValueError(f"dp x tp x pp x cp must be the number of GPUs: got {max(data, 1) * others} and {gpus}")
    return data


def parallel_of(row: PublishedRow, data: int, stack: str, cluster: Cluster) -> Parallel:
    """The split, with experts, sharding and sequence parallelism (rules C1, C8, C9). ValueError: as from `Parallel`."""
    axes = row.parallel
    sharding: dict[str, Any] = {"zero_stage": axes.get("zero_stage", 1 if stack in FLASH_MEGATRON else 0)}
    if (name := sharding_named(str(axes.get("fsdp", "none")))) != "none":
        sharding = _fsdp(name, data, axes.get("cp", 1), cluster)
    group = axes.get("zero_shard_group", data)
    if group < data and data % group == 0:
        sharding["replicas"] = data // group
    if sharding["zero_stage"] == 3 and stack.startswith("torch-compile") and axes.get("pp", 1) > 1:
        sharding.setdefault("reshard_after_forward", False)
    sequence_parallel = axes.get("sequence_parallel", False if stack in OLD_MEGATRON else None)
    return Parallel(
        data=data,
        tensor=axes.get("tp", 1),
        pipeline=axes.get("pp", 1),
        context=axes.get("cp", 1),
        expert=axes.get("ep", 1) if "etp" in axes else gcd(axes.get("ep", 1), data * axes.get("cp", 1)),
        expert_tensor=axes.get("etp"),
        sequence_parallel=sequence_parallel,
        **sharding,
    )


def _fsdp(name: str, data: int, context: int, cluster: Cluster) -> dict[str, Any]:
    """Rule C8 for `fsdp`."""
    if name == "FULL_SHARD":
        return {"zero_stage": 3}
    if name == "SHARD_GRAD_OP":
        return {"zero_stage": 3, "reshard_after_forward": False}
    if name == "NO_SHARD":
        return {"zero_stage": 0}
    if name == "HYBRID_SHARD":
        return {"zero_stage": 3, "replicas": max(1, data // cluster.devices_per_node)}
    if name.isdigit():
        replicas = max(1, data * context // int(name))
        return {"zero_stage": 3, "replicas": replicas if data % replicas == 0 else 1}
    raise ValueError(
        f"fsdp must be FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD or a number of ranks: got {name!r}"
    )
