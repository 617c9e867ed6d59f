"""qgZ: a quantized reduce-scatter in two hops, inside the node and then across, so each piece crosses once per node.

Quantized pieces sent directly to their owners (`quantized_reduce_scatter.py`) cross the network once for each rank.
Here the ranks of a node first sum the pieces for other nodes, and only sums cross:

    1. inside    local rank l gets, from each of its node, the pieces of all ranks with place l: N pieces; it averages
    2. across    the ranks with place l exchange those averages, one for each node; each averages again

Step 1 needs the pieces of ranks (0, l), (1, l), ... next to each other, while the buffer has them by node: (0, 0), (0,
1), ... So the slices are reordered first, and piece (k, l) ends on rank (k, l):

    N = 2, L = 2      buffer  00 01 10 11      reordered  00 10 | 01 11      inside  00 10 to place 0, 01 11 to place 1
                                                                             across  00 to node 0, 10 to node 1

Cost for N nodes of L ranks, n = N L, P numbers per piece, message S_q = ceil(P b / 8) + 4 k ceil(P / B) bytes:
    time_s      alpha_in + (L-1) N S_q beta_in, then alpha_out + (N-1) S_q beta_out; n P numbers quantized, then N P
    peak bytes  2 n S_q of messages and 8 n P of numbers (reordered, and read)
    sent bytes (L-1) N S_q inside the node and (N-1) S_q across per rank: L (N-1) S_q leave a node, in one hop L^2 (N-1)
                S_q; a number is rounded twice, once per level
Shapes: full [n P], shard [P]; reordered [L, N, P].
Source: Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.3 (qgZ: hierarchy, tensor slice reordering).
Simplified: reordering is a copy, which the authors' kernel does while it quantizes; steps of one buffer are not
pipelined in chunks; the second hop starts in `wait` (`stages.py`).
"""

from collections.abc import Iterator

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from lablib.compress.int4 import Int4
from lablib.compress.quantized import Quantizer
from lablib.compress.quantized_all_gather import check_shards
from lablib.compress.quantized_reduce_scatter import exchange, mean_of
from lablib.compress.stages import staged
from lablib.parallel.data.overlapped import Handle

INT4 = Int4()


@staged
def hierarchical_reduce_scatter(
    full: Tensor, shard: Tensor, mesh: DeviceMesh, quantizer: Quantizer = INT4
) -> Iterator[Handle]:
    """Fill `shard` with the mean over all ranks of this rank's piece of `full`; the handle's `wait` ends it.

    Communicates: an all-to-all of bytes inside the node and one across; no communication or rounding on a level with
    one rank. Arguments and Raises as of `quantized_reduce_scatter`; `mesh`: of `lablib.parallel.node_mesh`, axes
    "node" and "local"; ranks of a node one after another.
    """
    check_shards(full, shard, mesh.size())
    inside, across, numel = mesh.get_group("local"), mesh.get_group("node"), shard.numel()
    pieces = full.reshape(across.size(), inside.size(), numel)

    # 1. Inside: for each place, the pieces of its ranks on all nodes. A piece is a row, with separate blocks.
    if inside.size() > 1:
        parts, work = exchange(pieces.transpose(0, 1), inside, quantizer, "the reordered tensor")  # [L, N, P]
        yield work
        averages = mean_of(parts, numel, quantizer)  # [N, P]
    else:
        averages = pieces[:, 0]

    # 2. Across: to each node the average of its piece.
    if across.size() > 1:
        parts, work = exchange(averages, across, quantizer, "the node's average")
        yield work
        averages = mean_of(parts, numel, quantizer)  # [P]
    shard.copy_(averages.reshape(shard.shape))
