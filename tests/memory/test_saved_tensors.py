"""What operators keep: the bytes of hand formulas, those that torch's own hooks see, and enough for the derivative."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from lablib import launch
from lablib.memory.saved_tensors import SavedTensor, activation_bytes, saved_tensors, table
from lablib.models import GPTConfig
from lablib.models.gpt import Block

SIZE = st.integers(1, 9)


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def kept(output: torch.Tensor) -> int:
    return activation_bytes(saved_tensors(output))


def seen_by_hooks(module: nn.Module, x: torch.Tensor) -> int:
    """The same by torch's own hooks, which are shown every tensor as it is saved."""
    memories, owned = {}, {parameter.untyped_storage()._cdata for parameter in module.parameters()}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        if saved.untyped_storage()._cdata not in owned:
            memories[saved.untyped_storage()._cdata] = saved.untyped_storage()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        output = module(x)
    assert output.requires_grad
    return sum(storage.nbytes() for storage in memories.values())


@given(tokens=SIZE, width=SIZE, out=SIZE)
def test_bytes_are_those_of_the_hand_formulas(tokens, width, out):
    """8 bytes a number in float64; T tokens, D wide, F out."""
    T, D, O = tokens, width, out  # noqa: E741
    x, linear, norm = tensor(T, D), nn.Linear(D, O).double(), nn.LayerNorm(D).double()
    formulas = [
        (linear(x), 8 * T * D),  # its input; the weight is a parameter
        (x + x, 0),
        (x * tensor(T, D), 16 * T * D),
        (F.gelu(linear(x)), 8 * T * (D + O)),  # both inputs: gelu's derivative needs its own
        (F.relu(linear(x)), 8 * T * (D + O)),
        (x.exp(), 8 * T * D),
        (F.softmax(x, -1), 8 * T * D),
        (norm(x), 8 * T * (D + 2)),  # input, a mean and a 1/std for each token
        (torch.native_dropout(x, 0.5, True)[0], T * D),  # a mask of one byte a number
        (F.dropout(x, 0.5), 8 * T * D),  # on the CPU torch multiplies by a mask in the dtype of x
        (F.embedding(torch.zeros(T, dtype=torch.long), linear.weight.T), 8 * T),
    ]
    for output, want in formulas:
        assert kept(output) == want, output.grad_fn


@given(batch=SIZE, heads=SIZE, tokens=SIZE, width=SIZE, is_causal=st.booleans())
def test_fused_attention_keeps_no_scores_and_the_plain_one_does(batch, heads, tokens, width, is_causal):
    q, k, v = (tensor(batch, heads, tokens, width, seed=seed) for seed in range(3))
    rows = batch * heads * tokens
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    assert kept(fused) == 8 * (4 * rows * width + rows)  # q, k, v, the output, and log(sum of exp) for each row
    plain = F.softmax(q @ k.mT, -1) @ v
    assert kept(plain) == 8 * (3 * rows * width + rows * tokens)


@settings(max_examples=30)
@given(batch=SIZE, tokens=SIZE, heads=st.integers(1, 3), head=st.integers(1, 4), hidden=SIZE)
def test_a_transformer_block_in_closed_form(batch, tokens, heads, head, hidden):
    """B T (8 D + 2 F + H + 4) numbers, 16 D of them for F = 4 D: the 32 of Korthikanti's 34 bytes, at 2 bytes each."""
    D = heads * head
    block = Block(GPTConfig(1, D, heads, 32, tokens, d_ff=hidden), torch.device("cpu"), torch.float64)
    x = tensor(batch, tokens, D)
    want = 8 * batch * tokens * (8 * D + 2 * hidden + heads + 4)
    assert kept(block(x)) == want
    assert seen_by_hooks(block, x) == want


def test_shared_memory_counts_once_and_parameters_not_at_all():
    x = tensor(4, 8)
    y = x.exp()
    both = y.tanh() * y.view(8, 4).sum()  # tanh keeps its own; exp and the product keep y: one memory
    assert kept(both) == 8 * (32 + 32 + 1)
    part = torch.zeros(100, dtype=torch.float64, requires_grad=True)[:3].sin()
    assert kept(part) == 800  # a view of a part keeps the whole memory
    linear = nn.Linear(8, 8, bias=False).double()
    frozen = nn.Linear(8, 8, bias=False).double().requires_grad_(False)
    output = frozen(linear(x))
    assert kept(output) == 8 * (32 + 64)  # x; the frozen weight cannot be told from an activation
    assert activation_bytes(saved_tensors(output, frozen.parameters())) == 8 * 32
    assert kept(F.linear(F.linear(x, linear.weight), linear.weight)) == 8 * 64  # used twice: x and the first result


