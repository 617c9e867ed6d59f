"""The fused operator of attention, as torch dispatches it, costs what the closed form says."""

from math import isclose

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lablib.cost.attention import flash_compute_s
from lablib.hardware import Device
from lablib.operators.fused_attention import FusedAttention

DEVICE = Device("easy", {"float32": 1e12, "float16": 4e12}, memory_bytes=1e12, memory_bandwidth_bytes_per_s=1e18)


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [40, 64])
def test_the_fused_operator_costs_what_the_formula_says_with_data_and_without(place, causal, keys, priced):
    q = torch.empty(2, 3, 40, 16, device=place, requires_grad=True)
    k, v = (torch.empty(2, 3, keys, 16, device=place, requires_grad=True) for _ in range(2))
    grad, outs = torch.empty(2, 3, 40, 16, device=place), []
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    forward = priced(lambda: outs.append(fused(q, k, v, 0.0, causal)[0]), DEVICE)
    backward = priced(lambda: torch.autograd.grad(outs[0], (q, k, v), grad), DEVICE)
    for costs, is_backward in ((forward, False), (backward, True)):
        expected_s = flash_compute_s(2, 3, 40, keys, 16, "float32", DEVICE, causal=causal, backward=is_backward)
        assert [cost.time_s for _, cost in costs if cost.flops] == pytest.approx([expected_s], rel=1e-12)
    # FLOPs by torch's convention: the masked half is counted.
    assert [cost.flops for _, cost in forward] == [2 * 2 * 2 * 3 * 40 * keys * 16]


def test_inference_mode_which_takes_nothing_apart_costs_what_no_grad_does(priced):
    q, w = torch.empty(2, 4, 32, 16), torch.empty(24, 16)

    def program() -> None:
        torch.matmul(F.linear(F.scaled_dot_product_attention(q, q, q, is_causal=True), w), torch.empty(24, 8))

    with torch.no_grad():
        without = priced(program, DEVICE)
    with torch.inference_mode():
        within = priced(program, DEVICE)
    flops, seconds = zip(
        *((sum(c.flops for _, c in costs), sum(c.time_s for _, c in costs if c.flops)) for costs in (without, within)),
        strict=True,
    )
    assert flops[0] == flops[1] > 0 and isclose(*seconds, rel_tol=1e-9)


def test_a_fused_encoder_layer_has_the_flops_of_its_parts(priced):
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    with torch.no_grad():
        costs = dict(priced(lambda: layer(torch.zeros(2, 8, 64)), DEVICE))
    products = 2 * (2 * 8) * 64 * (3 * 64 + 64 + 2 * 128)
    attention = 4 * 2 * 8 * 8 * 64
    cost = costs["aten::_transformer_encoder_layer_fwd"]
    assert cost.flops == products + attention and cost.time_s > cost.flops / 1e12


class _Names(TorchDispatchMode):
    """The operators that run."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@given(st.data())
def test_attention_is_fused_without_values_where_it_is_with_values(data):
    heads, kv_heads = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    v_heads = data.draw(st.sampled_from([kv_heads, heads]))
    batch, width = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([4, 16]))
    kv_batch, v_width = data.draw(st.sampled_from([batch, 1])), data.draw(st.sampled_from([width, 8]))
    tokens, keys = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 5))
    options = {
        "enable_gqa": data.draw(st.booleans()),
        "is_causal": data.draw(st.booleans()),
        "dropout_p": data.draw(st.sampled_from([0.0, 0.0, 0.5])),
    }
    mask = data.draw(st.sampled_from(["none", "none", "bool", "float", "learned"]))
    seen = []
    for place in ("cpu", "meta"):
        q = torch.zeros(batch, heads, tokens, width, device=place)
        k = torch.zeros(kv_batch, kv_heads, keys, width, device=place)
        v = torch.zeros(kv_batch, v_heads, keys, v_width, device=place)
        kinds = {"bool": torch.bool, "float": torch.float32, "learned": torch.float32}
        kind = kinds.get(mask)
        masked = kind and torch.ones(tokens, keys, dtype=kind, device=place, requires_grad=mask == "learned")
        try:
            with _Names() as ran, FusedAttention():
                F.scaled_dot_product_attention(q, k, v, masked, **options)
        except RuntimeError:
            seen.append("refused")
        else:
            seen.append(any("flash" in name for name in ran.names))
    assert seen[0] == seen[1]
