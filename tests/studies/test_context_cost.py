"""Bytes and seconds of shared attention: closed forms beside the simulator and a published table."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import CLUSTERS, Cluster, launch
from lablib.parallel import (
    ORDERS,
    ContextSizes,
    Mesh,
    UlyssesRing,
    context_kept_bytes,
    context_sent_bytes,
    gathered_attention,
    ring_attention,
    ulysses_attention,
)
from lablib.studies import (
    PUBLISHED_RINGS,
    context_efficiencies,
    context_time,
    context_times,
    counted_efficiencies,
    fair_share_s,
    predicted_efficiencies,
)

FUNCTIONS: Any = {"ring": ring_attention, "gather": gathered_attention, "ulysses": ulysses_attention}
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
THOROUGH = pytest.mark.thorough


def attend(sizes: ContextSizes, way: str, order: str, u: int, dtype: torch.dtype, is_forward: bool) -> None:
    n = dist.get_world_size()
    make, function = ORDERS[order], FUNCTIONS.get(way)
    if way == "both":
        mesh = Mesh(ring=n // u, heads=u)
        both = UlyssesRing(mesh.group("heads"), mesh.group("ring"), make)
        make, function = both.order, both.attention
    t, heads = sizes.seq_len // n, (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    q, k, v = (torch.zeros(sizes.batch, h, t, sizes.d_head, dtype=dtype, requires_grad=True) for h in heads)
    grad = torch.ones_like(q, requires_grad=False)
    made = make(sizes.seq_len, n)
    dist.barrier()
    with torch.set_grad_enabled(not is_forward):
        o = function(q, k, v, made, None)
    if not is_forward:
        o.backward(grad)


def simulated(
    sizes: ContextSizes, cluster: str | Cluster, ranks: int, *args: Any, is_forward: bool = False
) -> tuple[float, Any]:
    dtype = {2: torch.bfloat16, 4: torch.float32}[sizes.element_bytes]
    run = launch(attend, sizes, *args, dtype, is_forward, ranks=ranks, cluster=cluster, fidelity="shapes")
    start_s = next(t for t in run.traffic.transfers if t.name == "barrier").end_s
    return run.timeline.makespan_s - start_s, run.traffic


@pytest.mark.parametrize(
    ("cluster", "ranks", "sizes"),
    [
        ("dgx-h100", 8, LLAMA),
        pytest.param("pcie-a100", 8, ContextSizes(2, 8 * 1024, 16, 16, 64, 4), marks=THOROUGH),
        pytest.param("dgx-a100", 16, replace(LLAMA, seq_len=2**17), marks=THOROUGH),
    ],
)
@pytest.mark.parametrize(("way", "order", "u"), CASES, ids=[" ".join(case[:2]) for case in CASES])
def test_the_closed_form_is_what_the_simulator_takes_and_sends(
    way: str, order: str, u: int, cluster: str, ranks: int, sizes: ContextSizes
):
    expected = context_time(sizes, CLUSTERS[cluster], ranks, way, order, u)
    found_s, traffic = simulated(sizes, cluster, ranks, way, order, u)
    assert found_s == pytest.approx(expected.time_s, rel=0.03)
    for rank in range(ranks):
        assert traffic.sent_bytes(rank) == expected.sent_bytes == context_sent_bytes(sizes, ranks, way, u)


def test_a_key_value_head_that_is_repeated_costs_its_copies():
    """So short that they count; kernels do not wait for their launches."""
    sizes, node = ContextSizes(4, 4 * 256, 16, 1, 128), CLUSTERS["dgx-h100"]
    node = replace(node, device=replace(node.device, launch_s=1e-12))
    expected = context_time(sizes, node, 4, "ulysses")
    found_s, _ = simulated(sizes, node, 4, "ulysses", "contiguous", 1)
    assert found_s == pytest.approx(expected.time_s, rel=0.04)


def test_ways_that_heads_forbid_are_left_out():
    many = ContextSizes(1, 2**16, 8, 8, 64)
    assert "ulysses" not in context_efficiencies(many, CLUSTERS["dgx-h100"], 16, [2**16], 8)
    assert "ulysses" in context_efficiencies(many, CLUSTERS["dgx-h100"], 8, [2**16])


@pytest.mark.parametrize("way", ["ring", "gather", "ulysses"])
def test_forward_alone_is_what_the_simulator_takes(way: str):
    order = "contiguous" if way == "ulysses" else "zigzag"
    expected = context_time(LLAMA, CLUSTERS["dgx-h100"], 8, way, order, forward_only=True)
    found_s, _ = simulated(LLAMA, "dgx-h100", 8, way, order, 1, is_forward=True)
    assert found_s == pytest.approx(expected.time_s, rel=0.03)


def test_one_rank_sends_nothing_and_takes_its_share():
    for way, order, u in CASES:
        if u == 1:
            time = context_time(LLAMA, CLUSTERS["dgx-h100"], 1, way, order)
            assert time.sent_bytes == 0 and time.exposed_s == 0
            assert time.time_s == pytest.approx(
                fair_share_s(LLAMA, CLUSTERS["dgx-h100"], 1), rel=0.03
            )  # zeros, sums, casts


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
            dtype = {2: torch.bfloat16, 4: torch.float32}[width]
            attend(sizes, way, "contiguous", u, dtype, False)
        return sum(kept.values())

    assert launch(program, ranks=4).values == [context_kept_bytes(sizes, 4, way, u)] * 4


def test_where_each_way_wins():
    lengths = [2**i for i in range(13, 21)]
    node = context_efficiencies(LLAMA, CLUSTERS["dgx-h100"], 8, lengths, 2)
    assert all(values == sorted(values) for values in node.values())  # longer is better for all of them
    assert node["contiguous ring"][-1] == pytest.approx(8 / 15, rel=0.02)
    assert min(values[-1] for name, values in node.items() if name != "contiguous ring") > 0.97
    assert all(max(node, key=lambda way: node[way][i]) == "ulysses" for i in range(len(lengths)))
    # Over two nodes heads are shared within the node; a ring over all ranks waits for the link between nodes.
    nodes = context_efficiencies(LLAMA, CLUSTERS["dgx-a100"], 16, lengths, 8)
    assert all(
        max(nodes, key=lambda way: nodes[way][i]) == "ulysses of 8 in a zigzag ring" for i in range(len(lengths))
    )
    # With slow links and a long sequence, a ring that hides its messages is better than an all-to-all that does not.
    link = replace(CLUSTERS["pcie-a100"].intra, bandwidth_bytes_per_s=12.5e9)
    slow = context_efficiencies(LLAMA, replace(CLUSTERS["pcie-a100"], intra=link), 8, lengths)
    assert slow["zigzag ring"][0] < slow["ulysses"][0] and slow["zigzag ring"][3] > slow["ulysses"][3]


def test_a_ring_exposes_only_its_last_gradients_once_its_blocks_are_long():
    cluster = CLUSTERS["pcie-a100"]
    times = context_times(LLAMA, cluster, 8, [2**i for i in range(12, 20)])
    d_s = [8 * 2 * (time.seq_len // 8) * 128 * 4 / cluster.intra.bandwidth_bytes_per_s for time in times]
    assert times[0].exposed_s > 5 * d_s[0]
    assert times[-1].exposed_s == pytest.approx(d_s[-1], rel=0.05)
    # With 16 bits and zigzag: t > 2 R G / (L H), R the FLOP/s that the kernel reaches.
    rate = 4 * 2**18 * 2**18 / 2 * 32 * 128 / fair_share_s(replace(LLAMA, seq_len=2**18), cluster, 1, forward_only=True)
    hidden = 2 * rate * 8 / (cluster.intra.bandwidth_bytes_per_s * 32)
    for t, is_hidden in ((hidden / 2, False), (2 * hidden, True)):
        length = 8 * 2 * round(t / 2)
        one = context_time(replace(LLAMA, seq_len=length), cluster, 8, forward_only=True)
        assert (one.exposed_s == 0) == is_hidden


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
        ((LLAMA, 0, "ring"), "ranks must be a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        context_sent_bytes(*arguments)


def test_sizes_and_orders_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_kv_heads: got 4 and 3"):
        ContextSizes(1, 8, 4, 3, 2)
    with pytest.raises(ValueError, match="seq_len must be a whole number"):
        ContextSizes(1, 0, 4, 4, 2)
    with pytest.raises(ValueError, match="order"):
        context_time(LLAMA, CLUSTERS["dgx-h100"], 8, "ring", "zigzig")
    with pytest.raises(ValueError, match="element_bytes must be one of"):
        context_time(replace(LLAMA, element_bytes=3), CLUSTERS["dgx-h100"], 8)
    with pytest.raises(ValueError, match="got 8 tokens for the 16 pieces of zigzag on 8 ranks"):
        context_time(replace(LLAMA, seq_len=8), CLUSTERS["dgx-h100"], 8)
