"""ZeRO++: gradients of ZeRO-3, a quarter of its bytes across nodes, and when that is twice the speed."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, Traffic, compress, find_cluster, launch
from lablib.parallel import Zero, node_mesh
from lablib.parallel.zero.shards import all_gather_shards

few = settings(max_examples=5, deadline=None)
NODES, LOCAL = (2, 3, 4), (2, 4, 8)


def layers(width: int, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3))).to(dtype)


def step(local: int, width: int, parts: str, dtype: torch.dtype = torch.float32, num_steps: int = 1):
    """Gradients of the last step in float32, and bytes of the second copy; `parts` of qwZ, hpZ and qgZ are on."""
    mesh, options = node_mesh(local), {}
    gather = compress.quantized_all_gather if "qwZ" in parts else all_gather_shards
    kept = compress.SecondaryShards(mesh, gather)
    options["all_gather"] = kept.forward if "hpZ" in parts else gather
    if "hpZ" in parts:
        options["backward_all_gather"] = kept.backward
    if parts == "qwZ hpZ qgZ":
        options = compress.zero_plus_plus_options(mesh)
        kept = options["all_gather"].__self__
    elif "qgZ" in parts:
        options["reduce_scatter"] = lambda full, shard, _: compress.hierarchical_reduce_scatter(full, shard, mesh)
    zero = Zero(layers(width, dtype), partial(torch.optim.SGD, lr=0.1), stage=3, **options)
    data = torch.randn(4, width, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
    for number in range(num_steps):
        if number:
            zero.step()
            zero.zero_grad()
        zero(data).float().square().mean().backward()
    return {name: grad.float() for name, grad in zero.full_gradients().items()}, kept.size_bytes


def on_nodes(nodes: int, local: int, *args):
    return launch(
        step, local, *args, ranks=nodes * local, cluster=find_cluster("dgx-a100").replace(devices_per_node=local)
    )


@few
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9))
def test_hpz_changes_no_bit_of_the_gradients(nodes, local, width):
    plain, kept = (on_nodes(nodes, local, width, parts, torch.float32, 2) for parts in ("", "hpZ"))
    for (a, _), (b, size_bytes) in zip(plain.values, kept.values, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        padded = -(-width * width // (nodes * local)) * nodes * local
        assert size_bytes == 3 * 4 * padded / local


def test_gradients_of_all_three_are_near_those_of_zero3():
    plain, quantized = (on_nodes(2, 2, 32, parts).values[0][0] for parts in ("", "qwZ hpZ qgZ"))
    for name, grad in plain.items():
        assert (quantized[name] - grad).abs().max() < 0.25 * grad.abs().max()
        assert (quantized[name] - grad).norm() < 0.2 * grad.norm()


def level_of_step(nodes: int, local: int, parts: str, width: int = 256) -> dict[str, compress.LevelBytes]:
    """Bytes a node in each of the three collectives of a step in bfloat16, as the simulator routed them."""
    transfers = on_nodes(nodes, local, width, parts, torch.bfloat16).traffic.transfers
    gathers = [t for t in transfers if "gather" in t.name]
    # Three gathers in forward, as many in backward (on every node, where they stay inside), three for `full_gradients`.
    rest = len(gathers) - 6
    backward = gathers[3 : 3 + rest]
    assert rest == (3 * nodes if "hpZ" in parts else 3)
    scatters = [t for t in transfers if "all_to_all" in t.name or "scatter" in t.name]
    named = {"forward": gathers[:3], "backward": backward, "gradients": scatters}
    found = {name: compress.level_bytes(Traffic(tuple(each)), local) for name, each in named.items()}
    return {name: compress.LevelBytes(each.inside / nodes / 3, each.across / nodes / 3) for name, each in found.items()}


FAST = ((2, 2), (3, 4))  # the others show the same
SIZES = [pytest.param(n, k, marks=() if (n, k) in FAST else pytest.mark.thorough) for n in NODES for k in LOCAL]


@pytest.mark.parametrize(("nodes", "local"), SIZES)
def test_bytes_on_each_level_are_the_closed_form(nodes, local):
    shard_numel = -(-256 * 256 // (nodes * local))
    assert level_of_step(nodes, local, "") == compress.zero3_bytes(shard_numel, nodes, local)
    assert level_of_step(nodes, local, "qwZ hpZ qgZ") == compress.zero_plus_plus_bytes(shard_numel, nodes, local)


def test_a_quarter_crosses_between_nodes():
    """The paper's 3 M and 0.75 M, of which (N-1)/N cross, with 4 bytes of scale for each 256 numbers."""
    for nodes in NODES:
        for local in LOCAL:
            numel = 2**20
            model_bytes = 2 * numel * nodes * local
            before = sum((one.across for one in compress.zero3_bytes(numel, nodes, local).values()), 0)
            parts = compress.zero_plus_plus_bytes(numel, nodes, local)
            crossing = (nodes - 1) / nodes * model_bytes
            assert before == 3 * crossing
            assert parts["forward"].across == (1 / 2 + 4 / 256 / 2) * crossing
            assert parts["backward"].across == 0
            assert parts["gradients"].across == (1 / 4 + 4 / 256 / 2) * crossing
            assert before / sum(one.across for one in parts.values()) == pytest.approx(4 / (1 + 1 / 48), rel=1e-12)


