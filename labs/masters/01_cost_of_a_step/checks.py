"""Checks of lab 01: the cost of a step. Sizes are random; torch and the memory tracker give the reference counts."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from numbers import Real
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lablib import Run, launch, phase
from lablib.course import Expect, exercise
from lablib.course.checks.comparison import plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import NotAttempted, RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import not_from_lablib
from lablib.models import GPT, GPTConfig, next_token_loss, num_parameters
from lablib.models.transformer_flops import palm_flops_per_token
from lablib.record.allocations import NEVER
from lablib.text.units import plural

_cross_entropy = F.cross_entropy  # as it is before any answer runs
_TORCHS_OWN = [vars(F)[name] for name in ("linear_cross_entropy",) if name in vars(F)]  # from torch 2.13 on
_THERE = 2.0  # an existing gradient before the answer is called, in the runs that measure no memory


def _number(value: Any, what: str) -> Any:
    """The answer of any type as one number; counts and shares are not below 0."""
    if value is Ellipsis:
        raise NotAttempted
    number = plain_number(value)
    if not isinstance(number, Real) or isinstance(number, bool):
        said = "None: is there a return?" if value is None else f"{type(value).__name__} {short_repr(value)}"
        raise RuleBroken("one number is returned", said, what)
    number = number if type(number) is int else float(number)
    if number < 0:
        raise RuleBroken("a number of at least 0", f"{number:,} (do 32 bits overflow?)", what)
    return number


def _twice_the_same(call: Callable[[], float]) -> float:
    """The result of the call, which must be the same twice."""
    first, second = call(), call()
    if first != second:
        raise RuleBroken("a second call with the same sizes gives the same", f"{first:,}, then {second:,}", "the same")
    return first


def _sizes(draw: Draw) -> list[dict[str, int]]:
    """Three layers: a small one, a large one with counts that overflow 32 bits, and one with one token."""
    small = (draw.integer(4, 7), draw.integer(6, 19), draw.integer(2, 5), draw.integer(3, 8), 4)
    large = (draw.integer(16, 30), draw.integer(2100, 9000), draw.integer(17, 40), 128, 2)
    names = ("batch", "seq_len", "width", "hidden", "heads")
    layers = []
    for batch, seq_len, heads, d_head, hidden_by_width in (small, large, (1, 1, 1, 8, 0)):
        width = heads * d_head
        # Avoid accidental multiples between sizes.
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
        "The scores of one sequence: [T, D] x [D, T], 2 T D T FLOPs; the product with the values takes the same. Times "
        "B. A product of the MLP: 2 (B T) D F.",
    ],
)
def layer_flops(expect: Expect, layer_flops: Callable[[int, int, int, int], float]) -> None:
    not_from_lablib(layer_flops)
    for sizes in _sizes(expect.draw):
        expect.measured.clear()  # the result shows only the rules of the last sizes
        _expect_flops(expect, layer_flops, sizes)


def _expect_flops(expect: Expect, answer: Callable[[int, int, int, int], float], drawn: dict[str, int]) -> None:
    heads = drawn["heads"]
    sizes = {name: value for name, value in drawn.items() if name != "heads"}
    batch, seq_len, width, hidden = sizes.values()
    on = f" ({_told(sizes)})"

    def flops(batch: int, seq_len: int, width: int, hidden: int) -> float:
        return _number(answer(batch, seq_len, width, hidden), "FLOPs")

    whole, reference = _twice_the_same(lambda: flops(*sizes.values())), _counted_flops(sizes, heads)
    if 2 * whole == reference:
        raise RuleBroken("a multiply-add is two FLOPs", f"{whole:,}: the multiply-adds{on}", f"{reference:,}")
    if whole in (2 * reference, 3 * reference):
        said = f"{whole:,}: {round(whole / reference)} times as many{on}"
        raise RuleBroken("forward alone is counted", said, f"{reference:,}")
    expect.close(f"twice the sequences, twice the FLOPs{on}", flops(2 * batch, seq_len, width, hidden), 2 * whole)
    one_more = flops(batch, seq_len, width, hidden + 1) - whole
    expect.close(
        f"hidden + 1 adds a column to the first product of the MLP and a row to the second{on}",
        one_more,
        4 * batch * seq_len * width,
    )
    if seq_len > 1 and whole == reference - 2 * batch * seq_len * (seq_len - 1) * width:
        raise RuleBroken("every score is counted", f"{whole:,}: without masked scores{on}", f"{reference:,}")
    # The part that grows with the square of T: in f(2 T) - 2 f(T) all other parts cancel.
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


# From Chowdhery et al., 2022, arXiv 2204.02311, appendix B, for Megatron-Turing NLG; and from llm-foundry
# (scripts/train/benchmarking) for MPT-70B.
_PUBLISHED = (
    ("Megatron-Turing NLG", (65_430, 529.6e9, 105, 20480, 2048, 2240, 312e12), 0.302),
    ("MPT-70B", (1058 * 64, 64_862_437_376, 80, 8192, 2048, 64, 989.4e12), 0.4336),
)


@exercise(
    "The MFU of a published run",
    hints=[
        "How many FLOPs does one token take, by the formula above? How many tokens are there per second?",
        "Numerator: FLOPs computed per second. Denominator: peak FLOPs per second of all devices.",
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
        (short, 1, draw.number(1.1, 3.0)),  # above the peak: the inputs are wrong, and the MFU shows it
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
    mfu, expected = _twice_the_same(lambda: _mfu(answer, given)), float(tokens_per_s * of_a_token / devices / peak)
    shown = f" ({n / 1e6:.0f} million parameters, {plural(layers, 'layers')} of width {width}, {seq_len} tokens)"
    if abs(mfu - 100 * expected) < 1e-6 * expected:
        raise RuleBroken("a share is returned, such as 0.4", f"{mfu:.4g}: percent{shown}", f"{expected:.4g}")
    twice = _mfu(answer, (2 * tokens_per_s, *given[1:]))
    for saw, wanted in (mfu, expected), (twice, 2 * expected):
        if saw == 1 < wanted:
            rule = "an MFU above 1 is returned unchanged: it shows that an input is wrong"
            raise RuleBroken(rule, f"1{shown}", f"{wanted:.4g}")
    expect.close(f"twice the tokens per second, twice the MFU{shown}", twice, 2 * mfu)
    spread = _mfu(answer, (*given[:5], 2 * devices, peak))
    expect.close(f"the same tokens by twice the devices, half the MFU{shown}", spread, mfu / 2)
    faster = _mfu(answer, (*given[:6], 2 * peak))
    expect.close(f"twice the peak, half the MFU{shown}", faster, mfu / 2)
    # FLOPs of a token, according to the answer: from parameters, and from scores.
    per_token = devices * peak / tokens_per_s
    parameters = (_mfu(answer, (tokens_per_s, 2 * n, *given[2:])) - mfu) * per_token / n
    expect.close(f"FLOPs of a token for each parameter, forward and backward{shown}", parameters, 6, rtol=1e-6)
    scores = (_mfu(answer, (*given[:4], 2 * seq_len, devices, peak)) - mfu) * per_token / seq_len
    expect.close(
        f"FLOPs of a token's scores for each token of the sequence, in all layers{shown}",
        scores,
        12 * layers * width,
        rtol=1e-6,
    )
    expect.close(f"the MFU{shown}", mfu, expected)


@exercise(
    "The activations of a layer",
    hints=[
        "Go through the layer in its order, and ask for each new tensor: which operation keeps it? If no operation "
        "does, it is not counted.",
        "Of width D: the output of the first norm, queries, keys, values, attention's output, the first sum, the "
        "output of the second norm, the second sum. The outputs of `out` and `down` go into a sum, which keeps no "
        "tensor.",
        "Of width F: the input and the output of GELU. The scores: B H T T numbers. Each number has 2 bytes.",
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

    whole = _twice_the_same(lambda: kept(batch, seq_len, width, hidden, heads))
    reference = _tracked_bytes(sizes)
    if 2 * whole == reference:
        raise RuleBroken("a number has 2 bytes", f"{whole:,}: the numbers{on}", f"{reference:,} bytes")
    expect.close(
        f"twice the sequences, twice the bytes{on}",
        kept(2 * batch, seq_len, width, hidden, heads),
        2 * whole,
    )
    one_more = kept(batch, seq_len, width, hidden + 1, heads) - whole
    expect.close(f"hidden + 1 widens GELU's input and output, 2 bytes each{on}", one_more, 4 * batch * seq_len)
    scores = kept(batch, seq_len, width, hidden, heads, keeps_scores=True) - whole
    if scores < 0:
        raise RuleBroken("keeps_scores keeps more", f"{-scores:,} bytes less with it{on}", "more bytes with it")
    other_heads = kept(batch, seq_len, width, hidden, 2 * heads)
    expect.close(f"fused: the number of heads changes nothing{on}", other_heads, whole)
    tensors = (whole - reference) / (2 * batch * seq_len * width)
    if tensors and tensors % 1 == 0:
        said = f"{plural(abs(int(tensors)), 'tensors')} too {'many' if tensors > 0 else 'few'}: {whole:,}{on}"
        raise RuleBroken("fused: tensors of [B, T, D] as many as the memory tracker's", said, f"{reference:,}")
    expect.close(f"fused: as many bytes as the memory tracker counts in a layer{on}", whole, reference)
    expect.close(f"not fused: 2 bytes more for each score of each head{on}", scores, 2 * batch * heads * seq_len**2)


def _tracked_bytes(sizes: dict[str, int]) -> int:
    """Bytes that a layer of gpt.py keeps in 16 bits, by the memory tracker, without per-token and per-head numbers."""
    batch, seq_len, width, hidden, heads = sizes.values()
    config = GPTConfig(1, width, heads, 16, seq_len, hidden)

    def one_layer() -> Tensor:
        with phase("setup"):
            layer = GPT(config, dtype=torch.bfloat16).blocks[0]
            x = torch.zeros(batch, seq_len, width, dtype=torch.bfloat16, requires_grad=True)
        return layer(x)

    blocks = launch(one_layer, ranks=1, fidelity="shapes").memory.allocations
    kept = sum(block.size_bytes for block in blocks if block.category == "activation" and block.end_event == NEVER)
    per_token = 4 * 2 * 2 + 4 * heads  # mean and deviation of two norms; for each head the logarithm of softmax's sum
    return kept - batch * seq_len * per_token


@exercise(
    "The loss in chunks",
    hints=[
        "Cut `hidden` and `targets` along the tokens. Which quantity must be added over chunks, so that chunks of "
        "different size still give the mean over all tokens?",
        "Write a function of one chunk: its logits, and the sum of its losses. Its logits stay alive if autograd keeps "
        "them: `checkpoint` calls the function without that.",
        "`total = total + checkpoint(summed, part, targets_of_part, use_reentrant=False)`, with `hidden.chunk(...)` "
        "and `targets.chunk(...)`; at the end divide by the number of tokens.",
    ],
)
def chunked_loss(expect: Expect, chunked_loss: Callable[..., Tensor]) -> None:
    not_from_lablib(chunked_loss, refused=_TORCHS_OWN)
    draw = expect.draw
    tokens = draw.choice([23, 29, 31, 37, 41, 43, 47, 53, 59])  # a prime: no chunks of equal size
    for num_chunks, scale in (
        (draw.integer(2, 7), 1),
        (1, 1),
        (tokens, 1),
        (tokens - draw.integer(1, 9), 1),
        (draw.integer(2, 7), 1000),  # logits with an exponential that overflows
    ):
        expect.measured.clear()  # the result shows only the rules of the last sizes
        _expect_loss(expect, chunked_loss, tokens, num_chunks, scale)
    for num_chunks in (4, draw.integer(9, 16), draw.integer(40, 50)):
        _expect_budgets(expect, chunked_loss, draw.choice([401, 419, 431, 443, 457, 467, 479, 491, 503]), num_chunks)


def _example(draw: Draw, tokens: int, width: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = (draw.tensor(shape, dtype) for shape in ((tokens, width), (vocab, width)))
    targets = torch.tensor([draw.integer(0, vocab - 1) for _ in range(tokens)])
    return hidden, weight, targets


def _program(answer: Callable[..., Tensor], hidden: Tensor, weight: Tensor, targets: Tensor, num_chunks: int) -> Any:
    """Losses of all calls, both gradients, which of them changed before backward, and which inputs changed."""
    inputs = {"hidden": hidden.requires_grad_(), "weight": weight.requires_grad_(), "targets": targets}
    given, losses, there = [x.detach().clone() for x in inputs.values()], [], None
    if hidden.dtype == torch.float64:  # no memory is measured: an earlier call, and existing gradients
        copies = (x.detach().clone().requires_grad_() for x in (hidden, weight))
        losses.append(answer(*copies, targets, num_chunks))
        there = _THERE
        hidden.grad, weight.grad = (torch.full_like(x, there) for x in (hidden, weight))
    losses.append(loss := answer(hidden, weight, targets, num_chunks))
    early = [name for name, x in inputs.items() if name != "targets" and not _is_all(x.grad, there)]
    gradients = None
    if isinstance(loss, Tensor) and loss.requires_grad:
        (3 * loss).backward()
        gradients = hidden.grad, weight.grad
    losses = [x.detach() if isinstance(x, Tensor) else x for x in losses]
    changed = [name for (name, x), then in zip(inputs.items(), given, strict=True) if not torch.equal(x, then)]
    return losses, gradients, early, changed


_IN_ITS_DTYPE = "all results are in the dtype of hidden, and no constant is added"
_NOTHING_ELSE = "no .float(), no .double(), no 1e-9"


def _is_all(x: Tensor | None, value: float | None) -> bool:
    return x is value if x is None or value is None else bool((x == value).all())


def _not_torchs(*_: Any, **__: Any) -> Tensor:
    raise RuleBroken("the chunks are your own", "F.linear_cross_entropy", "your own lines, with F.cross_entropy")


def _run(expect: Expect, answer: Callable[..., Tensor], example: tuple[Tensor, ...], num_chunks: int) -> Run:
    with patch.object(F, "linear_cross_entropy", _not_torchs, create=True):
        return expect.launch(_program, answer, *(one.clone() for one in example), num_chunks, ranks=1)


def _expect_loss(expect: Expect, answer: Callable[..., Tensor], tokens: int, num_chunks: int, scale: float) -> None:
    """In float64."""
    example = _example(expect.draw, tokens, expect.draw.integer(2, 6), expect.draw.integer(11, 40), torch.float64)
    example = scale * example[0], *example[1:]
    if num_chunks == tokens:  # no row is contiguous
        example = example[0].T.contiguous().T, *example[1:]
    large = f", logits of {scale} and more" if scale > 1 else ""
    on = f" ({tokens} tokens in float64, num_chunks={num_chunks}{large})"
    _expect_values(expect, _run(expect, answer, example, num_chunks), example, on)


def _expect_values(expect: Expect, run: Run, example: tuple[Tensor, Tensor, Tensor], on: str) -> None:
    """The value and both gradients equal the loss without chunks; no input changes."""
    losses, gradients, early, changed = run.values[0]
    first, loss = losses[0], losses[-1]
    dtype, targets = example[0].dtype, example[2]
    rtol, gradients_rtol, atol = (1e-9, 1e-9, 1e-12) if dtype == torch.float64 else (1e-5, 1e-3, 1e-6)
    x, w = (one.to(torch.float64, copy=True).requires_grad_() for one in example[:2])
    reference = _cross_entropy(x @ w.T, targets)
    (3 * reference).backward()
    said = f"{' and '.join(changed)} changed" if changed else "no change"
    expect.that("hidden, weight and targets stay unchanged", not changed, said, "no change")
    if loss is not Ellipsis and not isinstance(loss, Tensor):
        said = "None: is there a return?" if loss is None else f"{type(loss).__name__} {short_repr(loss)}"
        raise RuleBroken("the loss is returned, a tensor of no dimension", said, "a tensor")
    if loss is not Ellipsis and loss.dtype != dtype or _is_off(loss, reference, 1e-9, 1e-6) and rtol == 1e-9:
        said = f"a loss of {loss.dtype}" if loss.dtype != dtype else "a loss as exact as float32"
        raise RuleBroken(_IN_ITS_DTYPE + on, said, f"{dtype}: {_NOTHING_ELSE}")
    if _is_off(loss, first, 1e-9, inf):
        rule = f"a second call gives the same loss: no state stays from the first{on}"
        raise RuleBroken(rule, f"{first.item():.5g}, then {loss.item():.5g}", "the same")
    expect.close(f"the mean loss over all tokens{on}", loss, reference.detach(), rtol=rtol)
    if gradients is None:
        raise RuleBroken(
            f"gradients can be computed from the loss{on}", "the loss has no graph", "no torch.no_grad, no .item()"
        )
    said = f"{' and '.join(early)}: .grad changed before it" if early else ""
    expect.that("the caller calls backward, and no existing gradient changes before it", not early, said, "")
    there = _THERE if dtype == torch.float64 else 0
    added = f", added to the existing gradient ({there:g})" if there else ""
    for name, got, own in zip(("hidden", "weight"), gradients, (x.grad, w.grad), strict=True):
        rule = f"the gradient of {name} is the same as without chunks{added}{on}"
        if got is None or there and _is_all(got, there):
            raise RuleBroken(rule, "none", "a gradient: was it detached?")
        assert own is not None
        if dtype == torch.float64 and _is_near(got, own + there, 1e-6) and not _is_near(got, own + there, 1e-9):
            raise RuleBroken(_IN_ITS_DTYPE + on, f"a gradient of {name} as exact as float32", _NOTHING_ELSE)
        expect.close(rule, got, own + there, rtol=gradients_rtol, atol=atol)


def _is_near(got: Any, wanted: Tensor, rtol: float) -> bool:
    """Within `rtol` of each number; for a large `rtol`, within `rtol` of the largest number."""
    if not isinstance(got, Tensor) or got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    atol = 1e-12 if rtol < 1e-8 else rtol * float(wanted.abs().max())
    return torch.allclose(got, wanted, rtol=rtol, atol=atol)


def _is_off(loss: Any, reference: Tensor, at_least: float, at_most: float) -> bool:
    """Is the relative error between the two: more than rounding in float64, and no more than rounding in float32?"""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return False
    return at_least < abs(loss.item() - reference.item()) / abs(reference.item()) < at_most


def _expect_budgets(expect: Expect, answer: Callable[..., Tensor], tokens: int, num_chunks: int) -> None:
    width, vocab = 8, 2048
    example = _example(expect.draw, tokens, width, vocab, torch.float32)
    run = _run(expect, answer, example, num_chunks)
    on = f" ({tokens} tokens, {num_chunks} chunks)"
    # Inputs, copies of the check, gradients, and temporary gradients of one chunk: all without a logit.
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
        f"FLOPs: the head's product, its backward, and once more forward (as torch counts them){on}",
        sum(made),
        4 * product * of_a_chunk * num_chunks,  # as for chunks that are filled up
        "FLOP",
        at_least=3 * product * tokens,
    )
    expect.budget(
        f"products of matrices: three or four for each chunk{on}",
        len(made),
        4 * num_chunks,
        "products",
        at_least=3 * -(-tokens // of_a_chunk),
    )
    largest = max(of_a_chunk, -(-vocab // num_chunks) * tokens / vocab)  # chunks of tokens, or of the vocabulary
    expect.budget(f"tokens in the largest product, the largest chunk{on}", max(made) / product, largest, "tokens")
    _expect_values(expect, run, example, on)


_PER_SEQUENCE = 5000  # number of sequences in memory when the bytes of one are measured


@exercise(
    "Self times",
    hints=[
        "Which events may an event be inside? While you go through the events by their starts, which are still open?",
        "Keep a list of open events. Before each event, close those that ended before it. The last open one is "
        "directly around it, and loses its duration; those further out do not.",
        "`for name, start, end in sorted(events, key=lambda event: event[1])`: pop while `around[-1][1] < start`; "
        "subtract `end - start` from the name of `around[-1]`; add it to `name`; append `(name, end)`.",
    ],
)
def self_times(expect: Expect, self_times: Callable[..., dict[str, float]]) -> None:
    not_from_lablib(self_times)
    draw = expect.draw
    for rule, depth, names, in_order in (
        ("the times of all events of a name are added", 1, 1, True),
        ("an event loses the durations of the events inside it", 2, 0, True),
        ("events may come in any order", 2, 0, False),
        ("an event loses those directly inside it, and not again those inside these", 4, 0, False),
        ("an operator may call one of its own name: the times of both are added", 4, 2, False),
    ):
        events, expected = _nested_events(draw, depth, names)
        given = sorted(events, key=lambda event: event[1]) if in_order else draw.shuffled(events)
        copy = list(given)
        saw = self_times(given)
        if saw is Ellipsis:
            raise NotAttempted
        expect.equal("events are not changed", given, copy)
        expect.that("a dict is returned, from name to time", isinstance(saw, dict), short_repr(saw), "a dict")
        expect.equal(f"{rule}; events {short_repr(copy[:6])}", dict(sorted(saw.items())), expected)
    expect.equal("no events: no times", self_times([]), {})


def _nested_events(draw: Draw, depth: int, names: int) -> tuple[list[tuple[str, float, float]], dict[str, float]]:
    """Events of three outermost operators, and the self time of each name. `names`: 0 for an own name for each."""
    events: list[tuple[str, float, float]] = []
    own: dict[str, float] = {}
    now = 0.0

    def call(level: int) -> None:
        nonlocal now
        name, start = f"op{draw.integer(1, names) if names else len(own)}", now
        for number in range(draw.integer(3, 4) if level < depth else 1):
            if number:
                call(level + 1)
            passed = draw.integer(1, 9) / 4  # sums of quarters are exact
            now, own[name] = now + passed, own.get(name, 0) + passed
        events.append((name, start, now))

    for _ in range(3):
        call(1)
        now += draw.integer(1, 9) / 4
    return events, dict(sorted(own.items()))


@exercise(
    "The largest micro-batch",
    hints=[
        "Which bytes do not depend on the number of sequences? How many does one sequence add, in its layers and in "
        "its logits? Exercise 3 and the picture of the peak have counted both.",
        "One sequence: each of L layers keeps 32 bytes for each of T D numbers, the loss takes 12 for each of T V. In "
        "addition there are 14 bytes per parameter. Memory for less than 24 bytes per parameter fits no step.",
        "First `if memory_bytes < 24 * num_params: return 0`. Then the memory minus 14 N, divided by "
        "32 L T D + 12 T V, without the remainder.",
    ],
)
def largest_micro_batch(expect: Expect, largest_micro_batch: Callable[..., float]) -> None:
    not_from_lablib(largest_micro_batch)
    draw = expect.draw
    heads = draw.integer(4, 7)
    # First the logits take most of the memory; then the layers, with a sequence about as large as the parameters.
    logits = GPTConfig(2, 64 * draw.integer(1, 3), 1, draw.integer(30_000, 50_000), draw.integer(200, 400))
    layers = GPTConfig(draw.integer(12, 16), 64 * heads, heads, draw.integer(300, 999), draw.integer(20, 24) * heads)
    for config in (logits, layers):
        expect.measured.clear()
        _expect_bytes_of_a_sequence(expect, largest_micro_batch, config)
        _expect_bytes_of_parameters(expect, largest_micro_batch, config)
        _expect_most_that_fit(expect, largest_micro_batch, config)


def _sequences(answer: Callable[..., float], memory_bytes: int, num_params: int, config: GPTConfig) -> float:
    """The answer, which must be a whole number."""
    sizes = (config.num_layers, config.d_model, config.max_seq_len, config.vocab_size)
    number = _number(answer(memory_bytes, num_params, *sizes), "sequences")
    on = f"{memory_bytes / 1e9:.4g} GB, {num_params / 1e6:.4g} million parameters"
    if number % 1:
        raise RuleBroken("a whole number of sequences", f"{number:,} ({on})", "as 0, 1, 2")
    return number


def _expect_bytes_of_a_sequence(expect: Expect, answer: Callable[..., float], config: GPTConfig) -> None:
    """If thousands fit, the memory divided by their number gives the bytes of one."""

    def bytes_of_one(config: GPTConfig) -> float:
        memory_bytes = _PER_SEQUENCE * _of_a_sequence(config)
        number = _sequences(answer, memory_bytes, 1, config)
        if not number:
            raise RuleBroken("sequences fit into much memory", f"0 into {memory_bytes / 1e9:,.0f} GB", "some")
        return memory_bytes / number

    tokens, width, vocab = config.max_seq_len, config.d_model, config.vocab_size
    on = f" (L={config.num_layers}, D={width}, T={tokens}, V={vocab})"
    one = bytes_of_one(config)
    expect.close(
        f"twice as long a sequence takes twice the bytes{on}",
        bytes_of_one(replace(config, max_seq_len=2 * tokens)),
        2 * one,
        rtol=2e-3,
    )
    more = bytes_of_one(replace(config, vocab_size=2 * vocab)) - one
    expect.close(f"bytes of the loss for each of T V logits{on}", more / tokens / vocab, 12, rtol=0.03)
    more = bytes_of_one(replace(config, num_layers=2 * config.num_layers)) - one
    each = more / tokens / width / config.num_layers
    expect.close(f"bytes that a layer keeps for each of T D numbers{on}", each, 32, rtol=0.03)


def _expect_bytes_of_parameters(expect: Expect, answer: Callable[..., float], config: GPTConfig) -> None:
    one = _of_a_sequence(config)
    few, many = 10**6, 10**6 + one  # parameters; the difference takes as much memory as 14 sequences
    memory_bytes = 24 * few + 100 * one + one // 2
    saw = _sequences(answer, memory_bytes + 14 * one, many, config)
    rule = "14 more bytes for one more parameter: the same number of sequences fits (2 + 12, no gradient yet)"
    expect.equal(rule, saw, _sequences(answer, memory_bytes, few, config))
    short = replace(config, max_seq_len=1)
    many = 100 * _of_a_sequence(short)
    for each in (8, 21, 23.9):
        rule = f"AdamW holds 24 bytes per parameter while it works: memory for {each} fits no step"
        expect.equal(rule, _sequences(answer, int(each * many), many, short), 0)
    fit = _sequences(answer, int(24.1 * many), many, short)
    expect.that("memory for 24.1 bytes per parameter fits a step", fit > 0, saw=f"{fit:g} sequences", expected="some")


def _expect_most_that_fit(expect: Expect, answer: Callable[..., float], config: GPTConfig) -> None:
    num_params = num_parameters(config)
    least = 10 * num_params // _of_a_sequence(config) + 1  # AdamW's bytes fit
    number = expect.draw.integer(least + 2, least + 6)
    few, more = (_peak_bytes(config, sequences) for sequences in (number, number + 1))
    for part in (0.3, 0.65):
        memory_bytes = int(few + part * (more - few))
        saw = _sequences(answer, memory_bytes, num_params, config)
        fits = f"{number} sequences fit into {memory_bytes:,} B"
        rule = f"{fits}: by the memory tracker they hold {few:,}, one more {more:,}"
        expect.equal(rule, int(saw), number)
    for part, number in ((0.9, 0), (1.1, 1)):
        rule = f"memory for the parameters and {part} sequences fits {number}"
        expect.equal(rule, _sequences(answer, 14_000 + int(part * _of_a_sequence(config)), 1000, config), number)


def _of_a_sequence(config: GPTConfig) -> int:
    """Bytes, without per-token and per-head numbers and without the inputs of the first layer and of the head."""
    return config.max_seq_len * (32 * config.num_layers * config.d_model + 12 * config.vocab_size)


def _peak_bytes(config: GPTConfig, sequences: int) -> int:
    """Peak memory of a step of the lab, by the memory tracker."""

    def step() -> None:
        with phase("setup"):
            model = GPT(config, dtype=torch.bfloat16)
            masters = [param.detach().float() for param in model.parameters()]
            optimizer = torch.optim.AdamW(masters, foreach=True)
            for master in masters:
                master.grad = torch.zeros_like(master)
            optimizer.step()
            optimizer.zero_grad()
            tokens = torch.zeros(sequences, config.max_seq_len, dtype=torch.long)
        next_token_loss(model(tokens), tokens).backward()
        for param, master in zip(model.parameters(), masters, strict=True):
            assert param.grad is not None
            master.grad = param.grad.float()
        optimizer.step()

    return launch(step, ranks=1, fidelity="shapes").memory.peak_bytes(0)
