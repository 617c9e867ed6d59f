"""Checks of lab 05: optimizers. Weights, states, matrices, code values and losses are random."""

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import _fused_adam, _multi_tensor_adam, _single_tensor_adam, adam
from torch.optim.adamw import adamw

from lablib.course import Expect, exercise
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed
from lablib.course.checks.operators import Operators
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe, returns_new_tensors
from lablib.optim.blockwise import codebook
from lablib.optim.newton_schulz import COEFFICIENTS
from lablib.text.units import plural

# ---- AdamW ----------------------------------------------------------------------------------------------------------

_FUNCTIONS = (adam, adamw, _single_tensor_adam, _multi_tensor_adam, _fused_adam)
_FUSED = [getattr(torch, name) for name in dir(torch) if name.startswith("_fused_adam")]
_MODULES = (torch, *(module for name, module in sys.modules.items() if name.startswith("torch.optim")))  # by a text
_CLASSES = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
_TORCHS = (*_CLASSES, *_FUNCTIONS, *_FUSED, *_MODULES)
Settings = tuple[float, tuple[float, float], float, float]  # lr, betas, eps, decay


@exercise(
    "AdamW",
    hints=[
        "Go line by line through the formula. Which of its symbols are kept from step to step, and which are computed "
        "in each step? Which value has t in the first step?",
        "Count t first: in the first step it is 1. Keep m and v without correction; m^ and v^ are new tensors. Decay "
        "changes w alone, not g, m or v.",
        '`state["t"] += 1`; `state["m"] = beta1 * state["m"] + (1 - beta1) * g`, and the same for v with `g**2`. '
        'Divide by `1 - beta1 ** state["t"]`; then one `w.sub_(...)` of lr times the decay and the quotient.',
    ],
)
def adamw_step(expect: Expect, adamw_step: Callable[..., Any]) -> None:
    not_from_lablib(adamw_step, refused=_TORCHS)
    draw = expect.draw
    for on, shape, settings, sizes in _adamw_cases(draw):
        expect.measured.clear()  # the result shows only the rules of the last case
        w, *grads = (size * draw.tensor(shape, torch.float64) for size in (1.0, *sizes))
        _expect_adamw(expect, adamw_step, w, _first_state(w), grads, settings, on)
    expect.measured.clear()
    rate, decay = draw.number(1e-3, 1e-1), draw.number(0.05, 0.5)
    w, m, root, *grads = (size * draw.tensor((4, 3), torch.float64).T for size in (1.0, 1e-3, 1e-3, 1e3, 1e3))
    state = {"t": draw.integer(500, 2000), "m": m, "v": root**2}
    on = f"a transposed w, a state from a file, of {state['t']} steps, then large gradients"
    _expect_adamw(expect, adamw_step, w, state, grads, (rate, (0.9, 0.999), 1e-8, decay), on)
    _expect_two_weights(expect, adamw_step)


def _expect_two_weights(expect: Expect, answer: Callable[..., Any]) -> None:
    """In float32, of one shape, in turn: each has its own state, of the weights' type."""
    expect.measured.clear()
    draw, settings = expect.draw, (0.01, (0.8, 0.97), 1e-6, 0.1)
    weights = [draw.tensor((3, 2)) for _ in range(2)]
    states = [_first_state(w) for w in weights]
    wanted = [{"w": w.double(), **_first_state(w.double())} for w in weights]
    for step in (1, 2, 3):
        for which in (0, 1):
            g = draw.tensor((3, 2))
            answer(weights[which], g, states[which], *settings)
            _adamw(wanted[which], g.double(), *settings)
        for which, word in enumerate(("first", "second")):
            on = f"two weights in turn, float32, step {step}, the {word}"
            for name in ("m", "v"):
                saw = states[which][name]
                expect.equal(f"{name} has the type of w ({on})", str(saw.dtype), "torch.float32")
                own = f"each weight has its own {name} ({on})"
                expect.close(own, saw.double(), wanted[which][name], rtol=1e-5, atol=1e-7)
            rule = f"w matches the formula ({on})"
            expect.close(rule, weights[which].double(), wanted[which]["w"], rtol=1e-5, atol=1e-6)


def _adamw_cases(draw: Draw) -> Iterator[tuple[str, tuple[int, ...], Settings, list[float]]]:
    """The case in words, the shape, the settings, and the size of the gradient in each step."""
    lr, eps, decay = draw.number(1e-3, 1e-1), 10 ** draw.number(-9.5, -8.5), draw.number(0.05, 0.5)
    betas = draw.number(0.5, 0.95), draw.number(0.96, 0.999)
    large = draw.number(0.1, 0.5)  # an eps so large that adding it in the wrong place shows
    yield f"the first step, without decay, eps {large:.3g}", (3, 4), (lr, betas, large, 0.0), [1.0]
    yield "the first step, without decay", (2, 1, 3), (lr, betas, eps, 0.0), [1.0]
    yield "five steps, without decay", (5,), (lr, betas, eps, 0.0), [1.0, 3.0, 0.2, 1.0, 0.5]
    yield f"two steps, without decay, eps {large:.3g}", (4,), (lr, betas, large, 0.0), [1.0, 0.5]
    yield "gradients of zero, without decay", (4,), (lr, betas, eps, 0.0), [0.0, 0.0]
    yield "gradients of zero, with decay", (2, 3), (lr, betas, eps, decay), [0.0, 0.0]
    yield "four steps of a vector, with decay", (5,), (lr, betas, eps, decay), [1.0, 0.1, 2.0, 1.0]
    yield f"a scalar, without means (betas 0), eps {large:.3g}", (), (lr, (0.0, 0.0), large, decay), [1.0, 2.0]
    yield "betas that are equal", (3, 4), (lr, (0.9, 0.9), eps, decay), [1.0, 1.0]


