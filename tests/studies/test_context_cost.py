"""Bytes and seconds of shared attention: closed forms, a published table, and what each way costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lablib import CLUSTERS, launch
from lablib.cost import GroupNetwork, collective_cost
from lablib.parallel import ContextSizes, context_sent_bytes
from lablib.parallel.context.bytes import check_ways
from lablib.studies import (
    PUBLISHED_RINGS,
    context_cost,
    context_efficiencies,
    counted_efficiencies,
    fair_share_s,
    predicted_efficiencies,
)
from lablib.studies.context_cost import attention_step

LLAMA = ContextSizes(1, 8 * 4096, 32, 8, 128)
CASES = [
    ("ring", "contiguous", 1),
    ("ring", "zigzag", 1),
    ("ring", "striped", 1),
    ("gather", "contiguous", 1),
    ("gather", "zigzag", 1),
    ("gather", "striped", 1),
    ("ulysses", "contiguous", 1),
    ("both", "zigzag", 4),
]


@pytest.mark.parametrize(("way", "order", "u"), CASES, ids=[" ".join(case[:2]) for case in CASES])
@pytest.mark.parametrize("sizes", [LLAMA, ContextSizes(2, 8 * 1024, 16, 16, 64, 4)], ids=["16 bits", "32 bits"])
def test_the_program_sends_the_bytes_of_the_closed_form(sizes: ContextSizes, way: str, order: str, u: int):
    cost = context_cost(sizes, CLUSTERS["dgx-h100"], 8, way, order, u)
    assert cost.sent_bytes == context_sent_bytes(sizes, 8, way, u)


@pytest.mark.parametrize("cluster", ["dgx-h100", "pcie-a100"])
def test_a_gather_and_an_all_to_all_are_exposed_whole(cluster: str):
    """The gather of keys and values, and the sum of their gradients; queries, keys, values there, the output back."""
    network, head = GroupNetwork(CLUSTERS[cluster], range(8)), LLAMA.head_bytes(LLAMA.seq_len // 8)
    calls = {
        "gather": [("all_gather", 16 * 8 * head), ("reduce_scatter", 16 * 8 * head)],
        "ulysses": 2 * [("all_to_all", (32 + 2 * 8) * head), ("all_to_all", 32 * head)],
    }
    for way, of_way in calls.items():
        expected_s = sum(collective_cost(name, float(size), network).time_s for name, size in of_way)
        assert context_cost(LLAMA, CLUSTERS[cluster], 8, way).exposed_s == pytest.approx(expected_s, rel=0.01)


def test_ways_that_heads_forbid_are_left_out():
    few = ContextSizes(1, 2**12, 2, 2, 64)
    assert "ulysses" not in context_efficiencies(few, CLUSTERS["dgx-h100"], 4, [2**12], 2)
    assert "ulysses" in context_efficiencies(few, CLUSTERS["dgx-h100"], 2, [2**12])


@pytest.mark.parametrize("way", ["ring", "gather", "ulysses"])
def test_one_rank_sends_nothing_and_takes_its_share_and_copies(way: str):
    """Zeros, sums, casts and copies take time as the length T, attention as T^2: their share halves as T doubles."""
    copies = {}
    for length in (2**15, 2**16, 2**17):
        sizes = replace(LLAMA, seq_len=length)
        cost, share_s = context_cost(sizes, CLUSTERS["dgx-h100"], 1, way), fair_share_s(sizes, CLUSTERS["dgx-h100"], 1)
        assert cost.sent_bytes == 0 and cost.exposed_s == pytest.approx(0, abs=1e-12)
        copies[length] = cost.time_s / share_s - 1
    assert 0 < copies[2**16] < 0.03 and (way != "ring" or copies[2**15] < 0.03)
    assert copies[2**15] == pytest.approx(2 * copies[2**16], rel=0.05)
    assert copies[2**16] == pytest.approx(2 * copies[2**17], rel=0.05)


def test_bytes_of_the_ways_with_as_many_key_value_heads_as_heads():
    """16 bits, per head's tokens: a ring 6 n - 4 of the keys, a gather 4 (n - 1), Ulysses 8 (n - 1) / n."""
    sizes = ContextSizes(1, 64, 8, 8, 4)
    for n in (2, 4, 8):
        x = 8 * sizes.head_bytes(64 // n)
        assert context_sent_bytes(sizes, n, "ring") == (2 * (n - 1) * 2 + n * 2 * 2) * x
        assert context_sent_bytes(sizes, n, "gather") == 4 * (n - 1) * x
        assert context_sent_bytes(sizes, n, "ulysses") == 8 * (n - 1) * x // n
        assert context_sent_bytes(sizes, n, "both", 1) == context_sent_bytes(sizes, n, "ring")
        assert context_sent_bytes(sizes, n, "both", n) == context_sent_bytes(sizes, n, "ulysses")
    few = replace(sizes, kv_heads=1)
    assert context_sent_bytes(few, 8, "ring") < context_sent_bytes(sizes, 8, "ring") / 7
    assert context_sent_bytes(few, 8, "ulysses") == context_sent_bytes(sizes, 8, "ulysses")  # repeated


def context_kept_bytes(sizes: ContextSizes, ranks: int, way: str, heads_ranks: int) -> int:
    """Bytes that attention between its projections keeps for backward on a rank: as the head of context/bytes.py."""
    ring, u = check_ways(sizes, ranks, way, heads_ranks)
    kv_heads, tokens = max(sizes.kv_heads, u) * (ring if way == "gather" else 1), sizes.seq_len // ranks
    lse = sizes.batch * sizes.heads * tokens * sizes.sum_bytes
    return (2 * sizes.heads + 2 * kv_heads) * sizes.head_bytes(tokens) + lse


@pytest.mark.parametrize(("way", "u"), [("ring", 1), ("gather", 1), ("ulysses", 1), ("both", 2)])
@pytest.mark.parametrize(("kv_heads", "width"), [(2, 2), (8, 4)])
def test_what_is_kept_for_backward_is_what_autograd_saves(way: str, u: int, kv_heads: int, width: int):
    sizes = ContextSizes(2, 64, 8, kv_heads, 4, width)

    def program() -> int:
        kept: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            alive.append(x)
            return x

        alive: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            attention_step(sizes, way, "contiguous", u, False)()
        return sum(kept.values())

    assert launch(program, ranks=4).values == [context_kept_bytes(sizes, 4, way, u)] * 4


@pytest.mark.parametrize("lengths", [[2**14, 2**20], pytest.param([2**14, 2**17, 2**20], marks=pytest.mark.thorough)])
def test_where_each_way_wins(lengths: list[int]):
    node = context_efficiencies(LLAMA, CLUSTERS["dgx-h100"], 8, lengths, 2)
    assert all(values == sorted(values) for values in node.values())  # longer is better for all of them
    assert node["contiguous ring"][-1] == pytest.approx(8 / 15, rel=0.02)
    assert min(values[-1] for name, values in node.items() if name != "contiguous ring") > 0.97
    assert all(max(node, key=lambda way: node[way][i]) == "ulysses" for i in range(len(lengths)))
    # Over two nodes heads are shared within the node; a ring over all ranks waits for the link between nodes.
    for length in lengths:
        ways = {
            way: context_cost(replace(LLAMA, seq_len=length), CLUSTERS["dgx-a100"], 16, way, heads_ranks=u).time_s
            for way, u in [("ring", 1), ("gather", 1), ("ulysses", 1), ("both", 8)]
        }
        assert min(ways, key=ways.__getitem__) == "both"


def test_with_slow_links_a_long_ring_that_hides_its_messages_is_better_than_an_all_to_all():
    link = replace(CLUSTERS["pcie-a100"].intra, bandwidth_bytes_per_s=12.5e9)
    slow = replace(CLUSTERS["pcie-a100"], intra=link)
    for length, ring_wins in ((2**13, False), (2**16, True)):
        ring, ulysses = (context_cost(replace(LLAMA, seq_len=length), slow, 8, way) for way in ("ring", "ulysses"))
        assert (ring.time_s < ulysses.time_s) == ring_wins


def test_a_ring_exposes_only_its_last_gradients_once_its_blocks_are_long():
    cluster = CLUSTERS["pcie-a100"]
    for length, is_long in ((2**12, False), (2**18, True)):
        cost = context_cost(replace(LLAMA, seq_len=length), cluster, 8)
        d_s = 8 * 2 * (length // 8) * 128 * 4 / cluster.intra.bandwidth_bytes_per_s
        assert cost.exposed_s == pytest.approx(d_s, rel=0.05) if is_long else cost.exposed_s > 5 * d_s
    # With 16 bits and zigzag: t > 2 R G / (L H), R the FLOP/s that the kernel reaches.
    rate = 4 * 2**18 * 2**18 / 2 * 32 * 128 / fair_share_s(replace(LLAMA, seq_len=2**18), cluster, 1, forward_only=True)
    hidden = 2 * rate * 8 / (cluster.intra.bandwidth_bytes_per_s * 32)
    for t, is_hidden in ((hidden / 2, False), (2 * hidden, True)):
        length = 8 * 2 * round(t / 2)
        one = context_cost(replace(LLAMA, seq_len=length), cluster, 8, forward_only=True)
        assert (one.exposed_s < 1e-4 * one.time_s) == is_hidden


# ---- the published table ----


def test_the_table_is_what_the_readme_says():
    """Its own percentages, printed beside its rates."""
    percent = [(52.1, 85.2, 74.4), (53.9, 90.2, 82.9), (51.4, 81.7, 69.6), (52.5, 89.8, 82.6)]
    for row, printed in zip(PUBLISHED_RINGS, percent, strict=True):
        assert [100 * value for value in row.efficiencies.values()] == pytest.approx(printed, abs=0.4)


def test_pairs_alone_say_eight_fifteenths_for_contiguous_and_all_for_the_others():
    assert list(counted_efficiencies().values()) == pytest.approx([8 / 15, 1.0, 1.0], abs=2e-4)


@pytest.mark.parametrize("row", PUBLISHED_RINGS, ids=lambda row: f"{row.gpu} {row.forward_only}")
def test_predicted_efficiencies_are_near_the_published_ones_but_for_striped(row: Any):
    found, table = predicted_efficiencies(row), row.efficiencies
    assert found["contiguous"] == pytest.approx(table["contiguous"], abs=0.02)
    assert found["zigzag"] == pytest.approx(table["zigzag"], abs=0.05)
    assert 0.05 < found["striped"] - table["striped"] < 0.14
    assert found["contiguous"] < found["striped"] < found["zigzag"]


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LLAMA, 8, "rings"), "ring"),
        ((replace(LLAMA, seq_len=100), 8, "ring"), "seq_len must be a multiple of the ranks: got 100 on 8; try 104"),
        ((LLAMA, 64, "ulysses"), "num_heads must be a multiple of the ranks.*try 32 ranks"),
        ((LLAMA, 8, "both", 3), "heads_ranks must divide the ranks: got 3 of 8; try 1"),
        ((LLAMA, 8, "ring", 2), 'heads_ranks is for "both": got 2'),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        context_sent_bytes(*arguments)


def test_sizes_and_orders_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_kv_heads: got 4 and 3"):
        ContextSizes(1, 8, 4, 3, 2)
    with pytest.raises(ValueError, match="order"):
        context_cost(LLAMA, CLUSTERS["dgx-h100"], 8, "ring", "zigzig")
    with pytest.raises(ValueError, match="element_bytes must be one of"):
        context_cost(replace(LLAMA, element_bytes=3), CLUSTERS["dgx-h100"], 8)
    with pytest.raises(ValueError, match="got 8 tokens for the 16 pieces of zigzag on 8 ranks"):
        context_cost(replace(LLAMA, seq_len=8), CLUSTERS["dgx-h100"], 8)
