"""What tensor-parallel layers keep and send: closed forms, the paper's, and to the byte what the simulator counts."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import CLUSTERS, launch, parallel
from lablib.models import GPT, GPTConfig

AFTER = 12345  # bytes of a block that says where forward ends
_DGX = CLUSTERS["dgx-h100"]
NO_LATENCY = _DGX.replace(intra=replace(_DGX.intra, latency_s=0.0), collective_overhead_s=0.0)  # so a ring is fastest


def config(layer: parallel.LayerSizes, num_layers: int, ranks: int) -> GPTConfig:
    sizes: Any = {"vocab_size": 8 * ranks, "max_seq_len": layer.seq_len, "d_ff": layer.hidden_size}
    return GPTConfig(num_layers, layer.width, layer.heads, **sizes)


def plan_of(layer: parallel.LayerSizes, plan: Any, num_layers: int) -> Callable[[], Tensor]:
    dtype = {2: torch.bfloat16, 8: torch.float64}[layer.element_bytes]
    model = parallel.parallelize(GPT(config(layer, num_layers, dist.get_world_size()), dtype=dtype), plan=plan)
    return lambda: model(torch.zeros(layer.batch, layer.seq_len, dtype=torch.long))


def functional(layer: parallel.LayerSizes, gathers_again: bool, num_layers: int) -> Callable[[], Tensor]:
    """Layers from the functions, with sequence parallelism."""
    dtype = {2: torch.bfloat16, 8: torch.float64}[layer.element_bytes]
    width, hidden = layer.width, layer.hidden_size

    def made(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    weights = [(made(width, width), made(width)) for _ in range(4)]
    attention = parallel.shard_attention(
        parallel.AttentionShard(*(t for pair in weights for t in pair)), layer.heads, layer.heads
    )
    mlp = parallel.shard_mlp(parallel.MLPShard(made(hidden, width), made(hidden), made(width, hidden), made(width)))
    norms = [parallel.NormOnShards(nn.LayerNorm(width, dtype=dtype)) for _ in range(2)]
    own = made(layer.batch, layer.seq_len // dist.get_world_size(), width)

    def forward() -> Tensor:
        x = own * 1
        for _ in range(num_layers):
            d_head = width // layer.heads
            x = x + parallel.tensor_attention(
                norms[0](x), attention, d_head, None, parallel.SEQUENCE, overlaps=gathers_again
            )
            x = x + parallel.tensor_mlp(norms[1](x), mlp, None, parallel.SEQUENCE, overlaps=gathers_again)
        return x

    return forward


def kept(make: Callable[..., Callable[[], Tensor]], layer: parallel.LayerSizes, option: object, ranks: int) -> int:
    """Bytes that a layer more leaves behind: the second of two. What a collective filled is counted with the rest."""

    def program(num_layers: int) -> None:
        forward = make(layer, option, num_layers)
        y = forward()
        torch.zeros(AFTER, dtype=torch.uint8)
        del y

    held = []
    for num_layers in (1, 2):
        memory = launch(program, num_layers, ranks=ranks, fidelity="shapes").memory
        after = next(block for block in memory.allocations if block.size_bytes == AFTER and block.rank == 0)
        curves = memory.curve(0)[1]
        held.append(sum(int(curves[name][after.start_event - 1]) for name in ("activation", "communication")))
    return held[1] - held[0]


def drawn_layers() -> st.SearchStrategy[tuple[int, parallel.LayerSizes]]:
    def sizes(
        n: int, batch: int, rows: int, heads: int, d_head: int, hidden: int, size: int
    ) -> tuple[int, parallel.LayerSizes]:
        statistic = 8 if size == 8 else 4
        return n, parallel.LayerSizes(batch, n * rows, n * heads * d_head, n * heads, n * hidden, size, statistic)

    few, ranks, size = st.integers(1, 4), st.integers(1, 4), st.sampled_from([2, 8])
    return st.builds(sizes, ranks, few, few, few, few, st.integers(1, 9), size)


WAYS = {
    "f and g": (plan_of, parallel.GPT_PLAN, {}),
    "sequence": (plan_of, parallel.GPT_SEQUENCE_PLAN, {"sequence": True}),
    "sequence, functions": (functional, False, {"sequence": True}),
    "gathered again": (functional, True, {"sequence": True, "gathers_again": True}),
}


@pytest.mark.parametrize("way", WAYS)
@given(drawn=drawn_layers())
@settings(max_examples=4)
def test_a_layer_keeps_to_the_byte_what_the_closed_form_says(way: str, drawn: tuple[int, parallel.LayerSizes]):
    ranks, layer = drawn
    make, option, options = WAYS[way]
    if ranks == 1:
        options = {}
    assert kept(make, layer, option, ranks) == parallel.kept_bytes(layer, ranks, **options)


def korthikanti_bytes(layer: parallel.LayerSizes, ranks: int, sequence: bool = False) -> float:
    """The paper's bytes from the rows of lablib: without those it does not count, with dropout masks and scores."""
    rows = parallel.kept_by_layer(layer, ranks, sequence=sequence, gathers_again=sequence)
    ours = sum(row.size_bytes for row in rows if row.name not in ("statistics of norms", "logsumexp of scores"))
    masks = 2 * layer.tokens * layer.width / (ranks if sequence else 1)
    return ours + masks + layer.tokens * layer.heads * layer.seq_len * (2 * layer.element_bytes + 1) / ranks


