"""Checks of lab 01: the cost of a step. Sizes are drawn anew; counts are held to torch and to the ledger."""

from collections.abc import Callable
from numbers import Real
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lablib import Run, launch, phase
from lablib.course import Expect, exercise
from lablib.course.comparison import plain_number
from lablib.course.draw import Draw
from lablib.course.expect import RuleBroken
from lablib.course.formatting import short_repr
from lablib.course.rules import not_from_lablib
from lablib.models import GPT, GPTConfig
from lablib.models.transformer_flops import palm_flops_per_token
from lablib.record.blocks import NEVER
from lablib.units import plural

_cross_entropy = F.cross_entropy  # as it is before any answer runs


def _number(value: Any, what: str) -> Any:
    """The answer as one number, whatever its type; a stub is left to the words of `expect`."""
    number = plain_number(value)
    if value is not Ellipsis and (not isinstance(number, Real) or isinstance(number, bool)):
        said = "None: is there a return?" if value is None else f"{type(value).__name__} {short_repr(value)}"
        raise RuleBroken("one number is returned", said, what)
    return number if number is Ellipsis or type(number) is int else float(number)


def _sizes(draw: Draw) -> list[dict[str, int]]:
    """Three layers: a small one, a large one whose counts 32 bits do not hold, and one of one token."""
    small = (draw.integer(4, 7), draw.integer(6, 19), draw.integer(2, 5), draw.integer(3, 8), 4)
    large = (draw.integer(16, 30), draw.integer(2100, 9000), draw.integer(17, 40), 128, 2)
    names = ("batch", "seq_len", "width", "hidden", "heads")
    layers = []
    for batch, seq_len, heads, d_head, hidden_by_width in (small, large, (1, 1, 1, 8, 0)):
        width = heads * d_head
        # Nothing is a multiple of anything else that it should not be.
        hidden = hidden_by_width * width + draw.integer(1, 7)
        layers.append(dict(zip(names, (batch, seq_len, width, hidden, heads), strict=True)))
    return layers


def _told(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


@exercise(
    "The FLOPs of a layer",
    hints=[
        "Write down each product as [M, K] x [K, N]. How many rows, M, has a matrix of all tokens of the batch?",
        "Four products [B T, D] x [D, D]; two of the MLP; and for each sequence queries with keys, scores with values. "
        "The H heads of width D / H together cost as much as one of width D.",
        "The scores of one sequence: [T, D] x [D, T], 2 T D T FLOPs; with the values as many again. Times B. A product "
        "of the MLP: 2 (B T) D F.",
    ],
)
def layer_flops(expect: Expect, layer_flops: Callable[[int, int, int, int], float]) -> None:
    not_from_lablib(layer_flops)
    for sizes in _sizes(expect.draw):
        expect.measured.clear()  # what holds is shown for the last sizes
        _expect_flops(expect, layer_flops, sizes)


def _expect_flops(expect: Expect, answer: Callable[[int, int, int, int], float], drawn: dict[str, int]) -> None:
    heads = drawn["heads"]
    sizes = {name: value for name, value in drawn.items() if name != "heads"}
    batch, seq_len, width, hidden = sizes.values()
    on = f" ({_told(sizes)})"

    def flops(batch: int, seq_len: int, width: int, hidden: int) -> float:
        return _number(answer(batch, seq_len, width, hidden), "FLOPs")

    whole, reference = flops(*sizes.values()), _counted_flops(sizes, heads)
    if whole is not Ellipsis and 2 * whole == reference:
        raise RuleBroken("a multiply-add is two FLOPs", f"{whole:,}: the multiply-adds{on}", f"{reference:,}")
    if whole is not Ellipsis and whole in (2 * reference, 3 * reference):
        said = f"{whole:,}: {round(whole / reference)} times as many{on}"
        raise RuleBroken("forward alone is counted", said, f"{reference:,}")
    expect.close(
        f"as many FLOPs again for as many sequences again{on}", flops(2 * batch, seq_len, width, hidden), 2 * whole
    )
    one_more = flops(batch, seq_len, width, hidden + 1) - whole
    expect.close(
        f"hidden + 1 adds a column to the first product of the MLP and a row to the second{on}",
        one_more,
        4 * batch * seq_len * width,
    )
    if seq_len > 1 and whole == reference - 2 * batch * seq_len * (seq_len - 1) * width:
        raise RuleBroken("every score is counted", f"{whole:,}: those that the mask leaves{on}", f"{reference:,}")
    # What grows with the square of T: in f(2 T) - 2 f(T) all else cancels.
    bend = flops(batch, 2 * seq_len, width, hidden) - 2 * whole
    expect.close(
        f"two products with the scores of every pair of tokens: f(2 T) - 2 f(T){on}",
        bend,
        8 * batch * seq_len**2 * width,
    )
    expect.close(f"as many as torch's FlopCounterMode counts in a layer{on}", whole, reference)


def _counted_flops(sizes: dict[str, int], heads: int) -> int:
    """By torch, over the layer of gpt.py, without values."""
    batch, seq_len, width, hidden = sizes.values()
    layer = GPT(GPTConfig(1, width, heads, 16, seq_len, hidden), device="meta").blocks[0]
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(batch, seq_len, width, device="meta"))
    return counter.get_total_flops()


