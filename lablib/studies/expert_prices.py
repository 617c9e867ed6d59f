"""Kernel times of a mixture of experts on one rank: products, moves of rows, and the router.

    a part        forward                                            backward
    experts       2 grouped products, GELU                           4 of them, and GELU's
    picked        dispatch and combine: rows by index                the same
    ordered       by expert, and back by rank; 0 s with only one expert or one rank
    weighed       rows times weights, k per token summed             of rows and of weights: 2 products and a sum
    router        input and matrix to 32 bits, 1 product, softmax;   2 products, the softmax's, and as many small ones
                  some 10 kernels on k numbers per token

The small ones move little, and each costs its launch: with few tokens per rank they take most of the layer's time.

Cost: a price list; nothing runs.
Legend: as in `parallel/experts/bytes.py`.
Source: `routing.py`, `dispatch.py`, `layer.py` and `parallel.py` of parallel/experts with `grouped_product`,
operator by operator; prices: lablib/cost.
Simplified: the groups of a rank have equal lengths; size alone decides what is in the cache (lablib/cost/memory.py).
"""

from lablib.cost import matmul_time_s, memory_bound_time_s
from lablib.cost.efficiency import operator_time_s
from lablib.hardware import Cluster
from lablib.parallel.experts.bytes import COUNT_BYTES, ExpertSizes

DTYPES = {2: "bfloat16", 4: "float32", 8: "float64"}