@few
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 600),
    st.sampled_from([compress.Int4(), compress.Int8(block=32), compress.Asymmetric()]),
)
def test_one_hop_sends_a_node_as_often_as_it_has_ranks(nodes, local, numel, quantizer):
    def program(hops: int):
        full, shard = torch.randn(numel * nodes * local), torch.empty(numel)
        if hops == 1:
            compress.quantized_reduce_scatter(full, shard, None, quantizer).wait()
        else:
            compress.hierarchical_reduce_scatter(full, shard, node_mesh(local), quantizer).wait()

    cluster = find_cluster("dgx-a100").replace(devices_per_node=local)
    one, two = (
        compress.level_bytes(launch(program, n, ranks=nodes * local, cluster=cluster).traffic, local) for n in (1, 2)
    )
    expected = compress.zero_plus_plus_bytes(numel, nodes, local, gradients=quantizer)["gradients"]
    assert (two.inside, two.across) == (nodes * expected.inside, nodes * expected.across)
    assert one.across == local * two.across and one.inside * nodes == two.inside


# ---- the speedup ----


def test_twice_the_speed_needs_compute_below_two_fifths_of_the_wires():
    """(c + t) / (c + t / 4) = 2.16 where c / t = (1 - 2.16 / 4) / (2.16 - 1) = 0.3966."""
    nodes, bandwidth, params = 24, 12.5e9, 18e9  # 100 Gb/s out of each node
    wire_s = 3 * 2 * params * 23 / 24 / bandwidth
    tokens = 0.46 / 1.16 * wire_s * 60e12 / (8 * params)
    assert compress.zero_plus_plus_speedup(params, tokens, 60e12, bandwidth, nodes).factor == pytest.approx(2.16)
    assert 1300 < tokens < 1500  # so a thousand and more tokens a GPU at 60 TFLOP/s: plausible on one slow link
    assert (
        compress.zero_plus_plus_speedup(params, tokens, 60e12, 8 * bandwidth, nodes).factor < 1.25
    )  # and not on eight


@given(
    tokens=st.floats(1, 1e6),
    bandwidth=st.floats(1e8, 1e12),
    nodes=st.integers(2, 1000),
    overlap=st.floats(0, 1),
    params=st.floats(1e6, 1e12),
)
def test_the_speedup_lies_between_one_and_four(tokens, bandwidth, nodes, overlap, params):
    found = compress.zero_plus_plus_speedup(params, tokens, 1e14, bandwidth, nodes, overlap)
    assert 1 <= found.factor <= 4 and found.compute_s <= found.zero_plus_plus_s <= found.zero3_s
    more = compress.zero_plus_plus_speedup(params, tokens, 1e14, 2 * bandwidth, nodes, overlap)
    assert more.zero3_s <= found.zero3_s


# ---- bad input ----


def test_a_copy_that_forward_did_not_make_is_an_error():
    def program(is_backward: bool):
        kept = compress.SecondaryShards(node_mesh(2))
        if is_backward:
            kept.backward(torch.ones(2), torch.empty(4))
        else:
            kept.forward(torch.ones(2), torch.empty(2), node_mesh(1).get_group("local"))

    with pytest.raises(RankError, match="backward gathers the copy that forward kept: there is none; pass"):
        launch(program, True, ranks=2)
    with pytest.raises(
        RankError, match="SecondaryShards needs the mesh of the ranks that share: got 1 ranks and a mesh of 2"
    ):
        launch(program, False, ranks=2)


def zeros_and_quantized() -> list[Tensor]:
    return [*step(1, 16, "qwZ hpZ qgZ")[0].values(), *step(2, 16, "qwZ hpZ qgZ")[0].values()]


@pytest.mark.slow
def test_gloo_gives_the_same_bits_as_the_simulator():
    real, simulated = launch(zeros_and_quantized, ranks=2, backend="gloo"), launch(zeros_and_quantized, ranks=2)
    torch.testing.assert_close(real.values, simulated.values, rtol=1e-6, atol=1e-7)