# What Chowdhery et al., 2022, arXiv 2204.02311, appendix B, give for Megatron-Turing NLG; and llm-foundry
# (scripts/train/benchmarking) for MPT-70B.
_PUBLISHED = (
    ("Megatron-Turing NLG", (65_430, 529.6e9, 105, 20480, 2048, 2240, 312e12), 0.302),
    ("MPT-70B", (1058 * 64, 64_862_437_376, 80, 8192, 2048, 64, 989.4e12), 0.4336),
)


@exercise(
    "The MFU of a published run",
    hints=[
        "How many FLOPs does one token take, by the formula above? How many tokens are there in a second?",
        "Above the line: FLOPs done in a second. Below it: the FLOPs that all devices could do in a second.",
        "`tokens_per_s * (6 * num_params + ...)`, over `num_devices * peak_flops_per_s`.",
    ],
)
def utilization(expect: Expect, utilization: Callable[..., float]) -> None:
    not_from_lablib(utilization)
    draw = expect.draw
    long, short = draw.integer(10_000, 99_999), draw.integer(100, 1000)
    for seq_len, devices, share in (
        (draw.integer(2049, 9999), draw.integer(3, 5000), draw.number(0.1, 0.6)),
        (long, draw.integer(3, 5000), draw.number(0.1, 0.6)),
        (short, 1, draw.number(1.1, 3.0)),  # more than there is: the inputs are wrong, and the MFU tells it
    ):
        expect.measured.clear()
        n, layers, width = draw.integer(10**8, 10**9), draw.integer(9, 99), draw.integer(500, 9000)
        peak, of_a_token = draw.number(1e14, 1e15), float(palm_flops_per_token(n, layers, 1, width, seq_len))
        given = (share * devices * peak / of_a_token, n, layers, width, seq_len, devices, peak)
        _expect_mfu(expect, utilization, given, of_a_token)
    for name, given, mfu in _PUBLISHED:
        expect.close(f"the MFU that was published for {name}", _mfu(utilization, given), mfu, rtol=5e-3)


def _mfu(answer: Callable[..., float], given: tuple[Any, ...]) -> float:
    return _number(answer(*given), "a share")