class ExpertPrices:
    """Seconds of a mixture's kernels on one rank.

    Arguments:
        expert_ranks: n, ranks that share the experts.
        cut: c, ranks that cut each expert and the shared ones.
    """

    def __init__(self, sizes: ExpertSizes, cluster: Cluster, expert_ranks: int, cut: int = 1):
        if sizes.element_bytes not in DTYPES:
            raise ValueError(f"element_bytes must be one of {sorted(DTYPES)}: got {sizes.element_bytes}; try 2.")
        self.sizes, self.device, self.n = sizes, cluster.device, expert_ranks
        self.own, self.width = sizes.num_experts // expert_ranks, sizes.d_ff // cut
        self.dtype, self.wide = DTYPES[sizes.element_bytes], DTYPES[sizes.router_bytes]

    def touch(self, *size_bytes: float) -> float:
        """Kernels that each move so many bytes, reads and writes together."""
        device = self.device
        return sum(float(memory_bound_time_s(size, device)) + device.queued_s for size in size_bytes)

    def of_kind(self, kind: str, size_bytes: float, elements: float = 0.0) -> float:
        """A kernel of a kind of `lablib.cost.efficiency.RATES`."""
        return float(operator_time_s(kind, size_bytes, elements, self.device)) + self.device.queued_s

    def gelu(self, numbers: int, backward: bool) -> float:
        """The activation of an MLP, or its gradient."""
        name, passes = ("gelu_backward", 3) if backward else ("gelu", 2)
        return self.of_kind(name, passes * numbers * self.sizes.element_bytes, numbers)

    def mlps(self, rows: int, count: int, width: int, backward: bool) -> float:
        """Up, GELU and down of so many MLPs in a kernel each, all their rows together; or the gradients of these."""
        d_model = self.sizes.d_model
        each = -(-rows // count)
        if not backward:
            up_s, down_s = self._product(each, width, d_model, count), self._product(each, d_model, width, count)
            return up_s + down_s + self.gelu(rows * width, backward)
        of_rows = self._product(each, width, d_model, count), self._product(each, d_model, width, count)
        of_weights = [self._product(a, b, each, count, (a, b)) for a, b in ((d_model, width), (width, d_model))]
        return sum(of_rows) + sum(of_weights) + self.gelu(rows * width, backward)

    def shared(self, tokens: int, backward: bool) -> float:
        """The shared experts, one MLP of all their widths; 0 without any."""
        count = self.sizes.num_shared
        return self.mlps(tokens, 1, count * self.width, backward) if count else 0.0

    def summed(self, tokens: int) -> float:
        """The sum of the gradients of a token's k copies."""
        return self.of_kind("sum over rows", tokens * (self.sizes.k + 1) * self.sizes.row_bytes)

    def _product(
        self, m: int, n: int, k: int, count: int, rows: tuple[int, int] | None = None, dtype: str = ""
    ) -> float:
        time_s = matmul_time_s(m, n, k, dtype or self.dtype, self.device, batch=count, rows=rows)
        return float(time_s) + self.device.queued_s

    def picked(self, tokens: int) -> float:
        """Rows by index."""
        rows = tokens * self.sizes.k
        return self.touch(rows * (2 * self.sizes.row_bytes + COUNT_BYTES))

    def ordered(self, rows: int) -> float:
        """Rows of several ranks and experts in the other order; 0 s with only one expert or one rank."""
        return self.touch(2 * rows * self.sizes.row_bytes) if self.n > 1 and self.own > 1 else 0.0

    def weighed(self, tokens: int, backward: bool) -> float:
        """k rows per token times their weights, and summed; or the gradients of rows and weights."""
        sizes, weights = self.sizes, tokens * self.sizes.k * self.sizes.element_bytes
        x, rows = tokens * sizes.row_bytes, tokens * sizes.k * sizes.row_bytes
        cast = tokens * sizes.k * (sizes.element_bytes + sizes.router_bytes)
        is_cast = sizes.element_bytes < sizes.router_bytes
        if not backward:
            cast_s = self.touch(cast) if is_cast else 0.0
            return cast_s + self.touch(2 * rows + weights) + self.of_kind("sum over rows", rows + x)
        cast_s = self.of_kind("widening", cast) if is_cast else 0.0
        return cast_s + self.touch(2 * rows + x, rows + x + weights) + self.of_kind("sum", rows + weights)

    def sorted(self, tokens: int) -> float:
        """Choices sorted by expert."""
        number = COUNT_BYTES * tokens * self.sizes.k
        return self.touch(2 * number, 3 * number, number, number, 4 * number, 2 * number)

    def router(self, tokens: int, backward: bool, is_dealt: bool = True) -> float:
        """Logits, scores, choices and weights; or their gradients.

        Arguments:
            is_dealt: choices in turn; otherwise scores are sorted, and choices counted.
        """
        sizes, v = self.sizes, self.sizes.router_bytes
        choices, scores, d_model = tokens * sizes.k, tokens * sizes.num_experts * v, sizes.d_model
        casts_s, cast = 0.0, "" if backward else "widening"
        if sizes.element_bytes < v:
            for many in (tokens, sizes.num_experts):
                casts_s += self.of_kind(cast, (v + sizes.element_bytes) * d_model * many)
        number, weight, token = COUNT_BYTES * choices, v * choices, v * tokens
        normal, normalized_s = sizes.k > 1, 0.0
        if not backward:
            if normal:
                normalized_s = self.of_kind("sum", weight + token) + self.touch(2 * token, 2 * weight + token)
            dealt_s = self.touch(number, 2 * number)
            if not is_dealt:
                ids = COUNT_BYTES * sizes.num_experts
                dealt_s = self.touch(2 * scores + tokens * ids, 2 * number, ids, number, 4 * number)
            softmax_s = self.of_kind("_softmax", 2 * scores, tokens * sizes.num_experts)
            chosen_s = dealt_s + softmax_s + self.touch(number + 2 * weight)
            logits_s = self._product(tokens, sizes.num_experts, d_model, 1, dtype=self.wide)
            return casts_s + logits_s + chosen_s + normalized_s
        if normal:
            divided = 2 * weight + token
            normalized_s = self.touch(
                *(divided, divided, 2 * weight, 3 * weight, divided),
                *(0, token + tokens, 2 * token + tokens, divided),
            )
            normalized_s += self.of_kind("sum", weight + token)
        spread_s = self.touch(scores, 2 * scores + number + weight)
        spread_s += self.of_kind("_softmax_backward_data", 3 * scores, tokens * sizes.num_experts)
        products_s = self._product(sizes.num_experts, d_model, tokens, 1, (sizes.num_experts, d_model), self.wide)
        products_s += self._product(tokens, d_model, sizes.num_experts, 1, dtype=self.wide)
        return casts_s + normalized_s + spread_s + products_s + self.touch(3 * tokens * sizes.row_bytes)
