"""Bytes of a communication call, from its arguments.

S is the size of the whole tensor (`Transfer.tensor_bytes`), and the bytes sent by a rank are `must_send` of the table
of collectives (lablib/cost/collectives.py): the minimum of any algorithm, the same for every library; gloo and NCCL
choose other algorithms for some sizes. In an all-to-all each rank sends all except its own part, in a message
everything.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from lablib.cost.collectives import COLLECTIVES

# The dispatcher's name: torch.distributed's, and the argument with the whole tensor (or with one of its n shards).
CALLS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "allreduce_": ("all_reduce", "tensors"),
        "allreduce_coalesced_": ("all_reduce", "tensors"),
        "broadcast_": ("broadcast", "tensors"),
        "reduce_": ("reduce", "tensors"),
        "allgather_": ("all_gather", "output_tensors"),
        "_allgather_base_": ("all_gather_into_tensor", "output_tensor"),
        "allgather_coalesced_": ("all_gather", "output_lists"),
        "allgather_into_tensor_coalesced_": ("all_gather_into_tensor", "outputs"),
        "reduce_scatter_": ("reduce_scatter", "input_tensors"),
        "_reduce_scatter_base_": ("reduce_scatter_tensor", "input_tensor"),
        "reduce_scatter_tensor_coalesced_": ("reduce_scatter_tensor", "inputs"),
        "gather_": ("gather", "input_tensors"),
        "scatter_": ("scatter", "output_tensors"),
        "alltoall_": ("all_to_all", "input_tensors"),
        "alltoall_base_": ("all_to_all_single", "input"),
        "barrier": ("barrier", ""),
        "monitored_barrier_": ("monitored_barrier", ""),
        "send": ("send", "tensors"),
        "recv_": ("recv", "tensors"),
        "recv_any_source_": ("recv", "tensors"),
    }
)


def kind_of(name: str) -> str:
    """The row of the table of collectives of a function of torch.distributed: "all_gather_into_tensor", ..."""
    return name.removesuffix("_single").removesuffix("_tensor").removesuffix("_into")


def sent_of(name: str, size_bytes: float, n: int, place: int) -> float:
    """Bytes that a rank sends in a call of `size_bytes`, by its place after the root."""
    if name in ("send", "recv"):
        return size_bytes if name == "send" else 0.0
    return COLLECTIVES[kind_of(name)].must_send(size_bytes, n, place) if size_bytes else 0.0


def volume(op_name: str, arguments: dict[str, Any], me: int, n: int) -> tuple[float, float]:
    """S and the bytes sent by rank `me` of a group of `n`, from the dispatcher's name ("allreduce_") and arguments."""
    name, argument = CALLS[op_name]
    if not argument:
        return 0.0, 0.0  # the barriers
    given = _bytes(arguments[argument])
    match op_name:
        case "alltoall_":
            return max(given, _bytes(arguments["output_tensors"])), given - _bytes(arguments[argument][me])
        case "alltoall_base_":
            splits = arguments["input_split_sizes"]
            stays = splits[me] / max(1, sum(splits)) if splits else 1 / n
            return max(given, _bytes(arguments["output"])), (1 - stays) * given
    size = given * (n if name in ("gather", "scatter") else 1)
    return size, sent_of(name, size, n, (me - arguments.get("root_rank", 0)) % n)


def _bytes(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors of nested lists."""
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(_bytes(x) for x in tensors)