def _expect_mfu(expect: Expect, answer: Callable[..., float], given: tuple[Any, ...], of_a_token: float) -> None:
    tokens_per_s, n, layers, width, seq_len, devices, peak = given
    mfu, expected = _mfu(answer, given), float(tokens_per_s * of_a_token / devices / peak)
    shown = f" ({n / 1e6:.0f} million parameters, {plural(layers, 'layers')} of width {width}, {seq_len} tokens)"
    if mfu is not Ellipsis and abs(mfu - 100 * expected) < 1e-6 * expected:
        raise RuleBroken("a share is returned, such as 0.4", f"{mfu:.4g}: percent{shown}", f"{expected:.4g}")
    if mfu == 1 < expected:
        rule = "an MFU above 1 is returned as it is: it tells that an input is wrong"
        raise RuleBroken(rule, f"1{shown}", f"{expected:.4g}")
    twice = _mfu(answer, (2 * tokens_per_s, *given[1:]))
    expect.close(f"twice the tokens in a second, twice the MFU{shown}", twice, 2 * mfu)
    spread = _mfu(answer, (*given[:5], 2 * devices, peak))
    expect.close(f"the same tokens by twice the devices, half the MFU{shown}", spread, mfu / 2)
    faster = _mfu(answer, (*given[:6], 2 * peak))
    expect.close(f"twice the peak, half the MFU{shown}", faster, mfu / 2)
    # FLOPs of a token, by what the answer says: from parameters, and from scores.
    per_token = devices * peak / tokens_per_s
    parameters = (_mfu(answer, (tokens_per_s, 2 * n, *given[2:])) - mfu) * per_token / n
    expect.close(f"FLOPs of a token for each parameter, forward and backward{shown}", parameters, 6, rtol=1e-6)
    scores = (_mfu(answer, (*given[:4], 2 * seq_len, devices, peak)) - mfu) * per_token / seq_len
    expect.close(
        f"FLOPs of a token, of its scores with one token more in all layers{shown}",
        scores,
        12 * layers * width,
        rtol=1e-6,
    )
    expect.close(f"the MFU{shown}", mfu, expected)


@exercise(
    "The activations of a layer",
    hints=[
        "Go through the layer in its order, and ask of each tensor that is made: who keeps it? If nobody does, it is "
        "not counted.",
        "Of width D: what leaves the first norm, queries, keys, values, what leaves attention, the first sum, what "
        "leaves the second norm, the second sum. What leaves `out` and `down` goes into a sum, which keeps nothing.",
        "Of width F: what goes into GELU and what leaves it. The scores: B H T T numbers. Each number has 2 bytes.",
    ],
)
def activation_bytes(expect: Expect, activation_bytes: Callable[..., float]) -> None:
    not_from_lablib(activation_bytes)
    for sizes in _sizes(expect.draw):
        expect.measured.clear()
        _expect_bytes(expect, activation_bytes, sizes)


def _expect_bytes(expect: Expect, answer: Callable[..., float], sizes: dict[str, int]) -> None:
    batch, seq_len, width, hidden, heads = sizes.values()
    on = f" ({_told(sizes)})"

    def kept(batch: int, seq_len: int, width: int, hidden: int, heads: int, *, keeps_scores: bool = False) -> float:
        return _number(answer(batch, seq_len, width, hidden, heads, keeps_scores), "bytes")

    whole, reference = kept(batch, seq_len, width, hidden, heads), _ledger_bytes(sizes)
    if whole is not Ellipsis and 2 * whole == reference:
        raise RuleBroken("a number has 2 bytes", f"{whole:,}: the numbers{on}", f"{reference:,} bytes")
    expect.close(
        f"as many bytes again for as many sequences again{on}",
        kept(2 * batch, seq_len, width, hidden, heads),
        2 * whole,
    )
    one_more = kept(batch, seq_len, width, hidden + 1, heads) - whole
    expect.close(
        f"hidden + 1 widens what goes into GELU and what leaves it, 2 bytes each{on}", one_more, 4 * batch * seq_len
    )
    scores = kept(batch, seq_len, width, hidden, heads, keeps_scores=True) - whole
    if scores < 0:
        raise RuleBroken("keeps_scores keeps more", f"{-scores:,} bytes less with it{on}", "more bytes with it")
    other_heads = kept(batch, seq_len, width, hidden, 2 * heads)
    expect.close(f"fused: the number of heads changes nothing{on}", other_heads, whole)
    expect.close(f"fused: as much as the ledger of a layer{on}", whole, reference)
    expect.close(f"not fused: 2 bytes more for each score of each head{on}", scores, 2 * batch * heads * seq_len**2)