@given(st.integers(1, 8), st.integers(1, 100), st.integers(1, 10), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_the_papers_equations_1_to_4_are_ours_with_masks_and_scores(b: int, s: int, d: int, t: int, sequence: bool):
    """Korthikanti et al., 2022, arXiv 2205.05198; 5 a s / h bytes of scores."""
    layer = parallel.LayerSizes(b, 8 * s, 16 * d, 8)
    scores = 5 * 8 * 8 * s / (16 * d)
    expected = 8 * s * b * 16 * d * ((34 + scores) / t if sequence else 10 + (24 + scores) / t)
    assert korthikanti_bytes(layer, t, sequence=sequence) == pytest.approx(expected)


def test_what_gpt_3_keeps_in_a_layer_on_8_ranks():
    """s 2048, b 1, h 12288, a 96: 34 s b h = 0.856 GB and 5 a s^2 b = 2.013 GB on one rank (figure 1's setting)."""
    gpt3 = parallel.LayerSizes(1, 2048, 12288, 96)
    assert korthikanti_bytes(gpt3, 1) == 34 * 2048 * 12288 + 5 * 96 * 2048**2
    assert korthikanti_bytes(gpt3, 8, sequence=True) == (34 * 2048 * 12288 + 5 * 96 * 2048**2) / 8
    ways = [
        parallel.kept_bytes(gpt3, 8),
        parallel.kept_bytes(gpt3, 8, sequence=True),
        parallel.kept_bytes(gpt3, 8, sequence=True, gathers_again=True),
    ]
    in_stream = [way / gpt3.activation_bytes for way in ways]  # with few statistics: 4 + 12/8, 2 + 14/8, 16/8
    assert in_stream == pytest.approx([5.5, 3.75, 2.0], rel=0.005)
    assert [row.name for row in parallel.kept_by_layer(gpt3, 8) if not row.is_cut] == [
        "inputs of norms",
        "inputs of regions",
        "statistics of norms",
    ]


# ---- traffic ----


def step(layer: parallel.LayerSizes, plan: Any, num_layers: int) -> None:
    words = 8 * dist.get_world_size()
    forward = plan_of(layer, plan, num_layers)
    targets = torch.zeros(layer.batch, layer.seq_len, dtype=torch.long)
    parallel.vocabulary_parallel_loss(forward(), targets, words).backward()


@pytest.mark.parametrize("sequence", [False, True])
@given(drawn=drawn_layers(), num_layers=st.integers(1, 2))
@settings(max_examples=5)
def test_a_step_of_a_gpt_sends_what_the_closed_form_says(
    sequence: bool, drawn: tuple[int, parallel.LayerSizes], num_layers: int
):
    ranks, layer = drawn
    plan = parallel.GPT_SEQUENCE_PLAN if sequence else parallel.GPT_PLAN
    run = launch(partial(step, layer, plan, num_layers), ranks=ranks, cluster=NO_LATENCY, fidelity="shapes")
    loss_bytes = 8 if layer.element_bytes == 8 else 4
    share = 2 * (ranks - 1) / ranks
    expected = num_layers * parallel.layer_sent_bytes(layer, ranks, sequence=sequence)
    expected += share * 2 * layer.activation_bytes  # embedding forward, head backward; or half of both in each
    expected += share * 3 * layer.tokens * loss_bytes
    if sequence:  # gradients of the last norm and of the position embedding
        expected += share * (2 + layer.seq_len) * layer.width * layer.element_bytes
    transfers = [t for t in run.traffic.transfers if t.name != "broadcast"]
    for rank in range(ranks):
        assert sum(t.sent_bytes[rank] for t in transfers) == pytest.approx(expected)


def test_a_layer_of_f_and_g_is_four_all_reduces_and_sequence_parallelism_sends_the_same():
    layer = parallel.LayerSizes(2, 64, 128, 8)
    all_reduce = 2 * 7 / 8 * 2 * 64 * 128 * 2
    assert parallel.layer_sent_bytes(layer, 8) == 4 * all_reduce
    norms_and_biases = 2 * 7 / 8 * 6 * 128 * 2
    assert parallel.layer_sent_bytes(layer, 8, sequence=True) == 4 * all_reduce + norms_and_biases
    again = parallel.layer_sent_bytes(layer, 8, sequence=True, gathers_again=True)
    assert again == 5 * all_reduce + norms_and_biases
    assert parallel.layer_sent_bytes(layer, 1, sequence=True) == 0


# ---- two dimensions ----


@given(st.integers(2, 12), st.integers(1, 50), st.integers(1, 64))
def test_2d_wins_above_a_number_of_tokens(side: int, tokens: int, width: int):
    ranks = side**2
    layer = parallel.LayerSizes(1, tokens * ranks, width * ranks, ranks)
    wins = parallel.two_dimensional_sent_bytes(layer, ranks) < parallel.layer_sent_bytes(layer, ranks)
    assert wins == (layer.tokens > parallel.fewest_tokens_for_2d(layer.width, ranks))


def test_2d_on_64_ranks_sends_what_its_paper_says():
    """Optimus, table 1: forward (7 b s h + 12 h^2) blocks travel, of which each rank has 1 / p; backward twice that."""
    layer = parallel.LayerSizes(4, 512, 1024, 64)
    numbers = 7 * 4 * 512 * 1024 + 12 * 1024**2
    assert parallel.two_dimensional_sent_bytes(layer, 64) == 3 * (8 - 1) / 64 * numbers * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer: parallel.kept_bytes(layer, 3), "heads must be a multiple of the ranks: got 8 and 3"),
        (
            lambda layer: parallel.kept_bytes(layer, 8, sequence=True),
            "seq_len must be a multiple of the ranks: got 6 and 8",
        ),
        (lambda layer: parallel.kept_bytes(layer, 2, gathers_again=True), "gathers_again needs sequence parallelism"),
        (lambda layer: parallel.two_dimensional_sent_bytes(layer, 8), "a square of ranks: got 8; try 4"),
    ],
)
def test_sizes_that_cannot_be_are_refused(call: Callable, message: str):
    with pytest.raises(ValueError, match=message):
        call(parallel.LayerSizes(2, 6, 64, 8))
