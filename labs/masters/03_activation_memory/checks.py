"""Checks of lab 03: activation memory. Chains, sizes and seconds are random; gradients are in float64."""

import copy
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from lablib import Run, launch
from lablib.course import Expect, exercise
from lablib.course.checks.comparison import plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe
from lablib.memory import checkpointing
from lablib.memory.checkpointing import Plan, Segment, checkpoint_every, peak_bytes, recomputed
from lablib.text.units import format_quantity, plural


class _Layer(nn.Module):
    """A product, dropout and two functions: saves a few times its input. Notes its number when its forward runs."""

    def __init__(self, draw: Draw, width: int, number: int, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(draw.tensor((width, width), dtype) / width**0.5)
        self.number = number
        self.runs: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.runs.append(self.number)
        return nn.functional.dropout(torch.sin(x @ self.weight).exp(), 0.2, self.training) + x


def _returned(value: Any) -> str:
    if value is None:
        return "None: is there a return?"
    return f"{type(value).__name__}: {short_repr(value)}" if isinstance(value, list | tuple) else short_repr(value)


def _look(module: nn.Module) -> dict[str, Any]:
    """State of a module and its submodules: training mode, attributes and plain values, number of hooks."""
    plain = bool | int | float | str | None
    looks: dict[str, Any] = {}
    for path, one in module.named_modules():
        for name, value in vars(one).items():
            seen = value if isinstance(value, plain) else len(value) if name.endswith("_hooks") else ""
            looks[f"{path}.{name}".strip(".")] = seen
    for path, one in module.named_parameters():
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            looks[f"{path}.{name}"] = len(getattr(one, name) or ())
    return looks


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Names of the entries that changed."""
    nothing = object()
    names = [name for name in before | after if before.get(name, nothing) != after.get(name, nothing)]
    return ", ".join(names[:3])


# ---- checkpoint every k layers ----


@exercise(
    "Checkpoint every k layers",
    hints=[
        "Which layers does the segment hold that begins at layer `start`? And where does the next one begin?",
        "`for start in range(0, len(layers), k)`: the segment's layers are `layers[start : start + k]`, a shorter list "
        "at the end. The output of a segment is the input of the next.",
        "In the loop: `segment = nn.Sequential(*layers[start : start + k])`, and `x` becomes the result of "
        "`checkpoint` for this segment and x. A `lambda` instead of the module would look up the layers only in "
        "backward, after the loop.",
    ],
)
def run_in_segments(expect: Expect, run_in_segments: Callable[[list[nn.Module], int, Tensor], Tensor]) -> None:
    not_from_lablib(run_in_segments)
    draw = expect.draw
    k = draw.integer(3, 5)
    cases = [
        (k * 2 + draw.integer(1, k - 1), k, True),
        (k * draw.integer(2, 3), k, False),
        (draw.integer(5, 9), 1, True),
        (draw.integer(2, 4), draw.integer(5, 9), False),
        (1, 1, True),
        (draw.integer(13, 16), draw.integer(6, 8), True),
        (draw.integer(12, 14), 2, True),
    ]
    for number, case in enumerate(cases):
        expect.measured.clear()  # the result shows only the rules of the last chain
        _expect_segments(expect, run_in_segments, *case, comes_second=number == 0)


def _expect_segments(
    expect: Expect, answer: Callable, num_layers: int, k: int, needs_gradient: bool, comes_second: bool
) -> None:
    """`comes_second`: another chain runs before this one, and no memory of either may be left."""
    draw = expect.draw
    width, tokens = draw.integer(8, 20), draw.integer(200, 300)  # activations are larger than parameters
    dtype = torch.float64 if needs_gradient else torch.float32
    layers = [_Layer(draw, width, number, dtype) for number in range(num_layers)]
    for number in (0, draw.integer(0, num_layers - 1)):
        layers[number].eval()
    x = draw.tensor((tokens, width) if needs_gradient else (2, tokens // 2, width), dtype)
    x.requires_grad_(needs_gradient)
    on = f"{plural(num_layers, 'layers')}, k={k}"
    seeds = draw.integers(2, 0, 10**6)

    def program(layers: list[_Layer], x: Tensor, k: int, run: Callable) -> dict[str, Any]:
        x = x.detach().requires_grad_(needs_gradient)
        held, given = list(layers), x.detach().clone()
        runs: list[int] = []
        for layer in held:
            layer.runs = runs
            layer.weight.grad = torch.ones_like(layer.weight)  # of a micro-batch before
        looks = [_look(layer) for layer in held]
        if comes_second:
            run(held[::-1], k, x)
            runs.clear()
            gc.collect()  # a recursive function may hold its variables until then
        torch.manual_seed(seeds[0])
        y = run(layers, k, x)
        if not isinstance(y, Tensor):
            raise RuleBroken("the chain's output is returned", _returned(y), "a tensor")
        told: dict[str, Any] = {"output": y.detach().clone()}
        told["same list"] = len(held) == len(layers) and all(a is b for a, b in zip(held, layers, strict=True))
        told["same x"] = torch.equal(given, x.detach()) and x.requires_grad == needs_gradient
        told["generator"] = torch.get_rng_state()
        told["forward"] = list(runs)
        if not y.requires_grad:
            rule = f"backward can go through the output ({on})"
            raise RuleBroken(rule, "an output without a graph", "an output with a graph")
        torch.manual_seed(seeds[1])
        before = torch.get_rng_state()
        try:
            y.square().sum().backward()
        except CheckpointError:
            rule = f"a segment runs the same layers again in backward ({on})"
            saw = (
                "torch found other tensors: does a function look up a variable of the loop (`start`, `segment`) "
                "after the loop?"
            )
            raise RuleBroken(rule, saw, "the layers of forward") from None
        told["same generator"] = torch.equal(before, torch.get_rng_state())
        changes = [_changed(look, _look(layer)) for layer, look in zip(held, looks, strict=True)]
        told["changed"] = next((f"{what} of layer {i} changed" for i, what in enumerate(changes) if what), "")
        told["again"] = runs[len(told["forward"]) :]
        told["gradients"] = [layer.weight.grad for layer in held] + ([x.grad] if needs_gradient else [])
        if comes_second:
            gc.collect()
        return told

    def plain(layers: Sequence[nn.Module], k: int, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    def every_k(layers: Sequence[nn.Module], k: int, x: Tensor) -> Tensor:
        return checkpointing.run(checkpoint_every(len(layers), k), layers, x)

    with _quick_collections() if comes_second else nullcontext():
        run = expect.launch(program, layers, x, k, answer, ranks=1)
        reference, best = (launch(program, layers, x, k, one, ranks=1) for one in (plain, every_k))
    saw, wanted = run.values[0], reference.values[0]
    is_same = saw["same list"] and saw["same x"]
    expect.that(
        "the list of layers and x stay unchanged",
        is_same,
        "as given" if is_same else f"{'x' if saw['same list'] else 'the list'} changed",
        "as given",
    )
    expect.equal(f"each layer runs once in forward, in order ({on})", saw["forward"], list(range(num_layers)))
    expect.equal(f"the output is the same as the chain's ({on})", saw["output"], wanted["output"])
    rule = f"the generator has the same state as after the chain's forward ({on})"
    is_same = torch.equal(saw["generator"], wanted["generator"])
    expect.that(rule, is_same, "the chain's state" if is_same else "another state", "the chain's state")
    rule = f"layers stay unchanged: mode, attributes, hooks ({on})"
    expect.that(rule, not saw["changed"], saw["changed"] or "unchanged", "unchanged")
    names = [*(f"of layer {number}'s weight" for number in range(num_layers)), "of x"]
    _expect_gradients(expect, saw["gradients"], wanted["gradients"], names, on)
    rule = f"backward leaves the generator unchanged ({on})"
    expect.that(rule, saw["same generator"], "unchanged" if saw["same generator"] else "another state", "unchanged")
    most = max(map(saw["again"].count, range(num_layers)))
    expect.budget(f"runs of a layer in backward ({on})", most, 1, "runs")
    segments = [list(range(start, min(start + k, num_layers))) for start in range(0, num_layers, k)]
    order = [number for segment in reversed(segments) for number in segment]
    # The last segment may be kept: backward begins there, so the peak is the same.
    wanted_order = order if saw["again"] != order[len(segments[-1]) :] else saw["again"]
    rule = f"segments of k layers run again in backward, the last segment first ({on})"
    is_same = saw["again"] == wanted_order
    expect.that(rule, is_same, "as expected" if is_same else f"layers {saw['again']}", f"layers {wanted_order}")
    held, least, all_kept = (int(_activations(one).max()) for one in (run, best, reference))
    told = f"with everything kept {all_kept / least:.2f} times the budget"
    if comes_second:
        left, plainly_left = (int(_activations(one)[-1]) for one in (run, reference))
        expect.budget(f"activations left when the step is over ({on})", left, plainly_left, "B")
    expect.budget(f"activations at the peak ({on}; {told})", held, 1.02 * least + 2 * x.nbytes, "B")


@contextmanager
def _quick_collections() -> Iterator[None]:
    """Limit `gc.collect()` to objects made inside, without the million objects of a notebook."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _activations(run: Run) -> Any:
    """Bytes after each event, without parameters and their gradients."""
    curves = run.memory.curve(0)[1]
    first, *others = (curve for name, curve in curves.items() if name not in ("parameter", "gradient"))
    return sum(others, first)


def _expect_gradients(expect: Expect, saw: Sequence[Any], wanted: Sequence[Any], names: Sequence[str], on: str) -> None:
    rule = f"gradients are the same as without checkpoints ({on})"
    missing = [name for name, gradient in zip(names, saw, strict=False) if gradient is None]
    if missing:
        raise RuleBroken(rule, f"{len(missing)} of {len(saw)} gradients are None: {missing[0]}", "a gradient for each")
    with expect.grouped(rule, "equal to the last bits"):
        for name, got, want in zip(names, saw, wanted, strict=False):
            tol = 1e-9 if want.dtype == torch.float64 else 1e-5
            expect.close(f"{rule}: {name}", got, want, rtol=tol, atol=tol * float(want.abs().max()))


# ---- recompute without a trace ----


class _RunningMean(nn.Module):
    """Like batch norm, it keeps running statistics and a counter, which do not affect its result."""

    def __init__(self, width: int):
        super().__init__()
        self.mean: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.1)
        self.count += 1
        return x - x.mean(0)