def _ledger_bytes(sizes: dict[str, int]) -> int:
    """What one layer of gpt.py keeps in 16 bits, by the ledger: without what is one number for each token or head."""
    batch, seq_len, width, hidden, heads = sizes.values()
    config = GPTConfig(1, width, heads, 16, seq_len, hidden)

    def one_layer() -> Tensor:
        with phase("setup"):
            layer = GPT(config, dtype=torch.bfloat16).blocks[0]
            x = torch.zeros(batch, seq_len, width, dtype=torch.bfloat16, requires_grad=True)
        return layer(x)

    blocks = launch(one_layer, ranks=1, fidelity="shapes").memory.blocks
    kept = sum(block.size_bytes for block in blocks if block.category == "activation" and block.end_event == NEVER)
    per_token = 4 * 2 * 2 + 4 * heads  # mean and deviation of two norms; of each head the logarithm of softmax's sum
    return kept - batch * seq_len * per_token


@exercise(
    "The loss in chunks",
    hints=[
        "Cut `hidden` and `targets` along the tokens. What must be added up over chunks, so that chunks of unlike size "
        "still give the mean over all tokens?",
        "Write a function of one chunk: its logits, and the sum of its losses. Its logits stay alive if autograd keeps "
        "them: `checkpoint` calls the function without that.",
        "`total = total + checkpoint(summed, part, targets_of_part, use_reentrant=False)`, with `hidden.chunk(...)` "
        "and `targets.chunk(...)`; at the end divide by the number of tokens.",
    ],
)
def chunked_loss(expect: Expect, chunked_loss: Callable[..., Tensor]) -> None:
    not_from_lablib(chunked_loss)
    draw = expect.draw
    tokens = draw.choice([23, 29, 31, 37, 41, 43, 47, 53, 59])  # a prime: no chunks of equal size
    for num_chunks, scale in (
        (draw.integer(2, 7), 1),
        (1, 1),
        (tokens, 1),
        (tokens - draw.integer(1, 9), 1),
        (draw.integer(2, 7), 1000),  # logits whose exponential no number holds
    ):
        expect.measured.clear()  # what holds is shown for the last sizes
        _expect_loss(expect, chunked_loss, tokens, num_chunks, scale)
    for num_chunks in (4, draw.integer(9, 16)):
        _expect_budgets(expect, chunked_loss, draw.choice([401, 419, 431, 443, 457, 467, 479, 491, 503]), num_chunks)


