"""Time of one tensor-parallel layer: compute and exposed communication.

Every rank computes 1/n of the products, but its bytes per token do not shrink: 8 (n-1)/n S bytes per layer. So more
ranks have less compute to hide them, and a link that is ten times slower, as between nodes, is exposed at once:

    exposed / compute  ~  16/3 n R / (B (24 D + 4 T))        R FLOP/s of a rank, B bytes per second of its link, 16 bits

More sequences do not help: both sides grow with them. A wider layer helps, and a longer sequence a little.

    way                exposed in forward          exposed in backward
    f and g            2 c                         2 c
    overlapped         2 c                         the sum of max(0, c - t_W) over the two entrances
    sequence           2 a + 2 r                   2 a + 2 r
    gathered again     2 a + 2 r                   2 a, and max(0, a - t_X) + max(0, r - t_W) at each entrance
    in chunks          the sum of (n-1) max(0, m - p) over all products
    the last three     also the sums of gradients used on cut tokens: two norms, two biases, in backward

with c an all-reduce, a and r an all-gather and a reduce-scatter, m a message, p, t_X, t_W products (of a chunk, of the
input's and of the weight's gradient). In chunks smaller products take longer together; this, and adding partial sums,
counts as compute.

Cost: a price list; nothing runs. Other layers are simulated (`layer_cost.py`); this one is behind a slider that draws
1 to 64 ranks (`widgets/tensor_calculator.py`). Simulated, that takes 0.3 s, and an MLP in chunks on 16 ranks alone 2 s.
Legend: N = B T tokens, D width, F hidden, H heads, n ranks, S = N D w bytes, as in `parallel/tensor/bytes.py`.
Source: Shoeybi et al., 2019, arXiv 1909.08053, section 5.1 (tensor parallelism within a node); Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021, arXiv 2104.04473, section 3.2 and takeaway 1;
Wang et al., ASPLOS 2023 (chunks); prices: lablib/cost.
Simplified: all ranks equally fast; GELU, no dropout; a collective takes no cores from a concurrent product; with
several sequences the copies that collect tokens of one rank are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from lablib.cost import attention_time_s, collective_cost, matmul_time_s
from lablib.cost.efficiency import operator_time_s
from lablib.cost.network import network_of
from lablib.hardware import Cluster
from lablib.parallel.tensor.bytes import LayerSizes, check_layer
from lablib.signature import OneOf, checked
from lablib.studies.layer_cost import dtype_of

WAYS = ("f and g", "overlapped", "sequence", "gathered again", "in chunks")


@dataclass(frozen=True, slots=True)
class TensorLayerTime:
    """One layer, forward and backward, in seconds."""

    way: str
    ranks: int
    compute_s: float  # products, attention, and element-wise work on each token
    communication_s: float  # of all collectives or messages, hidden or not
    exposed_s: float  # the part of it that nothing hides

    @property
    def layer_s(self) -> float:
        return self.compute_s + self.exposed_s


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One weight of the layer as this rank has it: [rows, columns], and how many such read one input."""

    rows: int
    columns: int
    count: int = 1


