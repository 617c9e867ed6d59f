"""Korthikanti's bytes of a layer, s b h (34 + 5 a s / h), against the memory tracker of such a layer, to the byte.

The layer is written as in the paper: 16 bits, dropout in three places, scores written out. Two things that the formula
leaves out are there besides, and are counted here: a norm's mean and deviation of each token (two numbers of 32 bits),
and with flash attention a logsumexp of each token and head (one).

Masks have one byte a number, as in the paper: `torch.native_dropout` is what dropout is on a GPU. (On a CPU torch
multiplies with a mask of the tensor's own type, two bytes.)
"""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import launch

BEFORE, AFTER = 12345, 12346  # bytes of blocks that say where forward begins and ends


def dropout(x: Tensor) -> Tensor:
    return torch.native_dropout(x, 0.1, True)[0]


class PaperLayer(nn.Module):
    """A layer of figure 2 of the paper; `flash` computes attention in one kernel, which keeps no scores."""

    def __init__(self, h: int, a: int, flash: bool):
        super().__init__()
        self.a, self.flash = a, flash
        self.norm1, self.norm2 = nn.LayerNorm(h, dtype=torch.float16), nn.LayerNorm(h, dtype=torch.float16)
        self.query, self.key, self.value, self.out = (nn.Linear(h, h, dtype=torch.float16) for _ in range(4))
        self.up, self.down = nn.Linear(h, 4 * h, dtype=torch.float16), nn.Linear(4 * h, h, dtype=torch.float16)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (self.a, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        if self.flash:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            mixed = dropout(scores.softmax(-1)) @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + dropout(self.attention(self.norm1(x)))
        return x + dropout(self.down(F.gelu(self.up(self.norm2(x)))))


def mark(size_bytes: int) -> None:
    torch.zeros(size_bytes, dtype=torch.uint8)


def forward(s: int, b: int, h: int, a: int, layers: int, flash: bool) -> None:
    stack = nn.Sequential(*(PaperLayer(h, a, flash) for _ in range(layers)))
    x = torch.zeros(b, s, h, dtype=torch.float16)
    mark(BEFORE)
    y = stack(x)
    mark(AFTER)
    del y


def kept(s: int, b: int, h: int, a: int, flash: bool = False) -> int:
    """Bytes of activations that a layer more leaves behind: the second of two."""
    held = []
    for layers in (1, 2):
        memory = launch(forward, s, b, h, a, layers, flash, ranks=1, fidelity="shapes").memory
        [after] = [block for block in memory.allocations if block.size_bytes == AFTER]
        held.append(int(memory.curve(0)[1]["activation"][after.start_event - 1]))
    return held[1] - held[0]


@settings(max_examples=6, deadline=None)
@given(s=st.integers(2, 200), b=st.integers(1, 5), a=st.integers(1, 4), d_head=st.integers(1, 12))
def test_a_layer_keeps_what_the_formula_says_and_its_norms_statistics(s, b, a, d_head):
    h = a * d_head
    assert kept(s, b, h, a) == s * b * (34 * h + 5 * a * s) + 2 * 2 * 4 * s * b


@settings(max_examples=6, deadline=None)
@given(s=st.integers(2, 200), b=st.integers(1, 5), a=st.integers(1, 4), d_head=st.integers(1, 12))
def test_flash_attention_removes_the_scores_and_keeps_a_number_for_each_token_and_head(s, b, a, d_head):
    h = a * d_head
    left = kept(s, b, h, a, flash=True)
    assert left == 34 * s * b * h + 2 * 2 * 4 * s * b + 4 * a * s * b
    assert kept(s, b, h, a) - left == 5 * a * s * s * b - 4 * a * s * b


@pytest.mark.parametrize("size", [(2048, 1, 12288, 96), (2048, 4, 6144, 64)], ids=["GPT-3", "22B"])
def test_at_the_papers_own_sizes_scores_are_most_of_a_layer(size):
    s, b, h, a = size
    # 5 a s / h is 80 for GPT-3 (section 5 of the paper), beside 34.
    whole, left = kept(s, b, h, a), kept(s, b, h, a, flash=True)
    assert whole == s * b * (34 * h + 5 * a * s + 16)
    assert left / whole == pytest.approx(34 / (34 + 5 * a * s / h), rel=0.01)
