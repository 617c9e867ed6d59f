"""How many bytes a communication call moves, from its arguments.

With n ranks and S the whole tensor (`Transfer.tensor_bytes`), by the ring's formula:

    all_reduce                          each rank sends 2 (n-1)/n S
    all_gather, reduce_scatter          each rank sends (n-1)/n S
    broadcast                           S passes from rank to rank: all send S but the last before the root
    reduce                              the same in reverse: all send S but the root
    gather / scatter                    S/n to the root from each other rank / (n-1)/n S from the root
    all_to_all                          each rank sends what is not for itself
    send                                S;  barrier: 0

These are what an algorithm must move, the same for every library: gloo and NCCL choose other algorithms for some sizes.
"""

from typing import Any

from torch import Tensor


def volume(op_name: str, arguments: dict[str, Any], me: int, n: int) -> tuple[float, float]:
    """S and what this rank sends, in bytes.

    Args:
        op_name: the dispatcher's name, "allreduce_".
        arguments: the call's arguments by the names of its schema.
        me: this rank's number in the group.
        n: how many ranks the group has.
    """
    tensors = arguments.get("tensors", [])
    match op_name:
        case "allreduce_" | "allreduce_coalesced_":
            size = _bytes(tensors)
            return size, 2 * (n - 1) / n * size
        case "allgather_" | "_allgather_base_" | "allgather_coalesced_" | "allgather_into_tensor_coalesced_":
            outputs = ("output_tensors", "output_tensor", "output_lists", "outputs")
            size = _bytes(next(arguments[name] for name in outputs if name in arguments))
            return size, (n - 1) / n * size
        case "reduce_scatter_" | "_reduce_scatter_base_" | "reduce_scatter_tensor_coalesced_":
            inputs = ("input_tensors", "input_tensor", "inputs")
            size = _bytes(next(arguments[name] for name in inputs if name in arguments))
            return size, (n - 1) / n * size
        case "broadcast_":
            size = _bytes(tensors)
            return size, 0.0 if (me - arguments["root_rank"]) % n == n - 1 else size
        case "reduce_":
            size = _bytes(tensors)
            return size, 0.0 if me == arguments["root_rank"] else size
        case "gather_":
            shard = _bytes(arguments["input_tensors"])
            return n * shard, 0.0 if me == arguments["root_rank"] else shard
        case "scatter_":
            shard = _bytes(arguments["output_tensors"])
            return n * shard, (n - 1) * shard if me == arguments["root_rank"] else 0.0
        case "alltoall_":
            inputs = arguments["input_tensors"]
            size = max(_bytes(inputs), _bytes(arguments["output_tensors"]))
            return size, _bytes(inputs) - _bytes(inputs[me])
        case "alltoall_base_":
            given, splits = _bytes(arguments["input"]), arguments["input_split_sizes"]
            stays = splits[me] / max(1, sum(splits)) if splits else 1 / n
            return max(given, _bytes(arguments["output"])), (1 - stays) * given
        case "send":
            return _bytes(tensors), _bytes(tensors)
        case "recv_" | "recv_any_source_":
            return _bytes(tensors), 0.0
    return 0.0, 0.0  # the barriers


def _bytes(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors of nested lists."""
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(_bytes(x) for x in tensors)