class _Prices:
    """Seconds on one rank of a cluster."""

    def __init__(self, layer: LayerSizes, cluster: Cluster, ranks: int):
        self.layer, self.cluster, self.ranks, self.device = layer, cluster, ranks, cluster.device
        self.dtype: Any = str(dtype_of(layer.element_bytes)).removeprefix("torch.")

    def forward(self, matrix: _Matrix, tokens: int) -> float:
        return matrix.count * self._product(tokens, matrix.rows, matrix.columns)

    def input_grad(self, matrix: _Matrix, tokens: int) -> float:
        """Input gradients of all matrices that read it, and their sum."""
        adds = (matrix.count - 1) * self.touch(3 * tokens * matrix.columns)
        return matrix.count * self._product(tokens, matrix.columns, matrix.rows) + adds

    def weight_grad(self, matrix: _Matrix, tokens: int) -> float:
        return matrix.count * self._product(matrix.rows, matrix.columns, tokens, (matrix.rows, matrix.columns))

    def _product(self, m: int, n: int, k: int, rows: tuple[int, int] | None = None) -> float:
        alone_s = float(matmul_time_s(m, n, k, self.dtype, self.device, rows=rows))
        return alone_s / self.device.step_share + self.device.queued_s

    def touch(self, numbers: float, kind: str = "", elements: float = 0.0) -> float:
        """A kernel that reads and writes so many numbers, of a kind of `lablib.cost.efficiency.RATES`."""
        moved_s = operator_time_s(kind, numbers * self.layer.element_bytes, elements, self.device)
        return float(moved_s) + self.device.queued_s

    def attention(self, backward: bool) -> float:
        sizes = (self.layer.batch, self.layer.heads // self.ranks, self.layer.seq_len, self.layer.seq_len)
        d_head = self.layer.width // self.layer.heads
        options = {"causal": True, "backward": backward}
        one = attention_time_s(*sizes, d_head, self.dtype, self.device, **options)  # pyright: ignore[reportArgumentType]
        return float(one) + self.device.queued_s

    def collective(self, name: str) -> float:
        return _collective_s(name, float(self.layer.activation_bytes), self.cluster, self.ranks)

    def shared_weights(self) -> tuple[float, float]:
        """Copies and all-reduces of the gradients of two norms and two biases."""
        size_bytes = float(self.layer.width * self.layer.element_bytes)
        sum_s = _collective_s("all_reduce", size_bytes, self.cluster, self.ranks)
        return 6 * self.touch(2 * self.layer.width), 6 * sum_s

    def message(self) -> float:
        chunk_bytes = self.layer.activation_bytes / self.ranks
        return network_of(self.cluster, self.ranks).ring.time_s(chunk_bytes) + self.cluster.collective_overhead_s


@checked
def tensor_layer_time(
    layer: LayerSizes, cluster: Cluster, ranks: int, way: Annotated[str, OneOf(WAYS)] = "f and g"
) -> TensorLayerTime:
    """The seconds of one layer, forward and backward.

    `ranks`: n, a divisor of the heads, the hidden width, and all but with f the sequence. Raises ValueError: sizes that
    the ranks do not divide.
    """
    cuts_sequence = way in WAYS[2:]
    check_layer(layer, ranks, sequence=cuts_sequence)
    prices, width, hidden = _Prices(layer, cluster, ranks), layer.width // ranks, layer.hidden_size // ranks
    entrances = (_Matrix(width, layer.width, 3), _Matrix(hidden, layer.width))
    exits = (_Matrix(layer.width, width), _Matrix(layer.width, hidden))
    outside_s = _outside_s(prices, cuts_sequence)
    if way == "in chunks" and ranks > 1:
        return _in_chunks(prices, entrances, exits, outside_s)
    tokens = layer.tokens
    products_s = sum(
        price(matrix, tokens)
        for matrix in (*entrances, *exits)
        for price in (prices.forward, prices.input_grad, prices.weight_grad)
    )
    if ranks == 1:
        return TensorLayerTime(way, 1, outside_s + products_s, 0.0, 0.0)
    sums_s = prices.shared_weights()[1] if cuts_sequence else 0.0
    if way == "f and g":  # f copies the input of its all-reduce
        outside_s += 2 * prices.touch(2 * tokens * layer.width)
    hidden_behind = [(prices.input_grad(one, tokens), prices.weight_grad(one, tokens)) for one in entrances]
    communication_s, exposed_s = _whole_collectives(prices, way, hidden_behind)
    return TensorLayerTime(way, ranks, outside_s + products_s, communication_s + sums_s, exposed_s + sums_s)


@checked
def tensor_times(
    layer: LayerSizes, cluster: Cluster, ranks: Sequence[int], way: str = "f and g"
) -> list[TensorLayerTime]:
    """`tensor_layer_time` on each number of ranks."""
    return [tensor_layer_time(layer, cluster, one, way) for one in ranks]


def _outside_s(prices: _Prices, cuts_sequence: bool) -> float:
    """Attention, GELU, and biases, norms and residual sums, forward and backward."""
    layer, ranks = prices.layer, prices.ranks
    stream = layer.tokens * layer.width / (ranks if cuts_sequence else 1)
    hidden = layer.tokens * layer.hidden_size / ranks
    norms = prices.touch(2 * stream, "native_layer_norm") + prices.touch(3 * stream, "native_layer_norm_backward")
    residuals = 2 * prices.touch(3 * stream)
    biases = prices.touch(2 * stream) + prices.touch(stream, "sum over rows")
    per_token = 2 * (norms + residuals + biases)
    own_biases = 3 * prices.touch(layer.tokens * layer.width / ranks, "sum over rows")
    own_biases += prices.touch(hidden, "sum over rows")
    gelu = prices.touch(2 * hidden, "gelu", hidden) + prices.touch(3 * hidden, "gelu_backward", hidden)
    if cuts_sequence and ranks > 1:
        per_token += prices.shared_weights()[0]
    return prices.attention(False) + prices.attention(True) + gelu + per_token + own_biases


def _whole_collectives(prices: _Prices, way: str, hidden_behind: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds of communication, and its exposed part; `hidden_behind`: t_X and t_W of each entrance."""
    reduce_s = prices.collective("all_reduce")
    if way == "f and g":
        return 4 * reduce_s, 4 * reduce_s
    if way == "overlapped":
        return 4 * reduce_s, 2 * reduce_s + sum(max(0.0, reduce_s - weight_s) for _, weight_s in hidden_behind)
    gather_s, scatter_s = prices.collective("all_gather"), prices.collective("reduce_scatter")
    if way == "sequence":
        return 4 * (gather_s + scatter_s), 4 * (gather_s + scatter_s)
    behind = sum(max(0.0, gather_s - x_s) + max(0.0, scatter_s - w_s) for x_s, w_s in hidden_behind)
    return 6 * gather_s + 4 * scatter_s, 4 * gather_s + 2 * scatter_s + behind


def _in_chunks(
    prices: _Prices, entrances: Sequence[_Matrix], exits: Sequence[_Matrix], outside_s: float
) -> TensorLayerTime:
    """Each entrance or exit is n products, concurrent with n - 1 messages (`parallel/tensor/asynchronous.py`)."""
    ranks, layer, message_s = prices.ranks, prices.layer, prices.message()
    tokens = layer.tokens // ranks
    add_s = prices.touch(3 * tokens * layer.width)
    rings = [  # seconds of a chunk's products, and of adding
        *((prices.forward(one, tokens), 0.0) for one in entrances),
        *((prices.forward(one, tokens), add_s) for one in exits),
        *((prices.input_grad(one, tokens), add_s) for one in entrances),
        *((prices.weight_grad(one, tokens), 0.0) for one in entrances),
        *((prices.input_grad(one, tokens) + prices.weight_grad(one, tokens), 0.0) for one in exits),
    ]
    compute_s = sum(ranks * product_s + (ranks - 1) * adding_s for product_s, adding_s in rings)
    exposed_s = sum((ranks - 1) * max(0.0, message_s - product_s) for product_s, _ in rings)
    communication_s = len(rings) * (ranks - 1) * message_s
    sums_s = prices.shared_weights()[1]
    return TensorLayerTime("in chunks", ranks, outside_s + compute_s, communication_s + sums_s, exposed_s + sums_s)


@lru_cache(maxsize=4096)
def _collective_s(name: str, size_bytes: float, cluster: Cluster, ranks: int) -> float:
    return collective_cost(name, size_bytes, network_of(cluster, ranks)).time_s