def _example(draw: Draw, tokens: int, width: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = (draw.tensor(shape, dtype) for shape in ((tokens, width), (vocab, width)))
    targets = torch.tensor([draw.integer(0, vocab - 1) for _ in range(tokens)])
    return hidden, weight, targets


def _program(answer: Callable[..., Tensor], hidden: Tensor, weight: Tensor, targets: Tensor, num_chunks: int) -> Any:
    """The loss and both gradients; what had a gradient before backward was called, and what was changed."""
    given = hidden.clone(), weight.clone(), targets.clone()
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = answer(hidden, weight, targets, num_chunks)
    early = [name for name, x in (("hidden", hidden), ("weight", weight)) if x.grad is not None]
    gradients = None
    if isinstance(loss, Tensor) and loss.requires_grad:
        (3 * loss).backward()
        gradients, loss = (hidden.grad, weight.grad), loss.detach()
    now = {"hidden": hidden, "weight": weight, "targets": targets}
    changed = [name for (name, x), then in zip(now.items(), given, strict=True) if not torch.equal(x, then)]
    return loss, gradients, early, changed


def _not_torchs(*_: Any, **__: Any) -> Tensor:
    raise RuleBroken("the chunks are your own", "F.linear_cross_entropy", "your own lines, with F.cross_entropy")


def _run(expect: Expect, answer: Callable[..., Tensor], example: tuple[Tensor, ...], num_chunks: int) -> Run:
    with patch.object(F, "linear_cross_entropy", _not_torchs):
        return expect.launch(_program, answer, *(one.clone() for one in example), num_chunks, ranks=1)


def _expect_loss(expect: Expect, answer: Callable[..., Tensor], tokens: int, num_chunks: int, scale: float) -> None:
    """In float64."""
    example = _example(expect.draw, tokens, expect.draw.integer(2, 6), expect.draw.integer(11, 40), torch.float64)
    example = scale * example[0], *example[1:]
    large = f", logits of {scale} and more" if scale > 1 else ""
    on = f" ({tokens} tokens in float64, num_chunks={num_chunks}{large})"
    _expect_values(expect, _run(expect, answer, example, num_chunks), example, on)


def _expect_values(expect: Expect, run: Run, example: tuple[Tensor, Tensor, Tensor], on: str) -> None:
    """The value and both gradients of the loss that is not in chunks; nothing else is changed."""
    loss, gradients, early, changed = run.values[0]
    dtype, targets = example[0].dtype, example[2]
    rtol, gradients_rtol, atol = (1e-9, 1e-9, 1e-12) if dtype == torch.float64 else (1e-5, 1e-3, 1e-6)
    x, w = (one.to(torch.float64, copy=True).requires_grad_() for one in example[:2])
    reference = _cross_entropy(x @ w.T, targets)
    (3 * reference).backward()
    said = f"{' and '.join(changed)} changed" if changed else "no change"
    expect.that("hidden, weight and targets stay as they were", not changed, said, "no change")
    if loss is not Ellipsis and not isinstance(loss, Tensor):
        said = "None: is there a return?" if loss is None else f"{type(loss).__name__} {short_repr(loss)}"
        raise RuleBroken("the loss is returned, a tensor of no dimension", said, "a tensor")
    if loss is not Ellipsis and loss.dtype != dtype or _is_off(loss, reference, 1e-9, 1e-6) and rtol == 1e-9:
        said = f"a loss of {loss.dtype}" if loss.dtype != dtype else "a loss as exact as float32"
        raise RuleBroken(f"all is computed in the dtype of hidden{on}", said, f"{dtype}: no .float(), no .double()")
    expect.close(f"the mean loss over all tokens{on}", loss, reference.detach(), rtol=rtol)
    if gradients is None:
        raise RuleBroken(
            f"gradients can be computed from the loss{on}", "the loss has no graph", "no torch.no_grad, no .item()"
        )
    said = f"a gradient in {' and '.join(early)} before it" if early else ""
    expect.that("backward is left to the caller", not early, said, "no gradient before it")
    for name, got, wanted in zip(("hidden", "weight"), gradients, (x.grad, w.grad), strict=True):
        rule = f"the gradient of {name} is that of the loss not in chunks{on}"
        if got is None:
            raise RuleBroken(rule, "none", "a gradient: was it detached?")
        expect.close(rule, got, wanted, rtol=gradients_rtol, atol=atol)


def _is_off(loss: Any, reference: Tensor, at_least: float, at_most: float) -> bool:
    """Is the relative error between the two: more than rounding in float64, and no more than rounding in float32?"""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return False
    return at_least < abs(loss.item() / reference.item() - 1) < at_most


def _expect_budgets(expect: Expect, answer: Callable[..., Tensor], tokens: int, num_chunks: int) -> None:
    width, vocab = 8, 2048
    example = _example(expect.draw, tokens, width, vocab, torch.float32)
    run = _run(expect, answer, example, num_chunks)
    on = f" ({tokens} tokens, {num_chunks} chunks)"
    # Inputs, copies of the check, gradients, and gradients of one chunk on their way: all without a logit.
    small = 4 * 6 * (tokens + vocab) * width + 2 * 8 * tokens
    of_a_chunk = -(-tokens // num_chunks)
    expect.budget(
        f"peak memory: five times the logits of a chunk{on}",
        run.memory.peak_bytes(0),
        small + 5 * 4 * of_a_chunk * vocab,
        "B",
    )
    product = 2 * width * vocab  # of one token
    made = [span.flops for span in run.timeline if span.flops]
    expect.budget(
        f"FLOPs: the head's product, its backward, and once more forward (torch's are counted){on}",
        sum(made),
        4 * product * of_a_chunk * num_chunks,  # as for chunks that are filled up
        "FLOP",
        at_least=3 * product * tokens,
    )
    expect.budget(
        f"products of matrices: three or four for each of num_chunks{on}",
        len(made),
        4 * num_chunks,
        "products",
        at_least=3 * num_chunks,
    )
    largest = max(of_a_chunk, -(-vocab // num_chunks) * tokens / vocab)  # chunks of tokens, or of the vocabulary
    expect.budget(f"tokens in the largest product{on}", max(made) / product, largest, "tokens")
    _expect_values(expect, run, example, on)
