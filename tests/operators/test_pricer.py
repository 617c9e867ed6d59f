"""A remembered price is the price, to the bit; and nothing that it hangs on is overlooked."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import DEVICES
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.operators import Pricer, op_cost

DEVICE = DEVICES["A100-80GB-SXM"]


def train_step(place: str) -> None:
    model = GPT(GPTConfig(num_layers=2, d_model=32, num_heads=4, vocab_size=64, max_seq_len=16), device=place)
    tokens = torch.zeros(2, 16, dtype=torch.long, device=place)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    next_token_loss(model(tokens), tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_a_training_step_is_priced_as_op_cost_prices_it_at_first_sight_and_at_second(place, calls_of):
    pricer = Pricer(DEVICE)
    for _ in range(2):
        calls = calls_of(lambda: train_step(place))
        assert len(calls) > 100
        for call in calls:
            assert pricer.cost(*call) == op_cost(*call, device=DEVICE)
    assert len(pricer) < len(calls)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans()), min_size=2, max_size=12))
def test_no_two_calls_of_different_price_are_taken_for_one(shapes):
    pricer = Pricer(DEVICE)
    add, cat, fused = torch.ops.aten.add.Tensor, torch.ops.aten.cat.default, torch.ops.aten.convolution.default
    for rows, columns, is_wide, is_expanded in shapes:
        x = torch.empty(512 * rows, 512 * columns, dtype=torch.float64 if is_wide else torch.float32, device="meta")
        y = x[:1].expand_as(x) if is_expanded else x
        for op, args in ((add, (x, y)), (cat, ([x, y],)), (cat, ([x], rows % 2))):
            out = op(*args)
            assert pricer.cost(op, args, {}, out) == op_cost(op, args, {}, out, DEVICE)
        image, weight = x[None, None], torch.empty(1, 1, 3, 3, dtype=x.dtype, device="meta")
        args = (image, weight, None, [rows, rows], [0, 0], [columns, columns], False, [0, 0], 1)
        out = fused(*args)
        assert pricer.cost(fused, args, {}, out) == op_cost(fused, args, {}, out, DEVICE)


def test_a_causal_mask_and_the_precision_of_float32_are_part_of_the_question(calls_of):
    pricer = Pricer(DEVICE)
    q = torch.empty(1, 8, 512, 64)
    times = [
        [pricer.cost(*call).time_s for call in calls_of(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=c))]  # noqa: B023
        for c in (False, True)
    ]
    assert times[1] < times[0]
    x = torch.empty(2048, 2048, device="meta")
    call = (torch.ops.aten.mm.default, (x, x), {}, x)
    before = torch.get_float32_matmul_precision()
    full_s = pricer.cost(*call).time_s
    try:
        torch.set_float32_matmul_precision("high")
        assert pricer.cost(*call).time_s < full_s / 4
    finally:
        torch.set_float32_matmul_precision(before)
    assert pricer.cost(*call).time_s == full_s


def test_a_convolution_uses_tf32_unless_the_program_forbids_it_and_a_product_only_if_it_allows_it():
    """torch's defaults, on a device that has TF32 and on one that has not."""
    x = torch.empty(64, 256, 64, 64, device="meta")
    image, weight = x[:1], torch.empty(256, 256, 3, 3, device="meta")
    args = (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    conv = (torch.ops.aten.convolution.default, args, {}, torch.ops.aten.convolution.default(*args))
    product = (torch.ops.aten.mm.default, (x[0, 0], x[0, 0]), {}, x[0, 0])
    modern, old = Pricer(DEVICE), Pricer(DEVICES["V100-32GB-SXM2"])
    assert modern.cost(*conv).dtype == "tfloat32" and modern.cost(*product).dtype == "float32"
    fast_s, old_s = modern.cost(*conv).time_s, old.cost(*conv).time_s
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert modern.cost(*conv).dtype == "float32" and modern.cost(*conv).time_s > 4 * fast_s
        assert modern.cost(*conv) == op_cost(*conv, device=DEVICE)
        assert old.cost(*conv).time_s == old_s
    assert modern.cost(*conv).time_s == fast_s
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert modern.cost(*product).dtype == "tfloat32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_it_forgets_the_oldest_price_when_it_is_full():
    pricer = Pricer(DEVICE, capacity=3)
    op = torch.ops.aten.relu.default
    for size in (1, 2, 3, 4, 5, 1):
        x = torch.empty(size * 1000)
        assert pricer.cost(op, (x,), {}, x) == op_cost(op, (x,), {}, x, DEVICE)
        assert len(pricer) <= 3


def test_a_pricer_of_another_device_has_other_prices():
    x = torch.empty(10_000_000, device="meta")
    fast = replace(DEVICE, memory_bandwidth_bytes_per_s=1e15)
    call = (torch.ops.aten.relu.default, (x,), {}, x)
    assert Pricer(fast).cost(*call).time_s < Pricer(DEVICE).cost(*call).time_s


def test_a_pricer_without_memory_is_refused():
    with pytest.raises(ValueError, match="capacity must be at least 1: got 0"):
        Pricer(DEVICE, capacity=0)
