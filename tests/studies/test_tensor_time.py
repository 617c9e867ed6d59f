"""Seconds of a tensor-parallel layer: the closed form beside the simulator, and what it says about nodes."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib import CLUSTERS, launch, parallel
from lablib.models import GPT, GPTConfig
from lablib.studies import tensor_layer_time, tensor_times
from lablib.studies.tensor_time import WAYS

LARGE = parallel.LayerSizes(1, 4096, 8192, 64)


def gpt_step(num_layers: int, layer: parallel.LayerSizes, plan: Any) -> None:
    words = 8 * dist.get_world_size()
    sizes: Any = {"vocab_size": words, "max_seq_len": layer.seq_len, "d_ff": layer.hidden_size}
    model = parallel.parallelize(
        GPT(GPTConfig(num_layers, layer.width, layer.heads, **sizes), dtype=torch.bfloat16), plan=plan
    )
    tokens = torch.zeros(layer.batch, layer.seq_len, dtype=torch.long)
    dist.barrier()
    parallel.vocabulary_parallel_loss(model(tokens), tokens, words).backward()


def functional_step(num_layers: int, layer: parallel.LayerSizes, region: Any) -> None:
    """The same layers from the functions, with backward overlapped."""
    n, width, hidden = dist.get_world_size(), layer.width, layer.hidden_size

    def made(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)

    def norm() -> nn.Module:
        whole = nn.LayerNorm(width, dtype=torch.bfloat16)
        return parallel.NormOnShards(whole) if region == parallel.SEQUENCE else whole

    layers = []
    for _ in range(num_layers):
        pairs = [t for _ in range(3) for t in (made(width // n, width), made(width // n))]
        attention = parallel.AttentionShard._make([*pairs, made(width, width // n), made(width)])
        mlp = parallel.MLPShard(made(hidden // n, width), made(hidden // n), made(width, hidden // n), made(width))
        layers.append((norm(), attention, norm(), mlp))
    x = made(1, layer.seq_len // (n if region == parallel.SEQUENCE else 1), width)
    grad = torch.ones_like(x)
    dist.barrier()
    for first, attention, second, mlp in layers:
        d_head = width // layer.heads
        x = x + parallel.tensor_attention(first(x), attention, d_head, None, region, overlaps=True)
        x = x + parallel.tensor_mlp(second(x), mlp, None, region, overlaps=True)
    x.backward(grad)


def of_one_layer(step: Any, layer: parallel.LayerSizes, option: Any, cluster: str, ranks: int) -> float:
    """Seconds that a layer more takes."""
    seconds = []
    for num_layers in (1, 2):
        run = launch(step, num_layers, layer, option, ranks=ranks, cluster=cluster, fidelity="shapes")
        start_s = next(t for t in run.traffic.transfers if t.name == "barrier").end_s
        seconds.append(run.timeline.makespan_s - start_s)
    return seconds[1] - seconds[0]


THOROUGH = pytest.mark.thorough
CASES = [
    ("f and g", gpt_step, parallel.GPT_PLAN),
    ("sequence", gpt_step, parallel.GPT_SEQUENCE_PLAN),
    ("overlapped", functional_step, parallel.TENSOR),
    ("gathered again", functional_step, parallel.SEQUENCE),
]


@pytest.mark.parametrize(
    ("cluster", "ranks", "layer"),
    [
        ("dgx-h100", 8, LARGE),
        pytest.param("pcie-a100", 4, parallel.LayerSizes(1, 2048, 4096, 32), marks=THOROUGH),
        pytest.param("dgx-a100", 16, parallel.LayerSizes(1, 2048, 4096, 32), marks=THOROUGH),
    ],
)
@pytest.mark.parametrize(("way", "step", "option"), CASES, ids=[case[0] for case in CASES])
def test_the_closed_form_is_what_the_simulator_takes_for_a_layer(
    way: str, step: Any, option: Any, cluster: str, ranks: int, layer: parallel.LayerSizes
):
    expected = tensor_layer_time(layer, CLUSTERS[cluster], ranks, way)
    assert of_one_layer(step, layer, option, cluster, ranks) == pytest.approx(expected.layer_s, rel=0.03)


def test_within_a_node_twice_the_ranks_take_little_more_than_half_and_across_nodes_much_more():
    times = tensor_times(LARGE, CLUSTERS["dgx-h100"], [1, 2, 4, 8, 16, 32, 64])
    ratios = [after.layer_s / before.layer_s for before, after in pairwise(times)]
    assert max(ratios[:3]) < 0.65 and min(ratios[3:]) > 0.8
    shares = [time.exposed_s / time.layer_s for time in times]
    assert shares == sorted(shares) and shares[0] == 0 and shares[3] < 0.2 and shares[6] > 0.5
    # Where links are slow and the layer narrower, a second node saves nothing.
    before, after = tensor_times(parallel.LayerSizes(1, 2048, 4096, 32), CLUSTERS["pcie-a100"], [8, 16])
    assert after.layer_s > 0.98 * before.layer_s


def test_a_wider_layer_hides_more_and_more_sequences_hide_nothing():
    def share(layer: parallel.LayerSizes) -> float:
        time = tensor_layer_time(layer, CLUSTERS["pcie-a100"], 4)
        return time.exposed_s / time.compute_s

    base, wide = parallel.LayerSizes(1, 2048, 2048, 32), parallel.LayerSizes(1, 2048, 16384, 32)
    assert share(wide) < 0.3 * share(base)
    # With more of them products are more efficient, so there is even less to hide behind.
    assert share(base) < share(parallel.LayerSizes(8, 2048, 2048, 32)) < 1.5 * share(base)


def test_each_way_exposes_no_more_than_it_sends_and_hiding_more_exposes_less():
    for cluster in ("dgx-h100", "pcie-a100"):
        by_way = {way: tensor_layer_time(LARGE, CLUSTERS[cluster], 4, way) for way in WAYS}
        for time in by_way.values():
            assert 0 <= time.exposed_s <= time.communication_s
        exposed = [
            by_way[way].exposed_s for way in ("f and g", "overlapped", "sequence", "gathered again", "in chunks")
        ]
        assert exposed[1] < exposed[0]
        assert exposed[4] < exposed[3] < exposed[2]
    # On NVLink every message of chunks is shorter than the product beside it: the sums of norms are what is left.
    chunks = tensor_layer_time(LARGE, CLUSTERS["dgx-h100"], 4, "in chunks")
    sums_s = tensor_layer_time(LARGE, CLUSTERS["dgx-h100"], 4, "sequence").exposed_s - by_collectives(4)
    assert chunks.exposed_s == pytest.approx(sums_s)


def by_collectives(ranks: int) -> float:
    """Seconds of the collectives of activations alone: those of f and g."""
    return tensor_layer_time(LARGE, CLUSTERS["dgx-h100"], ranks).exposed_s


def test_one_rank_sends_nothing_in_any_way():
    found = {tensor_layer_time(LARGE, CLUSTERS["dgx-h100"], 1, way).layer_s for way in WAYS}
    assert len(found) == 1
    assert tensor_layer_time(LARGE, CLUSTERS["dgx-h100"], 1, "in chunks").communication_s == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LARGE, 8, "by magic"), "way"),
        ((LARGE, 3, "f and g"), "heads must be a multiple of the ranks"),
        ((parallel.LayerSizes(1, 6, 64, 4), 4, "in chunks"), "seq_len must be a multiple of the ranks"),
        ((parallel.LayerSizes(1, 8, 64, 4, element_bytes=3), 4, "f and g"), "element_bytes must be one of"),
    ],
)
def test_what_cannot_be_priced_is_refused(arguments: Any, message: str):
    layer, ranks, way = arguments
    with pytest.raises(ValueError, match=message):
        tensor_layer_time(layer, CLUSTERS["dgx-h100"], ranks, way)