def test_other_kinds_of_nodes():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, None)
            return x * x

        @staticmethod
        def backward(ctx, dy):
            return 2 * dy * ctx.saved_tensors[0]

    x = tensor(3)
    (square,) = saved_tensors(Square.apply(x))
    assert (square.operator, square.name, square.shape, square.derivative) == ("SquareBackward", "tensors", (3,), "")
    stacked = torch.cat([x, x])[torch.tensor([1, 4])]  # a list of tensors: the indices
    assert [(s.operator, s.shape) for s in saved_tensors(stacked)] == [("IndexBackward0", (2,))]
    assert saved_tensors(x) == saved_tensors(x.detach()) == []
    assert kept(checkpoint(lambda x: x.exp().tanh(), x, use_reentrant=False)) == 0  # packed by a hook: not read
    with pytest.raises(ValueError, match="gone after backward"):
        y = x.exp()
        y.sum().backward()
        saved_tensors(y)


def test_shapes_without_values_have_the_same_bytes():
    def program() -> int:
        return kept(F.gelu(nn.Linear(8, 16)(torch.randn(4, 8))))

    assert launch(program, ranks=1, fidelity="shapes").values == launch(program, ranks=1).values == [4 * 4 * (8 + 16)]


def test_the_table_adds_up_and_says_why():
    x = tensor(4, 8)
    saved = saved_tensors(F.gelu(nn.Linear(8, 4).double()(x)).exp().tanh())
    rows = table(saved)
    assert sum(rows["bytes"]) == activation_bytes(saved)
    why = dict(zip(rows["operator"], rows["derivative"], strict=True))
    assert why["ExpBackward0"] == "dx = dy y" and why["GeluBackward0"] == "dx = dy gelu'(x)"
    assert list(rows["bytes"][rows["operator"] == "AddmmBackward0"]) == [256, 0]  # x, and the weight


# ---- what is kept is enough: the derivatives of the file's list, from the saved tensors alone ----


def from_linear(s: dict, dy: torch.Tensor) -> torch.Tensor:
    return dy @ s["mat2"].mT


def from_norm(s: dict, dy: torch.Tensor) -> torch.Tensor:
    z, dz = (s["input"] - s["result1"]) * s["result2"], dy * s["weight"]
    return (dz - dz.mean(-1, keepdim=True) - z * (dz * z).mean(-1, keepdim=True)) * s["result2"]


def from_gelu(s: dict, dy: torch.Tensor) -> torch.Tensor:
    x = s["self"]
    return dy * ((1 + torch.erf(x / math.sqrt(2))) / 2 + x * torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))


def from_attention(s: dict, dy: torch.Tensor) -> torch.Tensor:
    """dq."""
    scale = 1 / math.sqrt(s["query"].shape[-1])
    p = torch.exp(s["query"] @ s["key"].mT * scale - s["logsumexp"].unsqueeze(-1))
    ds = p * (dy @ s["value"].mT - (dy * s["output"]).sum(-1, keepdim=True))
    return ds @ s["key"] * scale


WEIGHT = tensor(5, 3, seed=4)
BACKWARDS = [
    (lambda x: F.linear(x, WEIGHT, torch.zeros(5, dtype=torch.float64)), from_linear),
    (lambda x: F.layer_norm(x, (3,), WEIGHT[0]), from_norm),
    (F.gelu, from_gelu),
    (lambda x: F.scaled_dot_product_attention(x, x.detach() + 1, x.detach() - 1), from_attention),
    (torch.exp, lambda s, dy: dy * s["result"]),
    (torch.tanh, lambda s, dy: dy * (1 - s["result"] ** 2)),
    (torch.sigmoid, lambda s, dy: dy * s["result"] * (1 - s["result"])),
    (torch.relu, lambda s, dy: dy * (s["result"] > 0)),
    (F.silu, lambda s, dy: dy * (t := s["self"].sigmoid()) * (1 + s["self"] * (1 - t))),
    (lambda x: x.softmax(-1), lambda s, dy: s["result"] * (dy - (dy * s["result"]).sum(-1, keepdim=True))),
    (lambda x: x.log_softmax(-1), lambda s, dy: dy - s["result"].exp() * dy.sum(-1, keepdim=True)),
    (lambda x: torch.native_dropout(x, 0.25, True)[0], lambda s, dy: dy * s["result1"] / 0.75),
    (lambda x: x / WEIGHT[0], lambda s, dy: dy / s["other"]),
]


@pytest.mark.parametrize(("operator", "backward"), BACKWARDS)
def test_the_derivative_needs_no_more_than_is_kept(operator, backward):
    x = tensor(2, 4, 7, 3)
    y = operator(x)
    operators = {s.operator for s in saved_tensors(y)}
    node = next(node for node in walk(y.grad_fn) if type(node).__name__ in operators)
    record: SavedTensor = next(s for s in saved_tensors(y) if s.operator == type(node).__name__)
    assert record.derivative, record.operator
    saved = {name.removeprefix("_saved_"): getattr(node, name) for name in dir(node) if name.startswith("_saved_")}
    dy = tensor(*y.shape, seed=9).detach()
    (want,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(backward(saved, dy.reshape(-1, 5) if "mat2" in saved else dy).reshape(x.shape), want)


def walk(node):
    yield node
    for below, _ in node.next_functions:
        if below is not None:
            yield from walk(below)
