"""Element-wise optimizers on shards: what a rank keeps of its shard is its shard of what one rank would keep."""

import io
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adamw import AdamW
from lablib.optim.lion import Lion
from lablib.optim.sophia import SophiaG
from tests.optim.drawn import drawn

BLOCK = 16
# Adam8bit is element-wise in whole blocks. AdamBF16 is so but for its random numbers.
ELEMENT_WISE = {
    "adamw": AdamW,
    "lion": Lion,
    "sophia": SophiaG,
    "adam8bit": partial(Adam8bit, block_size=BLOCK, min_8bit_size=0),
}


def take_steps(optimizer: Any, param: nn.Parameter, grads: list[Tensor]) -> None:
    for number, grad in enumerate(grads):
        param.grad = grad.clone()
        if isinstance(optimizer, SophiaG) and number % 2 == 0:
            optimizer.update_curvature(100)
        optimizer.step()


def saved_and_loaded(make: Any, optimizer: Any, param: nn.Parameter) -> tuple[Any, nn.Parameter]:
    """Both through a file, into objects that know nothing."""
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), param.detach()], file)
    file.seek(0)
    state, weights = torch.load(file)
    again = nn.Parameter(weights)
    other = make([again])
    other.load_state_dict(state)
    return other, again


def pieces(tensor: Tensor, borders: list[int]) -> list[Tensor]:
    return [piece.clone() for piece in tensor.detach().flatten().tensor_split(borders)]


@pytest.mark.parametrize("name", ELEMENT_WISE)
@settings(max_examples=8)
@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 20),
    cuts=st.lists(st.integers(0, 25), max_size=4),
    is_wide=st.booleans(),
)
def test_the_state_of_a_shard_is_the_shard_of_the_state(name, rows, columns, cuts, is_wide):
    """To the bit, with uneven and empty shards, and with a save and a load between the steps of either."""
    dtype, make = torch.float64 if is_wide else torch.float32, ELEMENT_WISE[name]
    weights = drawn(rows, columns, dtype=dtype)
    grads = [drawn(rows, columns, seed=9 + i, dtype=dtype) for i in range(4)]
    borders = sorted(cut * BLOCK for cut in cuts)
    whole = nn.Parameter(weights.clone())
    optimizer = make([whole])
    take_steps(optimizer, whole, grads[:2])
    optimizer, whole = saved_and_loaded(make, optimizer, whole)
    take_steps(optimizer, whole, grads[2:])
    states = {key: value for key, value in optimizer.state[whole].items() if isinstance(value, Tensor)}
    for rank, piece in enumerate(pieces(weights, borders)):
        shard = nn.Parameter(piece)
        of_shard = make([shard])
        mine = [pieces(grad, borders)[rank] for grad in grads]
        take_steps(of_shard, shard, mine[:2])
        of_shard, shard = saved_and_loaded(make, of_shard, shard)
        take_steps(of_shard, shard, mine[2:])
        assert torch.equal(shard, pieces(whole, borders)[rank])
        for key, value in states.items():
            is_scale = value.numel() != whole.numel()
            places = [border // BLOCK for border in borders] if is_scale else borders
            assert torch.equal(of_shard.state[shard][key].flatten(), pieces(value, places)[rank]), key


@settings(max_examples=10)
@given(num_shards=st.integers(1, 4), width=st.integers(1, 30))
def test_shards_together_keep_as_many_bytes(num_shards, width):
    for make in (AdamW, Lion, SophiaG):
        params = [nn.Parameter(piece.clone()) for piece in torch.ones(7 * width).tensor_split(num_shards)]
        kept = 0
        for param in params:
            optimizer = make([param])
            take_steps(optimizer, param, [torch.ones_like(param)])
            kept += optimizer.state_bytes()
        whole = nn.Parameter(torch.ones(7, width))
        optimizer = make([whole])
        take_steps(optimizer, whole, [torch.ones_like(whole)])
        assert kept == optimizer.state_bytes()
