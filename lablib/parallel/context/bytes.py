"""Bytes sent and kept for backward by context parallelism: ring, gather, Ulysses, both.

    sent by a rank            forward                       backward
    ring                      (n-1) S                       (n-1) S and n S 4/w: the gradients, in 32 bits
    gather                    (n-1) S                       (n-1) S
    ulysses                   (n-1)/n (2 H + 2 g) X         the same
    both                      ulysses over u, a ring of r with H / u heads of u times the tokens per rank

With n ranks the S of one rank shrinks, but it is sent n - 1 times: a ring and a gather send nearly the keys and values
of the whole sequence, for any number of ranks. The bytes of Ulysses fall with n. So a ring is better with few key-value
heads, Ulysses with many ranks:

    ring 2 (n-1) G + n 2 G 4/w ... against ... 2 (n-1)/n (2 H + 2 g)        per X and step; H = G, 16 bits: 6 n to 8

Bytes that attention keeps for backward, in addition to the lse of B H t numbers in 32 bits:

    ring      (2 H + 2 G) X          queries, output, own keys and values
    gather    (2 H + 2 n G) X        queries, output, keys and values of all ranks
    ulysses   (2 H + 2 g) X          of all tokens, 1/n of the heads
    both      (2 H + 2 g) X          of u times the tokens, 1/u of the heads

Cost: some sums; does not communicate.
Legend: B batch, T tokens, n ranks, t = T / n, H heads, G key-value heads, K width of a head, w bytes per number; X = B
t K w bytes of a head's tokens, S = 2 G X of keys and values; g = max(G, n) key-value heads that are sent (u for n).
Source: Liu et al., 2023, arXiv 2310.01889, section 3; Llama Team, 2024, arXiv 2407.21783, section 3.3.2; Jacobs et al.,
2023, arXiv 2309.14509, section 3.2; Fang and Zhao, 2024, arXiv 2405.07719.
Simplified: sizes that n divides.
"""

from dataclasses import dataclass
from typing import Annotated

from lablib.parallel.tensor.attention import check_heads
from lablib.signature import Count, OneOf, check_fields, checked

WAYS = ("ring", "gather", "ulysses", "both")
Way = Annotated[str, OneOf(WAYS)]


@dataclass(frozen=True, slots=True)
class ContextSizes:
    """Attention of one layer, and its micro-batch."""

    batch: Count  # batch, seq_len: B and T
    seq_len: Count
    heads: Count  # heads, kv_heads, d_head: H, G and K
    kv_heads: Count
    d_head: Count
    element_bytes: Count = 2  # w; 2 for 16 bits

    def __post_init__(self) -> None:
        check_fields(self)
        check_heads(self.heads, self.kv_heads, 1)

    @property
    def sum_bytes(self) -> int:
        """Bytes of a number in sums of partial results: at least 32 bits."""
        return max(4, self.element_bytes)

    def head_bytes(self, tokens: int) -> int:
        """X: bytes of one head for `tokens` tokens of each sequence."""
        return self.batch * tokens * self.d_head * self.element_bytes


@checked
def context_sent_bytes(sizes: ContextSizes, ranks: Count, way: Way, heads_ranks: Count = 1) -> int:
    """Bytes that a rank sends for one layer, forward and backward.

    `ranks`: n, which divides the sequence. `heads_ranks`: u, of `both`; it divides n. ValueError: ranks that do not
    divide the tokens; heads that cannot be split over the ranks.
    """
    ring, u = check_ways(sizes, ranks, way, heads_ranks)
    sent = 0
    if u > 1:
        one = sizes.head_bytes(sizes.seq_len // ranks)
        sent += 2 * (u - 1) * (2 * sizes.heads + 2 * max(sizes.kv_heads, u)) * one // u
    keys = 2 * max(sizes.kv_heads, u) // u * sizes.head_bytes(sizes.seq_len // ring)  # S, of this rank's share of heads
    sent += 2 * (ring - 1) * keys
    if way in ("ring", "both") and ring > 1:
        sent += ring * keys * sizes.sum_bytes // sizes.element_bytes
    return sent


def can_share_heads(sizes: ContextSizes, ranks: int) -> bool:
    """Whether Ulysses can split these heads over `ranks`."""
    try:
        check_heads(sizes.heads, sizes.kv_heads, ranks)
    except ValueError:
        return False
    return True


@checked
def check_ways(sizes: ContextSizes, ranks: Count, way: Way, heads_ranks: Count = 1) -> tuple[int, int]:
    """Ranks of the ring, or of the gather, and ranks that share heads. Raises ValueError for invalid sizes."""
    if sizes.seq_len % ranks:
        raise ValueError(
            f"seq_len must be a multiple of the ranks: got {sizes.seq_len} on {ranks}; "
            f"try {-(-sizes.seq_len // ranks) * ranks}."
        )
    if way != "both" and heads_ranks != 1:
        raise ValueError(f'heads_ranks is for "both": got {heads_ranks} with {way!r}; leave it out.')
    if ranks % heads_ranks:
        raise ValueError(f"heads_ranks must divide the ranks: got {heads_ranks} of {ranks}; try 1.")
    u = ranks if way == "ulysses" else heads_ranks
    check_heads(sizes.heads, sizes.kv_heads, u)
    return ranks // u, u