def _first_state(w: Tensor) -> dict[str, Any]:
    return {"t": 0, "m": torch.zeros_like(w), "v": torch.zeros_like(w)}


def _expect_adamw(
    expect: Expect,
    answer: Callable[..., Any],
    w: Tensor,
    state: dict[str, Any],
    grads: list[Tensor],
    settings: Settings,
    on: str,
) -> None:
    """`state` is the state after the steps before; the answer changes it."""
    lr, betas, eps, decay = settings
    ours, wanted = w.clone(), {"w": w.clone(), "t": state["t"], "m": state["m"].clone(), "v": state["v"].clone()}
    for grad in grads:
        before = wanted["w"].clone()
        call = observe(lambda w, g: answer(w, g, state, *settings), ours, grad)
        _adamw(wanted, grad, lr, betas, eps, decay)
        step = f"{on}, step {wanted['t']}"
        if 1 in call.changed:
            raise RuleBroken(f"the gradient stays unchanged ({step})", "g changed", "unchanged: work on a copy")
        if 0 in call.moved:
            saw = "w got other memory: tensors that share memory with it, as in the model, keep the old values"
            raise RuleBroken(f"w itself changes ({step})", saw, "w.sub_(...), which writes into w")
        for name in ("t", "m", "v"):
            if name not in state:
                raise RuleBroken(f"the state keeps its {name} ({step})", ", ".join(state), "t, m and v")
        expect.equal(f"t counts the steps, with this one ({step})", _number(state["t"]), wanted["t"])
        with_l2 = " alone: decay is not part of it" if decay else ""
        _expect_digits(expect, f"m is a running mean of the gradients{with_l2} ({step})", state["m"], wanted["m"])
        rule = f"v is a running mean of the gradients' squares{with_l2} ({step})"
        _expect_digits(expect, rule, state["v"], wanted["v"])
        _expect_weights(expect, ours, before, wanted, settings, step, call.value)


def _expect_weights(
    expect: Expect, w: Tensor, before: Tensor, wanted: dict[str, Any], settings: Settings, step: str, returned: Any
) -> None:
    off = (w - wanted["w"]).abs().max() > 1e-9 * max(1e-3, float(wanted["w"].abs().max()))
    said = next((words for words, other in _mistakes(before, wanted, settings) if off and _near(w, other)), "")
    if off and not said and torch.equal(w, before):
        saw = "a new tensor was returned" if isinstance(returned, Tensor) else "w is unchanged"
        raise RuleBroken(f"w itself changes ({step})", saw, "w.sub_(...), which writes into w")
    if said:
        raise RuleBroken(f"w matches the formula ({step})", f"w is as if {said}", "as in the formula")
    _expect_digits(expect, f"w matches the formula ({step})", w, wanted["w"])


def _expect_digits(expect: Expect, rule: str, saw: Any, wanted: Tensor) -> None:
    """Equal to nine digits; if only seven are, the message suspects float32."""
    if isinstance(saw, Tensor) and saw.shape == wanted.shape and wanted.any():
        error = float((saw - wanted).abs().max() / wanted.abs().max())
        if error < 1e-6 and not _near(saw.double(), wanted):
            said = f"off by {error:.1e} of the largest: the accuracy of float32; w and g are float64"
            raise RuleBroken(rule, said, "all in the type of w: no .float(), no new tensor without dtype=w.dtype")
    expect.close(rule, saw, wanted, rtol=1e-9, atol=1e-12)


def _adamw(state: dict[str, Any], g: Tensor, lr: float, betas: tuple[float, float], eps: float, decay: float) -> None:
    """The formula, written plainly."""
    beta1, beta2 = betas
    state["t"] += 1
    state["m"] = beta1 * state["m"] + (1 - beta1) * g
    state["v"] = beta2 * state["v"] + (1 - beta2) * g * g
    m, v = state["m"] / (1 - beta1 ** state["t"]), state["v"] / (1 - beta2 ** state["t"])
    state["w"] = state["w"] - lr * decay * state["w"] - lr * m / (v.sqrt() + eps)


