"""Kernel times of context-parallel attention on one rank: blocks, merges, sums of gradients.

    a block          forward                                    backward
    kernel           1                                          3: rows' dot products, gradients, the query's converted
    other kernels    the part widened to 32 bits; 5 to merge    3: added to the sums of queries, keys and values
    some queries     2 more: written into the whole             no more

The first block of all queries needs no merge. Backward begins with zeros and ends with narrowed sums.

Cost: a price list; nothing runs.
Legend: as in `parallel/context/bytes.py`.
Source: `parallel/context/merge.py`, operator by operator; prices: lablib/cost.
Simplified: size alone decides whether data is in the cache (lablib/cost/memory.py).
"""

from collections.abc import Sequence

from lablib.cost import attention_time_s
from lablib.cost.efficiency import operator_time_s
from lablib.hardware import Cluster
from lablib.parallel.context.blocks import Block
from lablib.parallel.context.bytes import ContextSizes

_DTYPES = {2: "bfloat16", 4: "float32", 8: "float64"}


class Prices:
    """Seconds on a rank with some of the heads; sizes of tensors in bytes per token."""

    def __init__(self, sizes: ContextSizes, cluster: Cluster, heads_ranks: int):
        if sizes.element_bytes not in _DTYPES:
            raise ValueError(f"element_bytes must be one of {sorted(_DTYPES)}: got {sizes.element_bytes}; try 2.")
        self.sizes, self.device = sizes, cluster.device
        self.heads = sizes.heads // heads_ranks
        self.kv_heads = max(sizes.kv_heads, heads_ranks) // heads_ranks
        self.query = self.heads * sizes.head_bytes(1)
        self.keys = 2 * self.kv_heads * sizes.head_bytes(1)
        self.widening = sizes.sum_bytes / sizes.element_bytes
        self.row = sizes.batch * self.heads * sizes.sum_bytes

    def touch(self, *size_bytes: float) -> float:
        """Kernels that each move so many bytes, reads and writes together."""
        return sum(self.of_kind("", size) for size in size_bytes)

    def widen(self, size_bytes: float) -> float:
        """To 32 bits; 0 s if numbers already have them."""
        return self.of_kind("widening", size_bytes * (1 + self.widening)) if self.widening > 1 else 0.0

    def narrow(self, size_bytes: float) -> float:
        """Back from 32 bits."""
        return self.touch(size_bytes * (1 + self.widening)) if self.widening > 1 else 0.0

    def of_kind(self, kind: str, size_bytes: float) -> float:
        """A kernel of a kind of `lablib.cost.efficiency.RATES` with a rate that depends only on its bytes."""
        return float(operator_time_s(kind, size_bytes, 0, self.device)) + self.device.queued_s

    def kernel(self, block: Block, backward: bool) -> float:
        sizes, pairs = self.sizes, (length_of(block.queries), length_of(block.keys))
        dtype, options = _DTYPES[sizes.element_bytes], {"causal": block.is_causal, "backward": backward}
        one = attention_time_s(sizes.batch, self.heads, *pairs, sizes.d_head, dtype, self.device, **options)  # pyright: ignore
        return float(one) + (3 if backward else 1) * self.device.queued_s

    def forward(self, blocks: Sequence[Block], tokens: int, has_more: bool) -> float:
        """Blocks of this rank's queries; `has_more`: other blocks come before them."""
        total = 0.0
        for i, block in enumerate(blocks):
            queries = length_of(block.queries)
            total += self.kernel(block, backward=False)
            if i == 0 and not has_more and queries == tokens:
                continue
            wide, row = queries * self.query * self.widening, queries * self.row
            total += self.widen(queries * self.query) + self.touch(3 * row, 2 * row, 2 * row, 3 * wide + row, 3 * row)
            if i == 0 and not has_more:
                total += self.touch(tokens * self.query * self.widening, tokens * self.row)
            if queries < tokens:
                total += self.touch(2 * wide, 2 * row)
        return total

    def backward(self, blocks: Sequence[Block], keys: int) -> float:
        """Blocks of so many keys: zeros, kernels, and three sums each."""
        total = self.touch(keys * self.keys * self.widening)
        added = 1 + 2 * self.widening
        for block in blocks:
            part = length_of(block.keys) * self.keys / 2 * added
            total += self.kernel(block, backward=True)
            total += self.touch(length_of(block.queries) * self.query * added, part, part)
        return total

    def gradients_out(self, tokens: int, keys: int) -> float:
        """The sums of gradients: allocated before, and narrowed after."""
        zeros_s = self.touch(tokens * self.query * self.widening)
        return zeros_s + self.narrow(tokens * self.query) + 2 * self.narrow(keys * self.keys / 2)


def length_of(part: slice) -> int:
    """Length of a slice with both ends."""
    return part.stop - part.start
