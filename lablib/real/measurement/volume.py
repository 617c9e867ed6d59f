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

# The dispatcher's name: the collective, and the argument with the whole tensor (or with one of its n shards).
_CALLS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "allreduce_": ("all_reduce", "tensors"),
        "allreduce_coalesced_": ("all_reduce", "tensors"),
        "allgather_": ("all_gather", "output_tensors"),
        "_allgather_base_": ("all_gather", "output_tensor"),
        "allgather_coalesced_": ("all_gather", "output_lists"),
        "allgather_into_tensor_coalesced_": ("all_gather", "outputs"),
        "reduce_scatter_": ("reduce_scatter", "input_tensors"),
        "_reduce_scatter_base_": ("reduce_scatter", "input_tensor"),
        "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs"),
        "broadcast_": ("broadcast", "tensors"),
        "reduce_": ("reduce", "tensors"),
        "gather_": ("gather", "input_tensors"),
        "scatter_": ("scatter", "output_tensors"),
    }
)


def volume(op_name: str, arguments: dict[str, Any], me: int, n: int) -> tuple[float, float]:
    """S and the bytes sent by rank `me` of a group of `n`, from the dispatcher's name ("allreduce_") and arguments."""
    match op_name:
        case "alltoall_":
            inputs = arguments["input_tensors"]
            size = max(_bytes(inputs), _bytes(arguments["output_tensors"]))
            return size, _bytes(inputs) - _bytes(inputs[me])
        case "alltoall_base_":
            given, splits = _bytes(arguments["input"]), arguments["input_split_sizes"]
            stays = splits[me] / max(1, sum(splits)) if splits else 1 / n
            return max(given, _bytes(arguments["output"])), (1 - stays) * given
        case "send":
            return _bytes(arguments["tensors"]), _bytes(arguments["tensors"])
        case "recv_" | "recv_any_source_":
            return _bytes(arguments["tensors"]), 0.0
    if op_name not in _CALLS:
        return 0.0, 0.0  # the barriers
    name, argument = _CALLS[op_name]
    size = _bytes(arguments[argument]) * (n if name in ("gather", "scatter") else 1)
    return size, COLLECTIVES[name].must_send(size, n, (me - arguments.get("root_rank", 0)) % n)


def _bytes(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors of nested lists."""
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(_bytes(x) for x in tensors)