def _mistakes(w: Tensor, state: Mapping[str, Any], settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Known mistakes with m and v right and w wrong: in words, and the w they give."""
    lr, (beta1, beta2), eps, decay = settings
    m, v, c1, c2 = state["m"], state["v"], 1 - beta1 ** state["t"], 1 - beta2 ** state["t"]
    direction = m / c1 / ((v / c2).sqrt() + eps)
    kept = w - lr * decay * w
    yield "nothing were corrected for the start at zero", kept - lr * m / (v.sqrt() + eps)
    yield "m were not corrected", kept - lr * m / ((v / c2).sqrt() + eps)
    yield "v were not corrected", kept - lr * m / c1 / (v.sqrt() + eps)
    yield "eps were inside the root", kept - lr * m / c1 / (v / c2 + eps).sqrt()
    yield "eps were added before the correction of v", kept - lr * m / c1 / ((v.sqrt() + eps) / math.sqrt(c2))
    yield "there were no eps", kept - lr * m / c1 / (v / c2).sqrt()
    yield "there were no root", kept - lr * m / c1 / (v / c2 + eps)
    yield "there were no decay", w - lr * direction
    yield "the decay were not multiplied by lr", w - decay * w - lr * direction
    yield "the decay grew the weights", w + lr * decay * w - lr * direction
    yield "the decay took its share of the new w", (w - lr * direction) * (1 - lr * decay)
    yield "the step went uphill", kept + lr * direction
    yield "the decay went through the division, as L2 does", w - lr * (m / c1 + decay * w) / ((v / c2).sqrt() + eps)


def _near(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-9, atol=1e-12))


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, Tensor) and value.numel() == 1 else value


# ---- Newton-Schulz --------------------------------------------------------------------------------------------------


_OTHERS = ("geqrf", "ormqr", "cholesky", "lu_solve", "inverse", "triangular_solve", "cholesky_inverse", "svd", "qr")


def _is_decomposition(name: str) -> bool:
    return name in _OTHERS or (name.lstrip("_").startswith("linalg_") and "norm" not in name)


@exercise(
    "Newton-Schulz",
    hints=[
        "What do (X X^T) X and (X X^T)^2 X have in common? How many products with X are needed?",
        "(X X^T)^2 X needs no new product with X: put both terms into one m x m matrix, b A + c A A with A = X X^T, "
        "and multiply X by it.",
        "`x = x / x.norm().clamp(min=1e-30)`; then in each step `gram = x @ x.T` and `x = a * x + (b * gram + c * "
        "gram @ gram) @ x`.",
    ],
)
def orthogonalize(expect: Expect, orthogonalize: Callable[[Tensor, int, Sequence[float]], Tensor]) -> None:
    not_from_lablib(orthogonalize)
    for on, x, num_steps, coefficients in _matrices(expect.draw):
        expect.measured.clear()
        where = f"{on}; {x.shape[0]} x {x.shape[1]}, {plural(num_steps, 'steps')}"
        begun = orthogonalize(x.clone(), 0, coefficients)
        with Operators() as operators:
            call = observe(orthogonalize, x, num_steps, coefficients)
        returns_new_tensors(expect, [call], like=x)
        changes_nothing(expect, [call])
        found = sorted(name for name in operators.names if _is_decomposition(name))
        if found:
            raise RuleBroken("products are enough: no decomposition", f"a call of {found[0]}", "only products: @")
        _expect_norm(expect, begun, x, where)
        _expect_orthogonal(expect, call.value, begun, num_steps, coefficients, where)
        short, long = sorted(x.shape)
        product = 2 * short**2 * long  # X X^T alone
        expect.budget(
            f"FLOPs of torch's products ({where})",
            operators.flops,
            at_most=num_steps * 3 * product,
            unit="FLOPs",
            at_least=num_steps * product,
        )


def _matrices(draw: Draw) -> Iterator[tuple[str, Tensor, int, tuple[float, float, float]]]:
    """The case in words, the matrix, the number of steps, the coefficients."""
    rows, more = draw.integer(3, 8), draw.integer(20, 40)
    a, b, c = draw.number(1, 3), draw.number(-2, -1), draw.number(0.2, 0.8)
    dtype = torch.float64
    yield "no step: a matrix over its norm", 7 * draw.tensor((rows, rows + 2), dtype), 0, (a, b, c)
    yield "only a", draw.tensor((rows, rows + 2), dtype), 1, (a, 0.0, 0.0)
    yield "a and b", draw.tensor((rows, rows + 2), dtype), 1, (a, b, 0.0)
    yield "one step", draw.tensor((rows, rows + 2), dtype), 1, (a, b, c)
    yield "several steps", draw.tensor((rows, rows + 2), dtype), draw.integer(2, 4), (a, b, c)
    yield "Muon's five steps", draw.tensor((rows, rows + 1), dtype), 5, COEFFICIENTS
    yield "a square matrix", draw.tensor((rows, rows), dtype), 2, (a, b, c)
    yield "a wide matrix", draw.tensor((rows, more), dtype), 2, (a, b, c)
    yield "a tall matrix", draw.tensor((more, rows), dtype), 2, (a, b, c)
    yield "a tall matrix, nearly square", draw.tensor((rows + 1, rows), dtype), 7, (1.5, -0.5, 0.0)  # converges
    yield "one row", draw.tensor((1, rows), dtype), 3, (a, b, c)
    yield "one column", draw.tensor((rows, 1), dtype), 3, (a, b, c)
    yield "a matrix of zeros", torch.zeros(rows, rows + 1, dtype=dtype), 2, (a, b, c)
    yield "very small numbers", 1e-20 * draw.tensor((rows, rows + 1), dtype), 2, (a, b, c)
    yield "float32", draw.tensor((rows, rows + 1)), 5, (1.5, -0.5, 0.0)
    yield "a view of every second number", draw.tensor((rows, more), dtype, contiguous=False), 2, (a, b, c)


def _expect_norm(expect: Expect, begun: Tensor, x: Tensor, on: str) -> None:
    """The matrix over its norm, or a little more: optimizers add up to 1e-7 to the norm, or use that as its minimum."""
    norm, rule = float(x.double().norm()), f"x over its norm, to which up to 1e-7 may be added ({on})"
    rtol = 1e-9 if x.dtype == torch.float64 else 1e-5
    least = norm / (norm + 1e-7)
    size = float(begun.double().norm())
    expect.close(rule, begun.double(), x.double() * (size / norm if norm else 0.0), rtol=rtol, atol=rtol * size)
    if norm and not least * (1 - rtol) <= size <= 1 + rtol:
        raise RuleBroken(rule, f"a matrix of norm {size:.9g}", f"from {least:.9g} to 1")


def _expect_orthogonal(
    expect: Expect, saw: Tensor, begun: Tensor, num_steps: int, coefficients: tuple[float, float, float], on: str
) -> None:
    a, b, c = coefficients
    u, s, vh = torch.linalg.svd(begun.double(), full_matrices=False)
    for _ in range(num_steps):
        s = a * s + b * s**3 + c * s**5
    rtol, atol = (1e-7, 1e-9 * float(s.abs().max())) if begun.dtype == torch.float64 else (1e-4, 1e-5)
    rule = f"U and V are unchanged, singular values follow the polynomial ({on})"
    expect.close(rule, saw.double(), u * s @ vh, rtol=rtol, atol=atol)


# ---- A step of Muon -------------------------------------------------------------------------------------------------


class _Block(nn.Module):
    """Square, tall and wide matrices, and vectors."""

    def __init__(self, width: int, more: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.up = nn.Linear(width, more)
        self.down = nn.Linear(more, width, bias=False)


class _Language(nn.Module):
    """The names of a GPT; `is_tied`: the head has the embedding's weight."""

    def __init__(self, width: int, more: int, vocab: int, is_tied: bool):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(more, width)
        self.blocks = nn.ModuleList([_Block(width, more) for _ in range(2)])
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if is_tied:
            self.head.weight = self.token_embedding.weight


@exercise(
    "A step of Muon",
    hints=[
        "First sort the weights: no gradient, a matrix inside a block, any other. For a matrix go line by line through "
        "B, N and O. How many numbers has O, and what do their squares add up to?",
        "O of m x n has min(m, n) singular values of 1 and m n numbers: its mean square is 1 / max(m, n). The scale "
        "makes the rms 0.2. B starts as zeros, and is kept without Nesterov's part.",
        "`means[name] = mu * means.get(name, 0) + (1 - mu) * g`; `orthogonalize(mu * means[name] + (1 - mu) * g)`; "
        "scale `0.2 * math.sqrt(max(w.shape))`; one `w.sub_(...)` for decay and step. Others: `adamw(name)`.",
    ],
)
def muon_step(expect: Expect, muon_step: Callable[..., Any]) -> None:
    not_from_lablib(muon_step, refused=(torch.optim.Muon, *_MODULES))
    draw = expect.draw
    width, vocab = draw.choice((3, 4, 6, 7)), draw.integer(20, 30)  # not 5: 1 over its root is about 0.2 times it
    for is_tied, frozen in ((False, ""), (True, ""), (False, "blocks.1.up.weight"), (False, "head.weight")):
        expect.measured.clear()  # the result shows only the rules of the last model
        model = _Language(width, draw.integer(8, 14), vocab, is_tied).double()
        with torch.no_grad():
            for param in model.parameters():
                param.copy_(draw.tensor(tuple(param.shape), torch.float64))
        on = ("the head tied to the embedding" if is_tied else "") or (
            f"no gradient of {frozen}" if frozen else "a GPT"
        )
        means: dict[str, Tensor] = {}
        wanted = {"means": {}, **{name: param.detach().clone() for name, param in model.named_parameters()}}
        mu, decay = draw.number(0.6, 0.9), draw.number(0.05, 0.5)
        for step in (1, 2, 3):  # the rate follows a schedule
            rate = draw.number(0.01, 0.1)
            with expect.grouped(f"each weight follows its formula ({on}, step {step})", "right"):
                _expect_muon(expect, muon_step, model, means, wanted, rate, mu, decay, frozen, on, step)


def _expect_muon(
    expect: Expect,
    answer: Callable[..., Any],
    model: nn.Module,
    means: dict[str, Tensor],
    wanted: dict[str, Any],
    lr: float,
    mu: float,
    decay: float,
    frozen: str,
    on: str,
    step: int,
) -> None:
    params, on = dict(model.named_parameters()), f"{on}, step {step}"
    for name, param in params.items():
        param.grad = None if name == frozen else 10 ** expect.draw.number(-2, 2) * _like(expect.draw, param)
    grads = {name: param.grad.clone() for name, param in params.items() if param.grad is not None}
    hidden = [name for name in params if name.startswith("blocks.") and params[name].ndim == 2 and name != frozen]
    hidden.sort(key=lambda name: len(set(params[name].shape)), reverse=True)  # of a square one both sides are equal
    others = [name for name in params if name not in hidden and name != frozen]
    places = {name: param.data_ptr() for name, param in params.items()}
    asked: list[str] = []
    orthogonalized: list[Tensor] = []

    def orthogonalize(x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 2:
            raise RuleBroken(f"Muon takes matrices ({on})", short_repr(x), "a weight with two dimensions")
        if x.dtype != torch.float64:
            raise RuleBroken(f"N has the type of w ({on})", str(x.dtype), "torch.float64, as w and g")
        orthogonalized.append(x)
        return _directions(x.detach().double())

    def adamw(name: str) -> None:
        if name not in params:
            raise RuleBroken(f"adamw gets the name of a weight ({on})", short_repr(name), "such as 'head.weight'")
        if name not in grads:
            raise RuleBroken(f"weights without a gradient stay as they are ({on})", f"adamw({name!r})", "no call")
        asked.append(name)
        with torch.no_grad():
            params[name].mul_(1 - lr * decay).add_(grads[name].sign(), alpha=-lr)

    answer(model, means, lr, mu, decay, orthogonalize, adamw)
    for name, param in params.items():
        if param.data_ptr() != places[name] or dict(model.named_parameters())[name] is not param:
            raise RuleBroken(f"weights change in place ({on})", f"{name} got other memory", "w.sub_(...)")
        if name in grads and (param.grad is None or not torch.equal(param.grad, grads[name])):
            raise RuleBroken(f"gradients stay unchanged ({on})", f"that of {name} changed", "a new tensor for B and N")
    if frozen and not torch.equal(params[frozen].detach(), wanted[frozen]):
        saw = f"{frozen} changed, and a mean of it is kept" if frozen in means else f"{frozen} changed"
        raise RuleBroken(f"weights without a gradient stay as they are ({on})", saw, "no change, nor decay")
    missed, twice = [each for each in others if each not in asked], [each for each in others if asked.count(each) > 1]
    if missed or twice or set(asked) - set(others):
        said = f"given to it: {', '.join(sorted(set(asked) - set(others)))}; " * bool(set(asked) - set(others))
        said += f"not given to it: {', '.join(missed)}; " * bool(missed)
        said += f"given to it twice: {', '.join(twice)}" * bool(twice)
        rule = f"AdamW takes the embeddings, the head and the vectors, each once ({on})"
        raise RuleBroken(rule, said.rstrip("; "), "all but the matrices inside blocks")
    expect.budget(
        f"calls of orthogonalize, one per matrix ({on})", len(orthogonalized), len(hidden), at_least=len(hidden)
    )
    for name in others:
        wanted[name] = wanted[name] * (1 - lr * decay) - lr * grads[name].sign()
        expect.close(f"AdamW alone changes its weights ({on}, {name})", params[name].detach(), wanted[name])
    expect.equal(f"means are kept of Muon's weights alone ({on})", sorted(means), sorted(hidden))
    for name in hidden:
        before, grad = wanted[name], grads[name]
        old = wanted["means"].get(name, torch.zeros_like(before))
        mean = wanted["means"][name] = mu * old + (1 - mu) * grad
        if isinstance(means[name], Tensor) and means[name].dtype != before.dtype:
            expect.equal(f"B has the type of w ({on}, {name})", str(means[name].dtype), str(before.dtype))
        said = next((words for words, other in _not_means(old, grad, mu) if _same(means[name], other)), "")
        if said and not _same(means[name], mean):
            raise RuleBroken(
                f"B is a running mean of the gradients ({on}, {name})", f"as if {said}", "B = mu B + (1 - mu) g"
            )
        expect.close(f"B is a running mean of the gradients ({on}, {name})", means[name], mean, atol=1e-12)
        stored = means[name].untyped_storage().nbytes()
        expect.budget(f"bytes kept of a matrix ({on}, {name})", stored, 8 * mean.numel(), unit="B")
        scale = 0.2 * math.sqrt(max(before.shape))
        wanted[name] = before - lr * decay * before - lr * scale * _directions(mu * mean + (1 - mu) * grad)
        saw = params[name].detach()
        mistakes = _no_muon(before, old, mean, grad, lr, mu, decay)
        said = "" if _same(saw, wanted[name]) else next((words for words, other in mistakes if _same(saw, other)), "")
        if said:
            remedy = "w.sub_(...), which writes into w" if said == _NOTHING else "as in the formula"
            raise RuleBroken(f"w follows the formula ({on}, {name})", f"w is as if {said}", remedy)
        expect.close(f"w follows the formula ({on}, {name})", saw, wanted[name], atol=1e-9)


def _like(draw: Draw, param: Tensor) -> Tensor:
    return draw.tensor(tuple(param.shape), torch.float64)


def _directions(x: Tensor) -> Tensor:
    """U V^T, exactly."""
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    return u @ vh


def _same(saw: Any, wanted: Tensor) -> bool:
    return isinstance(saw, Tensor) and saw.shape == wanted.shape and bool(torch.allclose(saw, wanted, 1e-9, 1e-9))


_NOTHING = "nothing were done"


def _not_means(old: Tensor, g: Tensor, mu: float) -> Iterator[tuple[str, Tensor]]:
    mean = mu * old + (1 - mu) * g
    yield "the new B were not stored in means", old
    yield "it were the gradient", g
    yield "it were a sum, B = mu B + g", mu * old + g
    yield "mu and 1 - mu were exchanged", (1 - mu) * old + mu * g
    yield "Nesterov's part were kept in it", mu * mean + (1 - mu) * g


def _no_muon(
    w: Tensor, old: Tensor, mean: Tensor, g: Tensor, lr: float, mu: float, decay: float
) -> Iterator[tuple[str, Tensor]]:
    """Known mistakes with B right and w wrong: in words, and the w they give."""
    rows, columns = w.shape
    ahead, kept = mu * mean + (1 - mu) * g, w - lr * decay * w
    scale, o = 0.2 * math.sqrt(max(rows, columns)), _directions(ahead)
    yield "the step were N, not its directions", kept - lr * ahead
    yield "B were used without Nesterov", kept - lr * scale * _directions(mean)
    yield "the gradient were used without the mean", kept - lr * scale * _directions(g)
    yield "Nesterov used the old B", kept - lr * scale * _directions(mu * old + (1 - mu) ** 2 * g)
    yield "Nesterov added all of g", kept - lr * scale * _directions(mu * mean + g)
    yield "the scale were 1", kept - lr * o
    yield "the scale were 0.2", kept - 0.2 * lr * o
    yield "the rms were 1", kept - 5 * lr * scale * o
    yield "the scale used the shorter side", kept - lr * 0.2 * math.sqrt(min(rows, columns)) * o
    yield "the scale used the number of rows", kept - lr * 0.2 * math.sqrt(rows) * o
    yield "the scale used the number of columns", kept - lr * 0.2 * math.sqrt(columns) * o
    yield "the scale had no root", kept - lr * 0.2 * max(rows, columns) * o
    yield "the scale were sqrt(max(1, m / n))", kept - lr * math.sqrt(max(1, rows / columns)) * o
    yield "there were no decay", w - lr * scale * o
    yield "the decay were not multiplied by lr", w - decay * w - lr * scale * o
    yield "the decay took its share of the new w", (w - lr * scale * o) * (1 - lr * decay)
    yield "the decay were part of N", w - lr * scale * _directions(ahead + decay * w)
    yield "the step went uphill", kept + lr * scale * o
    yield _NOTHING, w


# ---- Quantize a state -----------------------------------------------------------------------------------------------


@exercise(
    "Quantize a state",
    hints=[
        "Each row is a block. Which number of a row is its scale, and by which number would a row of zeros be divided?",
        "Between two neighbouring values, the middle decides which is nearer: the middles are the borders. Remove the "
        "zeros at the end before codes get the shape of x.",
        "Scales are `rows.abs().amax(dim=1)`, 0 replaced by 1; codes are `torch.bucketize(rows / scales[:, None], "
        "(values[:-1] + values[1:]) / 2)`. Cut the zeros off, give codes the shape of x, and the dtype uint8.",
    ],
)
def quantize_state(expect: Expect, quantize_state: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(quantize_state)
    kept = None
    for on, x, values, block in _states(expect.draw):
        expect.measured.clear()
        call = observe(quantize_state, x, values, block)
        if kept and any(not torch.equal(a, b) for a, b in zip(*kept, strict=True)):
            rule = f"codes and scales of the call before stay unchanged ({on})"
            raise RuleBroken(rule, "they changed", "new tensors in each call")
        ok = isinstance(call.value, tuple | list) and all(isinstance(one, Tensor) for one in call.value)
        kept = (list(call.value), [one.clone() for one in call.value]) if ok else None
        _expect_codes(expect, call, x, values, block, f"{on}; {plural(x.numel(), 'numbers')}, block {block}")


def _states(draw: Draw) -> Iterator[tuple[str, Tensor, Tensor, int]]:
    """The case in words, x, values, block."""
    signed, unsigned, block = codebook(True), codebook(False), draw.integer(3, 9)
    x = draw.tensor((block * 4,))
    yield "whole blocks", x, signed, block
    yield "a matrix", draw.tensor((4, block)), signed, block
    yield "blocks that go over the ends of rows", draw.tensor((3, block + 1)), signed, block
    yield "a last block that is shorter", draw.tensor((block * 3 + draw.integer(1, block - 1),)), signed, block
    yield "one block longer than x", draw.tensor((3,)), signed, 256
    yield "blocks of one number", draw.tensor((5,)), signed, 1
    outlier = draw.tensor((block * 3,))
    outlier[draw.integer(block, 2 * block - 1)] = -1000.0
    yield "a negative outlier in the second block", outlier, signed, block
    zeros = draw.tensor((block * 3,))
    zeros[block : 2 * block] = 0.0
    yield "a block of zeros", zeros, signed, block
    yield "no number below zero, values from 0", draw.tensor((block * 3,)).square(), unsigned, block
    yield "very small numbers", 1e-33 * draw.tensor((block * 2 + 1,)), signed, block
    count = draw.integer(5, 60)
    for again in ("", ", and as many again"):  # borders kept from the first call are wrong in the second
        inner = 2 * torch.sigmoid(3 * draw.tensor((count,))) - 1
        drawn = torch.cat([torch.tensor([-1.0, 0.0, 1.0]), inner]).unique()
        yield f"{len(drawn)} other values{again}", draw.tensor((2, 3, 20)), drawn, block
    yield "a transposed matrix", draw.tensor((block + 2, 3)).T, signed, block
    yield "one number", draw.tensor(()), signed, block
    middles = (signed[1:] + signed[:-1]) / 2
    close = torch.cat([signed[-1:], middles * (1 - 1e-4), middles * (1 + 1e-4)]) * draw.number(0.1, 10)
    yield "close to the middle of two values", close, signed, len(close)
    count = 1000 + draw.integer(1, 99)
    many = draw.tensor((count,)) * torch.tensor([1.0, 1e-4]).repeat(count)[:count]
    yield "numbers of many sizes", many[torch.tensor(draw.shuffled(range(count)))], signed, 100


def _expect_codes(expect: Expect, call: Observed, x: Tensor, values: Tensor, block: int, on: str) -> None:
    value = call.value
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(part, Tensor) for part in value):
        raise RuleBroken(
            f"codes and scales are returned ({on})", short_repr(value), "two tensors: return codes, scales"
        )
    changes_nothing(expect, [call])
    codes, scales = value
    num_blocks = math.ceil(x.numel() / block)
    expect.equal(f"there is one scale per block ({on})", tuple(scales.shape), (num_blocks,))
    expect.equal(f"codes have the shape of x ({on})", tuple(codes.shape), tuple(x.shape))
    dtypes = tuple(str(part.dtype).removeprefix("torch.") for part in (codes, scales))
    expect.equal(f"a code takes one byte, a scale four ({on})", dtypes, ("uint8", "float32"))
    if codes.untyped_storage().nbytes() > x.numel() + 3:
        saw = f"{codes.untyped_storage().nbytes()} bytes behind {x.numel()} codes"
        raise RuleBroken(
            f"the codes keep no padding alive ({on})", saw, "a copy of the part: .clone() or .to(torch.uint8)"
        )
    if scales.untyped_storage().nbytes() > 4 * num_blocks:
        saw = f"{scales.untyped_storage().nbytes()} bytes behind {plural(num_blocks, 'scales')}"
        raise RuleBroken(f"the scales keep no other tensor alive ({on})", saw, "a copy of the part: .clone()")
    flat = x.flatten()
    largest = torch.stack([part.abs().max() for part in flat.split(block)])
    if (largest == 0).any():
        expect.equal(f"the scale of a block of zeros is 1 ({on})", scales[largest == 0].unique().tolist(), [1.0])
    wanted = torch.where(largest > 0, largest, 1.0)
    expect.close(f"a scale is the largest |x| of its block ({on})", scales, wanted, rtol=1e-6)
    if int(codes.max()) >= len(values):
        raise RuleBroken(f"a code is the index of a value ({on})", f"{int(codes.max())}", f"0 to {len(values) - 1}")
    _expect_nearest(expect, codes.flatten(), flat, wanted, values, block, on)


def _expect_nearest(
    expect: Expect, codes: Tensor, flat: Tensor, scales: Tensor, values: Tensor, block: int, on: str
) -> None:
    shares = flat.double() / scales.double().repeat_interleave(block)[: len(flat)]
    distances = (shares[:, None] - values.double()).abs()
    off, least = distances.gather(1, codes.long()[:, None])[:, 0], distances.amin(dim=1)
    wrong = (off > least + 1e-6 * shares.abs() + 1e-12).nonzero()
    if len(wrong):
        at = int(wrong[0])
        got, best = int(codes[at]), int(distances[at].argmin())
        saw = f"x / scale = {shares[at]:.6g} became code {got}, the value {values[got]:.6g}; {len(wrong)} are wrong"
        raise RuleBroken(f"a code is the index of the nearest value ({on})", saw, f"{best}, {values[best]:.6g}")
    expect.that(f"codes are the indices of the nearest values ({on})", True, saw=f"all {len(flat)}", expected="")


# ---- Choose for a budget --------------------------------------------------------------------------------------------

_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


@exercise(
    "Choose for a budget",
    hints=[
        "Three questions, one after the other: which fit? Which of these is best? Which of these are as good?",
        "`interval(losses[name], losses[best])` gives both ends. The upper one is the most that `name` may lose: "
        "compare it with the margin. The best is as good as itself.",
        "`fitting = [name for name in losses if need[name] <= budget]`; none: return None. `best = min(fitting, "
        "key=lambda name: statistics.mean(losses[name]))`; then `min` over those as good by (need, mean loss).",
    ],
)
def choose_optimizer(expect: Expect, choose_optimizer: Callable[..., str | None]) -> None:
    not_from_lablib(choose_optimizer)
    first, *others = (list(_tables(expect.draw, num_seeds)) for num_seeds in (3, 5, 2, 4))
    sharp = list(_sharp_tables(expect.draw.integer(0, 3)))
    for table in (*first[:10], *sharp, *first[10:], *chain(*others)):  # simple cases first
        on, losses = table[:2]
        keeps_order = on == _EQUAL or table in sharp
        order = list(losses) if keeps_order else expect.draw.shuffled(list(losses))
        _expect_choice(expect, choose_optimizer, table, order)


def _expect_choice(
    expect: Expect, choose_optimizer: Callable[..., str | None], table: "Table", order: Sequence[str]
) -> None:
    on, losses, need, budget, margin, wanted = table
    expect.measured.clear()
    names = dict(zip(losses, expect.draw.shuffled(_NAMES), strict=False))
    given = {names[name]: losses[name] for name in order}
    bytes_of = {names[name]: need[name] for name in expect.draw.shuffled(order)}
    call = observe(choose_optimizer, given, bytes_of, budget, margin)
    changes_nothing(expect, [call])
    shown = "; ".join(
        f"{name} {need[key]:g} B, {' '.join(f'{x:.4f}' for x in losses[key])}" for key, name in names.items()
    )
    rule = f"{on} (budget {budget:g}, margin {margin:.4g}; {shown})"
    expect.equal(rule, call.value, wanted and names[wanted])


_NAMES = ("adamw", "lion", "muon", "soap", "lamb", "galore", "sophia")
_EQUAL = "equal losses are as good"  # the best is given first: an answer that takes only the first one fails
Table = tuple[str, dict[str, list[float]], dict[str, float], float, float, str | None]


def _tables(draw: Draw, num_seeds: int) -> Iterator[Table]:
    """The table in words, losses, bytes, budget, margin, the answer. `best` has the lowest mean loss."""
    # The effect of a seed is the same for all optimizers, and larger than their differences.
    seeds = draw.shuffled([2 + 0.3 * place + draw.number(0, 0.1) for place in range(num_seeds)])
    noise = [draw.number(-1, 1) + place for place in range(num_seeds)]
    spread = draw.number(0.01, 0.03)
    noise = [spread * (one - statistics.mean(noise)) / statistics.stdev(noise) for one in draw.shuffled(noise)]
    half_width = _T[num_seeds] * spread / math.sqrt(num_seeds)
    margin = 2 * half_width

    def ending(end: float) -> list[float]:
        """Losses with an interval of differences from `best` that ends at `end`: the mean is half a width below."""
        return [seed + one + end - half_width for seed, one in zip(seeds, noise, strict=True)]

    def more(loss: float) -> list[float]:
        return [seed + loss for seed in seeds]

    clear = {"best": seeds, "b": more(6.0), "c": more(4.0)}
    yield "of clearly different losses the best is taken", clear, *_need(8, 4, 2), 0.5, "best"
    yield "an optimizer that needs more than the budget is out", clear, *_need(8, 4, 2, 5), 0.5, "c"
    yield "an optimizer that needs exactly the budget fits", clear, *_need(8, 4, 2, 8), 0.5, "best"
    yield "None if nothing fits", clear, *_need(8, 4, 2, 1), 0.5, None
    good = {"best": seeds, "b": ending(0.6 * margin), "c": ending(0.55 * margin)}
    yield "the best is taken if it needs fewest bytes", good, *_need(4, 8, 6), 5.0, "best"
    yield "of those as good the one with fewest bytes is taken", good, *_need(8, 4, 6), 5.0, "b"
    yield "the effect of a seed on all losses cancels", good, *_need(8, 4, 6), margin, "b"
    seedwise = "differences of 0.01 on each seed"
    yield f"{seedwise}, within the margin", {"best": seeds, "b": more(0.01)}, *_need(8, 4), 0.012, "b"
    yield f"{seedwise}, beyond the margin", {"best": seeds, "b": more(0.01)}, *_need(8, 4), 0.008, "best"
    linked = {"best": seeds, "b": ending(3.6 * half_width), "c": ending(6.8 * half_width)}  # c less b: 3.2 on each
    rule = "as good as the second best is not as good as the best"
    yield rule, linked, *_need(8, 4, 2), 4 * half_width, "b"
    wide = {"best": seeds, "b": ending(1.3 * half_width)}
    yield "an interval that holds 0 and ends beyond the margin", wide, *_need(8, 4), 0.9 * half_width, "best"
    for bound in (1.2 * half_width, margin, 4 * half_width):
        for share in (0.7, 0.97, 1.03, 1.5):
            if share * bound > 1.05 * half_width:  # the mean is above 0
                rule = f"an interval that ends at {share} of the margin ({num_seeds} seeds)"
                table = {"best": seeds, "b": ending(share * bound)}
                yield rule, table, *_need(8, 4), bound, "b" if share < 1 else "best"
    out = {"best": more(-5.0), "b": seeds, "c": ending(0.7 * margin)}
    yield "losses are compared with the best that fits, not the best of all", out, *_need(8, 4, 2, 5), margin, "c"
    equal = {"best": seeds, "b": ending(0.6 * margin), "c": ending(0.8 * margin)}
    yield "at equal bytes the lower mean loss is taken", equal, *_need(8, 4, 4), margin, "b"
    yield _EQUAL, {"best": seeds, "b": list(seeds), "c": more(4.0)}, *_need(8, 4, 2), 0.0, "b"
    yield "one optimizer alone", {"best": seeds}, {"best": 4.0}, draw.number(4, 9), 0.0, "best"


def _sharp_tables(more: int) -> Iterator[Table]:
    """Tables in which one wrong step changes the answer, in this order; `more` is on every loss."""

    def row(*losses: float) -> list[float]:
        return [loss + more for loss in losses]

    a, wide = row(2.0, 2.1, 2.2), row(2.3, 2.25, 2.05)
    near, apart = row(2.05, 2.1, 2.18), row(3.0, 3.1, 3.2)  # 0.01 +- 0.09 above a, and 1
    reaching = {"best": a, "b": row(2.0, 2.12, 2.31)}  # 0.043 +- 0.146
    yield "an interval around the margin, its mean above it", reaching, *_need(8, 4), 0.03, "best"
    yield "an interval around the margin, its mean below it", reaching, *_need(8, 4), 0.1, "best"
    yield "differences are taken seed by seed", {"best": a, "b": row(2.23, 2.03, 2.13)}, *_need(8, 4), 0.2, "best"
    yield "differences that spread widely", {"best": a, "b": row(2.3, 2.3, 2.0)}, *_need(8, 4), 0.45, "best"
    # b less a is 0.1 +- 0.569, c less b 0.01 +- 0.569
    middle = {"best": a, "b": wide, "c": [loss + 0.11 for loss in a]}
    yield "losses are compared with the best alone", middle, *_need(8, 6, 4), 0.15, "c"
    b = row(2.1, 2.0, 2.2)
    bests = {"first": row(2.15, 1.95, 2.05), "middle": row(1.95, 2.15, 2.15)}
    bests |= {"worst": row(1.9, 2.05, 2.3), "least": row(2.02, 2.03, 2.04)}
    for which, best in bests.items():  # by the `which` seed b would be best, and c, 0.03 above b, as good
        rule = f"the best has the lowest mean: its {which} loss does not count"
        yield rule, {"b": b, "best": best, "c": [loss + 0.03 for loss in b]}, *_need(8, 6, 4), 0.1, "best"
    rule, four = "at equal bytes the lower mean loss is taken", {"best": 8.0, "b": 4.0, "c": 4.0, "d": 4.0}
    yield rule, {"best": a, "c": row(2.06, 2.11, 2.19), "d": row(2.07, 2.12, 2.2), "b": near}, four, 10.0, 0.15, "b"
    yield rule, {"best": a, "b": near, "c": row(2.04, 2.13, 2.19)}, *_need(8, 4, 4), 0.15, "b"
    yield rule, {"best": a, "b": row(2.13, 2.14, 2.06), "c": row(2.14, 2.12, 2.1)}, *_need(8, 4, 4), 0.5, "b"
    yield rule, {"best": a, "b": near}, *_need(4, 4), 0.15, "best"
    yield "a budget may have a fraction", {"best": a, "b": apart}, {"best": 2.9, "b": 1.5}, 2.1, 0.5, "b"
    yield "a little more than the budget is out", {"best": a, "b": apart}, {"best": 3.1, "b": 1.5}, 2.96, 0.5, "b"
    yield "a fraction of a byte counts", {"best": a, "b": near}, {"best": 2.5, "b": 2.03}, 3.0, 0.15, "b"
    over = {"best": 2.04, "b": 1.5}
    yield "a hundredth of a byte over the budget is out", {"best": a, "b": apart}, over, 2.03, 0.5, "b"
    tenth = {"best": a, "b": [loss + 0.1 for loss in a]}
    yield "a hundredth of a byte counts", tenth, {"best": 2.04, "b": 2.03}, 3.0, 0.15, "b"
    yield "an optimizer that needs 0 bytes fits", {"best": a, "b": apart}, {"best": 0.0, "b": 0.5}, 1.0, 0.5, "best"
    yield "a budget may be 0", {"best": a, "b": apart}, {"best": 0.0, "b": 0.5}, 0.0, 0.5, "best"
    b = [loss + 0.0004 for loss in a]
    yield "0.0004 more on each seed, the margin 0.0003", {"best": a, "b": b}, *_need(8, 4), 0.0003, "best"
    fine = {"b": b, "best": a, "c": [loss + 0.0102 for loss in a]}  # as good as b, and not as the best
    yield "a mean that is 0.0004 lower counts", fine, *_need(8, 9, 4), 0.01, "best"


def _need(*sizes: float) -> tuple[dict[str, float], float]:
    """Bytes of best, b, c; and the budget: the number after them, or one in which all fit."""
    names = ("best", "b", "c")[: 2 if len(sizes) == 2 else 3]
    return dict(zip(names, map(float, sizes), strict=False)), float(sizes[3]) if len(sizes) > 3 else 10.0