class _Power(nn.Module):
    """Keeps the mean power of its inputs, in a buffer outside the state dictionary."""

    def __init__(self, width: int):
        super().__init__()
        self.power: Tensor
        self.register_buffer("power", torch.zeros(width, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.power.lerp_(x.detach().square().mean(0), 0.25)
        return x.tanh()


class _Noise(nn.Module):
    """Random numbers that no layer of torch draws."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand_like(x)


class _Checkpoint(torch.autograd.Function):
    """The lab's checkpoint; it also records the state before and after the answer's call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, segment: nn.Module, recompute: Callable, told: dict[str, Any]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.given = segment, recompute, told, torch.get_rng_state()
        told["output"] = segment(x)
        return told["output"].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (dy,) = gradients
        segment, recompute, told, rng_state = ctx.given
        x = ctx.saved_tensors[0].detach().requires_grad_()
        runs = told["runs"]
        told["look"], told["objects"] = _look(segment), list(segment.buffers())
        hook = next(segment.children()).register_forward_hook(lambda *ignored: runs.append(1))
        told["before"] = _state(segment)
        with torch.enable_grad():
            told["call"] = observe(recompute, segment, x, rng_state)
        told["after"] = _state(segment)
        hook.remove()
        what = _changed(told["look"], _look(segment))
        told["changed"] = what and f"{what} changed"
        told["same objects"] = all(a is b for a, b in zip(told["objects"], segment.buffers(), strict=True))
        y = told["call"].value
        if isinstance(y, Tensor) and y.requires_grad and y.shape == dy.shape:
            y.backward(dy)
        return x.grad, None, None, None


@dataclass(frozen=True)
class _State:
    """The generator's state; every buffer, and how often it was written."""

    rng: Tensor
    buffers: dict[str, Tensor]
    writes: dict[str, int]


def _state(segment: nn.Module) -> _State:
    buffers = dict(segment.named_buffers())
    copies = {name: one.clone() for name, one in buffers.items()}
    return _State(torch.get_rng_state(), copies, {name: one._version for name, one in buffers.items()})


def _generator(told: dict[str, Any]) -> str:
    """Where the answer left the generator."""
    is_first = torch.equal(told["after"].rng, told["call"].args[2])
    return "the state before the first run" if is_first else "another state: it was not restored"


def _buffer(told: dict[str, Any], name: str) -> str:
    """The state of a buffer after the answer's call; the segment itself writes to it once."""
    before, after = told["before"], told["after"]
    written = after.writes[name] - before.writes[name] > 1
    value, old = after.buffers[name], before.buffers[name]
    if not written:
        return "the value after the second run: not written back, or the saved value is no copy"
    return (
        "written back, with another value: was it saved before the run?"
        if value.any() or not old.any()
        else "zero, not the value after the first run"
    )


@exercise(
    "Recompute without a trace",
    hints=[
        "Which state does the second run need, and which one do the next lines of the program expect?",
        "Save the generator's state and a copy of each buffer first. Then set the generator to `rng_state`, run the "
        "segment, and restore the saved state and values.",
        "`list(segment.buffers())` holds the buffers themselves: save `buffer.clone()` of each. Write each back in "
        "place, hidden from autograd, which may have saved it: `buffer.data.copy_(old)`.",
    ],
)
def recompute(expect: Expect, recompute: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
    not_from_lablib(recompute)
    draw = expect.draw
    state = torch.get_rng_state()
    try:
        for kind in _KINDS:
            expect.measured.clear()  # the result shows only the rules of the last segment
            _expect_no_trace(expect, recompute, kind, width=draw.integer(3, 9))
    finally:
        torch.set_rng_state(state)


# The modules after a linear layer.
_KINDS: dict[str, Callable[[int], list[nn.Module]]] = {
    "dropout": lambda width: [nn.Dropout(0.5)],
    "a linear layer alone": lambda width: [],
    "a running mean": lambda width: [_RunningMean(width)],
    "dropout in eval mode": lambda width: [nn.Dropout(0.5).eval()],
    "other random numbers than dropout's": lambda width: [_Noise()],
    "a running power": lambda width: [_Power(width)],
    "both, one inside another": lambda width: [
        nn.Sequential(nn.Sequential(_RunningMean(width)), nn.Dropout(0.5)),
        *(_RunningMean(width) for _ in range(3)),
    ],
    "torch's batch norm": lambda width: [nn.BatchNorm1d(width, dtype=torch.float64), nn.Dropout(0.5)],
    "torch's batch norm without statistics, with None as buffers": lambda width: [
        nn.BatchNorm1d(width, dtype=torch.float64, track_running_stats=False)
    ],
    "all of it in eval mode": lambda width: [
        _RunningMean(width),
        nn.BatchNorm1d(width, dtype=torch.float64),
        nn.Dropout(0.5),
        _Noise(),
    ],
}


def _segment(draw: Draw, kind: str, width: int) -> nn.Sequential:
    linear = nn.Linear(width, width, dtype=torch.float64)
    for parameter in linear.parameters():
        parameter.data = draw.tensor(parameter.shape, torch.float64)
    segment = nn.Sequential(linear, *_KINDS[kind](width))
    return segment.eval() if kind.startswith("all ") else segment


# Words of torch's error, the cause, the remedy.
_BACKWARD_ERRORS = [
    (
        "inplace operation",
        "a parameter or a buffer was written after the run, and autograd had saved it",
        "buffers written as `buffer.data`, which autograd does not track",
    ),
    ("a second time", "a graph that backward has gone through already", "an output; the caller calls `y.backward(dy)`"),
]


def _expect_no_trace(expect: Expect, answer: Callable, kind: str, width: int) -> None:
    segment = _segment(expect.draw, kind, width)
    reference = copy.deepcopy(segment)
    for parameter in (*segment.parameters(), *reference.parameters()):
        parameter.grad = torch.ones_like(parameter)  # of a micro-batch before
    for step in ("", ", second step"):
        _expect_step(expect, answer, segment, reference, f"segment with {kind}{step}")


def _expect_step(expect: Expect, answer: Callable, segment: nn.Module, reference: nn.Module, on: str) -> None:
    draw = expect.draw
    width = next(segment.parameters()).shape[-1]
    x = draw.tensor((draw.integer(6, 12), width), torch.float64).requires_grad_()
    seed, skipped = draw.integer(0, 10**6), draw.integer(1, 50)

    def seeded() -> None:
        torch.manual_seed(seed)
        torch.rand(skipped)  # the first run begins at a state that no manual_seed gives

    seeded()
    reference(x).square().sum().backward()
    wanted = [x.grad, *(parameter.grad for parameter in reference.parameters())]
    x.grad = None
    told: dict[str, Any] = {"runs": []}
    seeded()
    y = _Checkpoint.apply(x, segment, answer, told)
    torch.rand(draw.integer(1, 50))  # the program draws between forward and backward
    error = ("", "")
    try:
        y.square().sum().backward()
    except RuntimeError as raised:
        error = next((told for words, *told in _BACKWARD_ERRORS if words in str(raised)), None)
        if error is None:
            raise

    call = told["call"]
    if call.value is Ellipsis:
        expect.equal("an output is returned", call.value, None)
    if not isinstance(call.value, Tensor):
        raise RuleBroken("the segment's output is returned", _returned(call.value), "a tensor")
    expect.equal(f"the segment runs once ({on})", len(told["runs"]), 1)
    expect.equal(f"both runs have the same output ({on})", call.value.detach(), told["output"])
    rule = f"backward can go through the output ({on})"
    has_graph = call.value.requires_grad
    expect.that(rule, has_graph, "it can" if has_graph else "an output without a graph", "an output with a graph")
    rule = f"the call leaves the segment unchanged: mode, attributes, hooks ({on})"
    expect.that(rule, not told["changed"], told["changed"] or "unchanged", "unchanged")
    rule = f"buffers are the same tensors after the call ({on})"
    expect.that(rule, told["same objects"], "the same" if told["same objects"] else "other tensors", "the same")
    changed = [("segment's parameters", "x", "rng_state")[i] for i in call.changed if i]
    rule = f"x and rng_state stay unchanged ({on})"
    expect.that(rule, not changed, " and ".join(changed) + " changed" if changed else "unchanged", "unchanged")
    rule = f"the generator has the same state before and after the call ({on})"
    is_same = torch.equal(told["before"].rng, told["after"].rng)
    expect.that(rule, is_same, "the same" if is_same else _generator(told), "the same state")
    for name, before in told["before"].buffers.items():
        rule = f"the buffer {name} has the same value before and after the call ({on})"
        is_same = torch.equal(before, told["after"].buffers[name])
        expect.that(rule, is_same, "the same" if is_same else _buffer(told, name), "the same value")
    rule = f"backward finds the tensors that the second run saved ({on})"
    expect.that(rule, not error[0], *error)
    saw = [x.grad, *(parameter.grad for parameter in segment.parameters())]
    names = ["of x", *(f"of {name}" for name, _ in segment.named_parameters())]
    _expect_gradients(expect, saw, wanted, names, on)
    for (name, buffer), once in zip(segment.named_buffers(), reference.buffers(), strict=True):
        expect.equal(f"the buffer {name} is updated once in a step ({on})", buffer, once)


# ---- how many copies hide ----


def _hides(m: int, forward_s: Sequence[float], backward_s: Sequence[float], copy_s: Sequence[float]) -> bool:
    """Whether the first m copies go out before forward ends and come back in time."""
    clock_s = free_s = 0.0
    for i, seconds in enumerate(forward_s):
        clock_s += seconds
        if i < m:
            free_s = max(free_s, clock_s) + copy_s[i]
    if m and free_s > clock_s:
        return False
    back_s = needed_s = 0.0
    for i in reversed(range(len(copy_s))):
        if i < m:
            back_s += copy_s[i]
            if back_s > needed_s:
                return False
        needed_s += backward_s[i]
    return True


def _most_hidden(*seconds: Sequence[float]) -> int:
    return next(m for m in range(len(seconds[0]), -1, -1) if _hides(m, *seconds))


def _decisive(draw: Draw) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """One chain for each rule, in which that rule alone decides; the rule, and seconds."""
    a, long_s = float(draw.integer(2, 5)), 50.0
    never, ample, fine = 9999.0, [long_s] * 3, a + 2048
    return {
        "all copies are out when forward ends": ([a] * 3, ample, [3 * a + 1] * 3),
        "the link is idle until a layer is over": ([a + 4, a], [long_s] * 2, [1.0, a + 2]),
        "copies out go one at a time": ([2.0, 2.0, 2 * a], ample, [a + 3, a + 2, never]),
        "a copy starts when its layer's forward is over": ([a + 3, a], [long_s] * 2, [a + 1, never]),
        "a copy is back in time": ([10 * long_s] * 3, [a] * 3, [2 * a + long_s, never, never]),
        "a copy is back when its layer's backward starts": ([long_s] * 2, [a + 7, a], [a + 1, 1.0]),
        "copies come back last layer first": (ample, [9.0, a + 2, a + 3], [a + 2, a, never]),
        "each copy is back in time, not the first layer's alone": (ample, [1.0, 20.0, 2.0], [a, a + 3, never]),
        "exactly in time is in time": ([a, a], [1.0, a], [a, never]),
        "the same copies, a shorter forward": ([a, a - 1], [1.0, a], [a, never]),
        "a quarter of a second late is late": ([fine, fine], [never] * 2, [fine + 0.25, never]),
        "a quarter of a second late is late after a year: in 64 bits": (
            [2.0**25] * 2,
            [9e9] * 2,
            [2.0**25 + 0.25, 9e9],
        ),
        "a copy waits for a longer one before": ([2.0, 20.0, 2.0, a], [long_s] * 4, [1.0, a + 1, a, never]),
        "later copies wait for their layers too": (
            [2.0, 2.0, 2.0, 2.0, 2.0, 20.0, a],
            [long_s] * 7,
            [1.0, 1.0, 1.0, 1.0, 1.0, a + 1, never],
        ),
        "every copy is back in time": ([long_s] * 5, [1.0, 1.0, 30.0, 1.0, a], [1.0, a, a, a, never]),
        "one layer, nothing to copy": ([1.0], [2.0], [0.0]),
    }


def _copies(draw: Draw, num: int) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Chains in which each of the rules decides, in quarters of seconds, so that some ends are exactly in time."""
    unit_s = draw.choice([0.25, 0.5, 0.75])

    def some(low: int, high: int) -> list[float]:
        return [draw.integer(low, high) * unit_s for _ in range(num)]

    f, c = float(draw.integer(2, 5)), float(draw.integer(1, 4))
    bursts = [some(1, 3)[0] if i % 3 else 20.0 for i in range(num)]
    return {
        "equal, the way out decides": ([f] * num, [50.0] * num, [f + c] * num),
        "equal, the way back decides": ([50.0] * num, [1.0] * num, [c] * num),
        "copies shorter than a layer": ([9.0] * num, [18.0] * num, [c] * num),
        "copies longer than all of forward": ([1.0] * num, [2.0] * num, [num + 1.0] * num),
        "different layers, slow copies": (some(1, 6), some(2, 12), some(3, 9)),
        "different layers, quick copies": (some(4, 9), some(1, 4), some(1, 4)),
        "large copies among small ones": (some(2, 4), some(3, 8), bursts),
        "a slow first layer": ([30.0, *some(1, 3)[1:]], some(1, 9), some(1, 6)),
        "a slow last layer": ([*some(1, 3)[1:], 30.0], [*some(1, 2)[1:], 40.0], some(1, 6)),
    }


@exercise(
    "How many copies hide",
    hints=[
        "Try every m, the largest first. For one m there are two questions: are all copies out when forward ends? Is "
        "each back when its layer's backward starts?",
        "Out: as in a queue, `end = max(end, forward is over) + copy_s[i]` for i from 0 to m-1. In: the copy of layer "
        "i comes after the copies of layers m-1 down to i+1.",
        "Layer i is back after `sum(copy_s[i:m])`, and needed after `sum(backward_s[i + 1:])`. The last `end` of the "
        "way out is at most `sum(forward_s)`. Return the first m for which all of that holds, otherwise 0.",
    ],
)
def num_hidden(expect: Expect, num_hidden: Callable[[list[float], list[float], list[float]], int]) -> None:
    not_from_lablib(num_hidden)
    draw = expect.draw
    cases = _decisive(draw) | {"one layer": ([3.0], [6.0], [1.0])}
    cases["no seconds to copy"] = ([1.0, 2.0], [2.0, 4.0], [0.0, 0.0])
    for num in [*draw.integers(3, 3, 16), draw.integer(42, 50)]:
        cases |= {f"{num} layers, {kind}": seconds for kind, seconds in _copies(draw, num).items()}
    cases["a sixteenth of a millisecond late is late"] = ([2**-8] * 2, [9999.0] * 2, [2**-8 + 2**-14, 9999.0])
    cases["a quarter of a microsecond late is late"] = ([2**-20] * 2, [9999.0] * 2, [2**-19 + 2**-22, 9999.0])
    for name, seconds in cases.items():
        call = observe(num_hidden, *(list(one) for one in seconds))
        if call.value is None:
            raise RuleBroken("a number is returned", _returned(None), "a whole number")
        changes_nothing(expect, [call])
        expect.measured.clear()
        _expect_hidden(expect, plain_number(call.value), name, seconds)


def _expect_hidden(expect: Expect, saw: Any, name: str, seconds: tuple[list[float], ...]) -> None:
    wanted, num = _most_hidden(*seconds), len(seconds[0])
    if isinstance(saw, int | float) and not isinstance(saw, bool):  # a subclass might override comparison
        saw = int.__int__(saw) if isinstance(saw, int) else float.__float__(saw)
    told = f" ({name})"
    if num <= 12:
        told = f" ({name}: forward {seconds[0]}, backward {seconds[1]}, copies {seconds[2]})"
    if saw is not Ellipsis and (
        isinstance(saw, bool) or not isinstance(saw, int | float) or not isfinite(saw) or saw != int(saw)
    ):
        raise RuleBroken("a whole number is returned", short_repr(saw), "a number of layers")
    if isinstance(saw, int | float) and wanted < saw <= num:
        why = "its last copy out ends after forward" if _is_late_out(int(saw), seconds) else "a copy comes back late"
        raise RuleBroken(f"no copy delays the step{told}", f"{int(saw)}, but {why}", str(wanted))
    expect.equal(f"as many copies hide as possible{told}", saw, wanted)


def _is_late_out(m: int, seconds: tuple[list[float], ...]) -> bool:
    endless = [inf] * len(seconds[0])
    return not _hides(m, seconds[0], endless, seconds[2])


# ---- the split of a chain under a budget ----


def _all_plans(num_layers: int) -> Iterable[Plan]:
    """Every way to cut a chain, and every choice for the segments."""
    for cuts in product((False, True), repeat=num_layers - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), num_layers]
        pieces = list(zip(ends, ends[1:], strict=False))
        for choices in product((False, True), repeat=len(pieces)):
            yield tuple(Segment(*piece, choice) for piece, choice in zip(pieces, choices, strict=True))


@exercise(
    "The split of a chain",
    hints=[
        "For short chains all plans can be tried. Each layer either is kept, or begins a checkpointed segment, or "
        "continues the segment before it.",
        "Or from the front: `best(start, kept)` is the cheapest plan for the layers from `start` on, with `kept` bytes "
        "in memory already. Its first segment ends at any `stop`, and is kept or checkpointed.",
        "A first segment is allowed where `kept + sum(layer_bytes[start:stop])` is within the budget. Then follows "
        "`best(stop, kept + ...)` with the bytes that the segment leaves: all of it, or `input_bytes[start]`.",
    ],
)
def cheapest_plan(expect: Expect, cheapest_plan: Callable[..., Any]) -> None:
    not_from_lablib(cheapest_plan, allowed=("Segment", "peak_bytes", "recomputed"))
    draw = expect.draw
    s = draw.integer(1, 9)
    decisive = [  # costs, bytes of layers and of their inputs, budget
        ([2, 3, 4], [20, 20, 20], [10, 10, 10], 60),  # no recomputation is needed
        ([9, 1, 5], [20, 20, 20], [5, 5, 5], 45),  # the second layer alone
        ([4, 3, 9], [30, 22, 30], [2, 2, 2], 62),  # the second again, although the first saves more for its cost
        ([9, 1, 1, 5], [30, 20, 20, 30], [2, 8, 8, 2], 76),  # two cheap layers, not an expensive one
        ([1, 1, 1], [12, 12, 12], [10, 10, 10], 24),  # a segment of two layers
        ([1, 1, 1], [12, 12, 12], [10, 10, 10], 23),  # no plan
        ([3, 1, 1, 7], [22, 24, 18, 36], [3, 11, 9, 1], 77),  # a segment of two, although single layers fit
        ([3, 3, 9, 4], [32, 15, 22, 50], [5, 6, 10, 9], 68),  # neighbours in separate segments
        ([9, 2, 2], [44, 34, 30], [4, 8, 2], 78),  # the least cost, not the least cost times memory
        ([2, 9, 5, 3, 4], [30, 38, 32, 27, 28], [3, 9, 12, 1, 6], 64),  # four segments
        ([1] * 6, [12] * 5 + [55], [10] * 5 + [2], 65),  # a long one
        ([2, 3, 4], [20, 20, 30], [10, 10, 10], 60),  # costs and budget of the first chain, and no plan
        ([1, 1.25, 9], [20] * 3, [5] * 3, 45),  # a quarter decides
        ([1.25, 1, 9], [20] * 3, [5] * 3, 45),
        ([1] * 6, [30] * 6, [5] * 6, 55),  # five checkpointed, six segments
        ([9, 1, 9, 1, 9], [20] * 5, [5] * 5, 70),  # kept, checkpointed, kept, checkpointed, kept
        ([1] * 5, [40] * 4 + [55], [30] * 4 + [2], 115),  # two segments of several layers
        ([1] * 4, [40, 40, 40, 55], [10, 10, 30, 2], 90),  # a segment longer than the one before
        ([4, 5, 5, 5, 9, 6], [13, 24, 49, 41, 24, 24], [3, 12, 12, 12, 8, 10], 81),  # shorter, neighbours differ
        ([5, 8, 9, 7, 1], [24, 32, 52, 35, 17], [8, 4, 12, 7, 7], 108),  # the first layer's input stays
        ([1], [400], [100], 398),  # a plan that is less than a hundredth too large
    ]
    chains: list[Any] = [
        ([float(x) for x in c], [float(s * x) for x in b], [float(s * x) for x in i], [float(s * most)])
        for c, b, i, most in decisive
    ]
    for num_layers in [1, *draw.integers(2, 3, 5), 6]:
        costs = [draw.integer(1, 36) / 4 for _ in range(num_layers)]
        unit = 10**6 if num_layers == 6 else 1  # one byte over a large budget is over it, too
        input_bytes = [float(draw.integer(1, 9) * unit) for _ in range(num_layers)]
        layer_bytes = [size + draw.integer(1, 30) * unit for size in input_bytes]
        peaks = sorted({peak_bytes(plan, layer_bytes, input_bytes) for plan in _all_plans(num_layers)})
        budgets = [peaks[0] - 0.25, peaks[0] - 1, peaks[-1], peaks[0], draw.choice(peaks), peaks[len(peaks) // 2]]
        chains.append((costs, layer_bytes, input_bytes, budgets))
    for *chain, budgets in chains:
        costs, layer_bytes, input_bytes = chain
        plans = [(peak_bytes(p, layer_bytes, input_bytes), recomputed(p, costs)) for p in _all_plans(len(costs))]
        for budget_bytes in budgets:
            expect.measured.clear()  # the result shows only the rules of the last chain
            best = min(((cost, peak) for peak, cost in plans if peak <= budget_bytes), default=None)
            _expect_cheapest(expect, cheapest_plan, (costs, layer_bytes, input_bytes), budget_bytes, best)


def _expect_cheapest(
    expect: Expect,
    answer: Callable,
    chain: tuple[list[float], list[float], list[float]],
    budget_bytes: float,
    best: tuple[float, float] | None,
) -> None:
    """`best` is the cost and the peak of the cheapest plan that fits; None if none does."""
    costs, layer_bytes, input_bytes = chain
    on = f"budget {budget_bytes}, costs {costs}, layers {layer_bytes}, inputs {input_bytes}"
    call = observe(answer, *(list(one) for one in chain), budget_bytes)
    if call.value is Ellipsis:
        expect.equal("a plan is returned", call.value, None)
    changes_nothing(expect, [call])
    if best is None:
        expect.that(f"None is returned if no plan fits ({on})", call.value is None, short_repr(call.value), "None")
        return
    if not isinstance(call.value, list | tuple) or not all(isinstance(one, Segment) for one in call.value):
        saw = _returned(call.value)
        if call.value is None and sum(layer_bytes) > budget_bytes:  # otherwise a return is missing
            saw = f"None, but a plan fits: its peak is {format_quantity(best[1], 'B')}"
        raise RuleBroken(f"segments are returned if a plan fits ({on})", saw, "a plan")
    plan = tuple(
        Segment(int(one.start), int(one.stop), bool(one.is_checkpointed)) for one in call.value
    )  # read only once
    try:
        checkpointing.require_plan(plan, len(costs))
    except ValueError:
        rule = f"segments cover every layer once, in order ({on})"
        raise RuleBroken(rule, short_repr(plan), f"segments from 0 to {len(costs)}") from None
    expect.budget(f"peak of the plan ({on})", peak_bytes(plan, layer_bytes, input_bytes), budget_bytes, "B")
    rule = f"cost of the recomputation ({on})"
    expect.budget(rule, recomputed(plan, costs), best[0], "FLOPs", at_least=best[0])
