"""DeepSpeed's estimates of ZeRO's memory: bytes on each GPU, and on the host of each node.

With P parameters, g GPUs on each of N nodes, P_l parameters in the largest layer, buffer factor f (1.5):

    ZeRO-2                       GPU                        host
      all on the GPU             2 P + 18 P / (g N)         4 g P f            while the model is made, in 32 bits
      optimizer on the host      2 P                        max(4 g N, 16) P f
    ZeRO-3
      all on the GPU             4 P_l + 18 P / (g N)       4 g P_l f, or 4 g P f without zero.Init
      optimizer on the host      4 P_l + 2 P / (g N)        16 P f / N, or max(4 g, 16 / N) P f
      parameters there too       4 P_l                      18 P f / N, or max(4 g, 18 / N) P f

16 are the states in 32 bits: parameter, gradient, two moments; 18 with the part in 16 bits; 4 P_l the largest layer,
gathered, and its gradient. `zero.Init` splits each layer as soon as it is made, so no host holds a whole model.

Source: DeepSpeed documentation, "Memory Requirements" (docs/code-docs/source/memory.rst at 0cca539), and the functions
of the page, estimate_zero2_model_states_mem_needs (stage_1_and_2.py at 02aa38c) and
estimate_zero3_model_states_mem_needs. Where the page and the functions differ, this follows the functions: for ZeRO-2
the page still has 4 P + 16 P / (g N), gradients in 16 bits whole on each GPU, and 4 g instead of 4 g N on the host.
Simplified as in DeepSpeed: no activations, no buffers for communication. It prints GiB as "GB".
"""

from typing import NamedTuple


class MemoryNeeds(NamedTuple):
    """Whole bytes: `host_bytes` of each node's memory, `gpu_bytes` of each GPU's."""

    host_bytes: int
    gpu_bytes: int


def zero2_memory_needs(
    params: float,
    *,
    gpus_per_node: int = 1,
    nodes: int = 1,
    offload_optimizer: bool = True,
    splits_gradients: bool = True,
    buffer_factor: float = 1.5,
) -> MemoryNeeds:
    """Bytes of ZeRO-2's model states.

    Arguments:
        params: of the model, shared ones counted once.
        gpus_per_node, nodes: g and N.
        offload_optimizer: whether optimizer and gradients are on the host.
        splits_gradients: whether gradients in 16 bits are split too; False is DeepSpeed's earlier estimate, still
            printed in its documentation.
        buffer_factor: f, the margin of the host's memory.

    Raises:
        ValueError: fewer than one GPU or node.
    """
    gpus = _count_gpus(gpus_per_node, nodes)
    if offload_optimizer:
        return MemoryNeeds(int(params * max(4 * gpus, 16) * buffer_factor), int(2 * params))
    whole, split = (2, 18) if splits_gradients else (4, 16)
    gpu_bytes = whole * params + int(split * params / gpus)
    return MemoryNeeds(int(params * 4 * gpus_per_node * buffer_factor), int(gpu_bytes))


def zero3_memory_needs(
    params: float,
    largest_layer_params: float,
    *,
    gpus_per_node: int = 1,
    nodes: int = 1,
    offload_optimizer: bool = True,
    offload_params: bool = True,
    zero_init: bool = True,
    buffer_factor: float = 1.5,
) -> MemoryNeeds:
    """Bytes of ZeRO-3's model states.

    Arguments:
        largest_layer_params: P_l, parameters of the largest module, without its submodules.
        offload_params: whether parameters are on the host too; only together with the optimizer.
        zero_init: whether the model is made under `zero.Init`.
        Others as in `zero2_memory_needs`.

    Raises:
        ValueError: parameters on the host without the optimizer, or fewer than one GPU or node.
    """
    gpus = _count_gpus(gpus_per_node, nodes)
    if offload_params and not offload_optimizer:
        raise ValueError("offload_params needs offload_optimizer: got True and False; give offload_optimizer=True")
    on_host = 0 if not offload_optimizer else 18 if offload_params else 16
    on_gpu = {0: 18, 16: 2, 18: 0}[on_host]
    making = 4 * gpus_per_node  # each process of a node makes the whole model, in 32 bits
    if zero_init:
        host_bytes = params * on_host * (1 / nodes) if on_host else largest_layer_params * making
    else:
        host_bytes = params * max(making, on_host * (1 / nodes))
    gpu_bytes = 4 * largest_layer_params + int(on_gpu * params / gpus)
    return MemoryNeeds(int(host_bytes * buffer_factor), int(gpu_bytes))


def _count_gpus(gpus_per_node: int, nodes: int) -> int:
    if gpus_per_node < 1 or nodes < 1:
        raise ValueError(f"gpus_per_node and nodes must be 1 or more: got {gpus_per_node} and {nodes}")
    return gpus_per_node * nodes
