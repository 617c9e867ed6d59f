"""Checks of lab 04: batches. Models, texts, documents, gradients and runs are random."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lablib.course import Expect, exercise
from lablib.course.checks.comparison import plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import changes_nothing, communications_within, not_from_lablib, observe
from lablib.text.units import plural

PADDED = -100


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    return "None: is there a return?" if value is None else f"{type(value).__name__} {short_repr(value)}"


def _number(value: Any, rule: str) -> float:
    """A number, perhaps in a tensor of one element."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = float(value.detach())
    value = plain_number(value)
    if value is Ellipsis or isinstance(value, bool) or not isinstance(value, int | float):
        raise RuleBroken(rule, _told(value), "a number")
    return value


# ---- Accumulate -----------------------------------------------------------------------------------------------------

MicroBatches = list[tuple[Tensor, Tensor]]


class _Model(nn.Module):
    """Each token alone; if it is deep, activations are larger than parameters. `frozen` takes no gradient."""

    def __init__(self, draw: Draw, vocab: int, width: int, depth: int = 1):
        super().__init__()
        like: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        self.embed = nn.Embedding(vocab, width, **like)
        self.frozen = nn.Parameter(draw.tensor((width,), torch.float64), requires_grad=False)
        self.head = nn.Linear(width, vocab, **like)
        for param in (self.embed.weight, *self.head.parameters()):
            param.data = 0.5 * draw.tensor(param.shape, torch.float64)
        self.depth = depth
        self.seen: list[tuple[int, ...]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(tuple(inputs.shape))
        x = self.embed(inputs) * (1 + self.frozen)
        for _ in range(self.depth):
            x = torch.tanh(x)
        return self.head(x)


def _micro_batch(
    draw: Draw, vocab: int, num_sequences: int, seq_len: int, padding: str = "none"
) -> tuple[Tensor, Tensor]:
    """Tokens; padding "none", "some" (sequences end differently), "holes" (anywhere), "row" (one row) or "all"."""
    inputs, targets = (
        torch.tensor([draw.integer(0, vocab - 1) for _ in range(num_sequences * seq_len)]).view(num_sequences, seq_len)
        for _ in range(2)
    )
    targets[0, 0] = 0  # number 0 is a token, too
    if padding == "some":
        for row in range(num_sequences):
            targets[row, draw.integer(1, max(1, seq_len - 1)) :] = PADDED
    if padding == "holes":
        targets[:, [0, *draw.integers(seq_len // 2, 0, seq_len - 2)]] = PADDED  # never the last, so holes are inside
    if padding == "row":
        targets[0] = PADDED
    if padding == "all":
        targets[:] = PADDED
    return inputs, targets


def _accumulations(draw: Draw, vocab: int) -> Iterator[tuple[str, MicroBatches]]:
    """The case of each run, simplest first."""

    def some(shapes: Sequence[tuple[int, int]], padding: Sequence[str] = ()) -> MicroBatches:
        ways = itertools.chain(padding, itertools.repeat("none"))
        return [_micro_batch(draw, vocab, *shape, way) for shape, way in zip(shapes, ways, strict=False)]

    num, size, length = draw.integer(3, 5), draw.integer(2, 4), draw.integer(6, 9)
    yield "micro-batches of equal size", some([(size, length)] * num)
    yield "one micro-batch alone", some([(size, length)])
    yield "a last micro-batch with fewer sequences", some([(size, length)] * num + [(1, length)])
    yield "a first micro-batch with fewer sequences", some([(1, length)] + [(size, length)] * num)
    yield "micro-batches of different lengths", some([(size, length), (size, length + draw.integer(2, 9)), (size, 1)])
    yield "equal shapes, some of it padding", some([(size, length)] * num, ["some"] * draw.integer(1, num))
    yield "different shapes, some of it padding", some([(3, 9), (1, 5), (2, 12)], ["some", "none", "some"])
    yield "padding anywhere in a row", some([(size, length)] * num, ["none", "holes", "some"])
    yield "a row that is all padding", some([(size, length)] * num, ["none", "row", "some"])
    yield "a micro-batch that is all padding", some([(size, length)] * num, ["none", "all", "some"])
    yield "a last micro-batch that is all padding", some([(2, length)] * 2 + [(3, length)], ["some", "none", "all"])


@exercise(
    "Accumulate",
    hints=[
        "By which number must the losses be divided, so that each token weighs the same? Can you compute it before "
        "the first backward?",
        "Count the targets that are not IGNORED, over all micro-batches. Then go through them once more: logits, "
        "summed loss, divided by that count, backward. Backward adds to `param.grad` automatically.",
        "`num_tokens = sum(int((y != IGNORED).sum()) for _, y in micro_batches)`; in the loop `loss = "
        "summed_loss(model(inputs), targets) / num_tokens`, `loss.backward()`. Return the sum of `loss.item()`.",
    ],
)
def accumulate(expect: Expect, accumulate: Callable[..., float]) -> None:
    not_from_lablib(accumulate, allowed=("summed_loss",))
    draw = expect.draw
    vocab = draw.integer(5, 9)
    for words, micro_batches in _accumulations(draw, vocab):
        expect.measured.clear()  # the result shows only the rules of the last runs
        _expect_accumulated(expect, accumulate, _Model(draw, vocab, 4), micro_batches, words)
    model = _Model(draw, vocab, 4)
    for param in (model.embed.weight, model.head.bias):  # another parameter has no gradient
        param.grad = 100 * draw.tensor(param.shape, torch.float64)
    micro_batches = [_micro_batch(draw, vocab, size, 5) for size in (3, 1)]
    _expect_accumulated(expect, accumulate, model, micro_batches, "existing gradients are added to")
    micro_batches = [_micro_batch(draw, vocab, size, 4) for size in (2, 1)]
    _expect_accumulated(expect, accumulate, model, micro_batches, "the next step of the same model adds to them")
    _expect_one_at_a_time(expect, accumulate)


def _exact(model: _Model, micro_batches: MicroBatches) -> tuple[float, dict[str, Tensor]]:
    """Mean over the tokens of all micro-batches, and its gradient, from separate losses of all tokens."""
    before = {name: param.grad for name, param in model.named_parameters() if param.requires_grad}
    model = copy.deepcopy(model)  # hooks of an answer stay with the model
    losses = torch.cat(
        [
            F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")[y.flatten() != PADDED]
            for x, y in micro_batches
        ]
    )
    named = {name: param for name, param in model.named_parameters() if param.requires_grad}
    gradients = torch.autograd.grad(losses.mean(), list(named.values()))
    sums = [new if old is None else new + old for new, old in zip(gradients, before.values(), strict=True)]
    return float(losses.mean().detach()), dict(zip(named, sums, strict=True))


def _expect_accumulated(
    expect: Expect, answer: Callable[..., float], model: _Model, micro_batches: MicroBatches, words: str
) -> None:
    loss, wanted = _exact(model, micro_batches)
    had = any(param.grad is not None for param in model.parameters())
    model.seen.clear()
    call = observe(answer, model, list(micro_batches))
    changes_nothing(expect, [call])
    returned = _number(call.value, f"the mean loss is returned ({words})")
    gradients = {name: param.grad for name, param in model.named_parameters() if param.requires_grad}
    found = {name: gradient.flatten() for name, gradient in gradients.items() if gradient is not None}
    missing = wanted.keys() - found.keys()
    if missing:
        raise RuleBroken(
            f"every parameter has a gradient ({words})", f"{min(missing)} has none", "is there a backward?"
        )
    saw, right = torch.cat([found[name] for name in wanted]), torch.cat([one.flatten() for one in wanted.values()])
    if not had:
        factor = float(torch.dot(saw, right) / torch.dot(right, right))
        if abs(factor - 1) > 1e-6 and float((saw - factor * right).norm()) < 1e-6 * float(saw.norm()):
            raise RuleBroken(f"the gradient is the gradient of a mean ({words})", f"{factor:.4g} times as long", "1")
    rule = "every token weighs 1 / N" if not had else "param.grad holds the old plus the new gradient"
    expect.close(f"{rule} ({words})", saw, right, rtol=1e-7, atol=1e-9 * float(right.abs().max()))
    expect.close(f"the loss returned is the mean over all tokens ({words})", returned, loss, rtol=1e-7)
    if not model.training:
        rule = f"the model stays in training mode ({words})"
        raise RuleBroken(rule, "model.eval() was called", "model.training as before")
    if model.frozen.grad is not None:
        raise RuleBroken(f"a parameter without requires_grad gets no gradient ({words})", "frozen has one", "none")
    shapes = [tuple(inputs.shape) for inputs, targets in micro_batches if (targets != PADDED).any()]
    at_most = [tuple(inputs.shape) for inputs, _ in micro_batches]
    seen = sorted(model.seen)
    if seen not in (sorted(shapes), sorted(at_most)):
        saw_shapes = f"inputs of {', '.join(map(str, model.seen))}"
        raise RuleBroken(f"each micro-batch goes through the model once, alone ({words})", saw_shapes, f"{at_most}")


def _expect_one_at_a_time(expect: Expect, answer: Callable[..., float]) -> None:
    """Peak memory, compared with the reference: logits and all gradients are as large as a layer's activations."""
    draw = expect.draw
    model, micro_batches = _Model(draw, 64, 64, depth=8), [_micro_batch(draw, 64, 2, 64) for _ in range(10)]

    def program(model: _Model, micro_batches: MicroBatches, run: Callable[..., float]) -> None:
        run(model, micro_batches)

    peaks = [
        expect.launch(program, model, micro_batches, run, ranks=1).memory.peak_bytes(0) for run in (_reference, answer)
    ]
    rule = "peak memory, with the activations of one micro-batch at a time, and no tensors of earlier ones"
    expect.budget(rule, peaks[1], 1.4 * peaks[0], "B")


def _reference(model: _Model, micro_batches: MicroBatches) -> float:
    num_tokens, total = sum(int((y != PADDED).sum()) for _, y in micro_batches), 0.0
    for inputs, targets in micro_batches:
        logits = model(inputs).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum") / num_tokens
        loss.backward()
        total += loss.item()
    return total


# ---- Clip over shards -----------------------------------------------------------------------------------------------


@exercise(
    "Clip over shards",
    hints=[
        "Which number does every rank need, and which part of it can each compute alone? Which quantity can be added?",
        "Sum the squares of this rank's shards, all-reduce that one number, and then add the squares of the replicated "
        "gradients: every rank has them all. A rank without shards takes part with 0.",
        "`squared = sum((s.square().sum() for s in shards), torch.zeros(()))`; `dist.all_reduce(squared)`; the norm is "
        "the root of it plus the replicated squares. If it is above max_norm, `mul_(max_norm / norm)` on all.",
    ],
)
def clip_shards(expect: Expect, clip_shards: Callable[..., Any]) -> None:
    not_from_lablib(clip_shards)
    draw = expect.draw
    for ranks in (1, 2, draw.integer(3, 4), draw.integer(5, 7)):
        expect.measured.clear()  # the result shows only the rules of the last number of ranks
        _expect_clipped(expect, clip_shards, ranks)


def _norm(some: Sequence[Tensor]) -> float:
    return float(torch.stack([one.double().square().sum() for one in some]).sum().sqrt())


def _clippings(draw: Draw, ranks: int) -> Iterator[tuple[str, list[list[Tensor]], list[Tensor], float]]:
    """The case in words, the shards of each rank, replicated gradients, and max_norm as a share of the norm."""

    def shards(num: int) -> list[list[Tensor]]:
        return [[draw.tensor((draw.integer(2, 5), 3)) for _ in range(num)] for _ in range(ranks)]

    low, high = draw.number(0.1, 0.6), draw.number(1.5, 4.0)
    yield "shards alone, too long", sorted(shards(2), key=_norm), [], low  # rank 0's is not the longest
    yield "shards alone, short enough", shards(2), [], high
    yield "too long by the norm of all ranks, but not of one rank", shards(2), [], draw.number(0.93, 0.97)
    yield "shards and replicated, too long", shards(2), [draw.tensor((4,)), draw.tensor((2, 3))], low
    yield "shards and replicated, short enough", shards(1), [draw.tensor((4,))], high
    yield "mostly replicated", shards(1), [8 * draw.tensor((4, 4)), draw.tensor((1,))], draw.number(0.8, 0.95)
    yield "replicated alone", [[] for _ in range(ranks)], [draw.tensor((5,)), draw.tensor((2,))], low
    uneven = shards(3)
    uneven[-1] = [] if ranks > 1 else uneven[-1]
    uneven[0] = uneven[0][:1]
    yield "a rank without shards, others with several", uneven, [draw.tensor((3,))], low
    longer = [[10.0**rank * one for one in of_rank] for rank, of_rank in enumerate(shards(2))]
    yield "ranks with norms of very different size", longer, [draw.tensor((3,))], low
    yield "large gradients", [[1e6 * one for one in of_rank] for of_rank in shards(1)], [1e6 * draw.tensor((3,))], low
    yield "small gradients", [[1e-2 * one for one in of_rank] for of_rank in shards(2)], [], low
    other = [[draw.tensor((4,)), draw.tensor((2, 3, 2))] for _ in range(ranks)]
    yield "shards of one and of three dimensions", other, [], low
    yield "gradients that are zero", [[torch.zeros(3)] for _ in range(ranks)], [torch.zeros(2)], 1.0


def _expect_clipped(expect: Expect, answer: Callable[..., Any], ranks: int) -> None:
    cases = []
    for words, shards, replicated, share in _clippings(expect.draw, ranks):
        every = [*itertools.chain(*shards), *replicated]
        norm = _norm(every)
        cases.append((words, shards, replicated, share * norm if norm else 1.0, norm))

    def program(cases: list[Any]) -> list[tuple[float, list[Tensor], list[Tensor]]]:
        seen = []
        for words, shards, replicated, max_norm, _ in cases:
            # The second of several is not contiguous, like some gradients.
            mine = [
                [_scattered(one) if place == 1 else one.clone() for place, one in enumerate(some)]
                for some in (shards[dist.get_rank()], replicated)
            ]
            handed = [list(some) for some in mine]
            memory = [one.data_ptr() for some in mine for one in some]
            norm = _number(answer(*handed, max_norm), f"the norm is returned ({words})")
            if [[id(one) for one in some] for some in handed] != [[id(one) for one in some] for some in mine]:
                saw = "the lists hold different tensors"
                raise RuleBroken(f"tensors are changed in place ({words})", saw, "the same tensors: gradient.mul_(...)")
            if [one.data_ptr() for some in mine for one in some] != memory:
                saw = "a tensor got other memory: tensors that share the old memory see no change"
                raise RuleBroken(f"tensors are changed in place ({words})", saw, "the same memory: gradient.mul_(...)")
            seen.append((norm, *mine))
        return seen

    run = expect.launch(program, cases, ranks=ranks)
    what = f"the norm, and all gradients, on {plural(ranks, 'ranks')}"
    with expect.grouped(what, f"right in {len(cases)} cases"):
        for number, (words, shards, replicated, max_norm, norm) in enumerate(cases):
            on = f"{words}, {plural(ranks, 'ranks')}"
            for rank, value in enumerate(run.values):
                rule = f"every rank returns the norm before, of the whole gradient ({on}, rank {rank})"
                expect.close(rule, value[number][0], norm, rtol=1e-5, atol=1e-12)
            norms = [value[number][0] for value in run.values]
            expect.equal(f"the norm is the same on every rank, to the last digit ({on})", norms, norms[:1] * ranks)
            factor = min(1.0, max_norm / norm) if norm else 1.0
            what = "is shortened to max_norm, in place" if factor < 1 else "that is short enough stays unchanged"
            for rank, value in enumerate(run.values):
                _, mine, shared = value[number]
                for after, before in ((mine, shards[rank]), (shared, replicated)):
                    if factor < 1 and _only_the_first_is_shortened(after, before, factor):
                        rule = f"a gradient that is not contiguous is shortened, too ({on}, rank {rank})"
                        remedy = "gradient.mul_(...) on it; flatten and reshape copy it"
                        raise RuleBroken(rule, "it is unchanged", remedy)
                rule = f"a gradient {what} ({on}"
                expect.close(f"{rule}, shards of rank {rank})", mine, [factor * one for one in shards[rank]], rtol=1e-4)
                expect.close(
                    f"{rule}, replicated, rank {rank})", shared, [factor * one for one in replicated], rtol=1e-4
                )
    communications_within(expect, run, at_most=len(cases))
    # The library's own all-reduce of 64 bytes goes up and down a tree of ranks: its middle ranks send more than once.
    sent = sum(run.traffic.sent_bytes(rank) for rank in range(ranks)) / ranks
    expect.budget(
        f"bytes a rank sends: one number, and no gradients ({plural(ranks, 'ranks')})", sent / len(cases), 128, "B"
    )


def _only_the_first_is_shortened(after: list[Tensor], before: list[Tensor], factor: float) -> bool:
    """Whether the second, which is not contiguous, is unchanged."""
    if len(after) < 2 or not torch.equal(after[1], before[1]):
        return False
    return torch.allclose(after[0], factor * before[0], rtol=1e-4)


def _scattered(x: Tensor) -> Tensor:
    """The same values in another order in memory (a matrix), or with gaps between them."""
    if x.ndim == 2:
        return x.T.contiguous().T
    return torch.stack([x, torch.zeros_like(x)], dim=-1)[..., 0]


# ---- Signal and noise -----------------------------------------------------------------------------------------------


@exercise(
    "Signal and noise",
    hints=[
        "Write the expected square twice, for B = b and for B = k b, and subtract one from the other: which unknown "
        "cancels?",
        "tr(Sigma) = (small - large) / (1 / b - 1 / (k b)), with `small` the mean over the rows of their squares and "
        "`large` the square of the mean row. Which equation then gives |G|^2?",
        "`small = gradients.square().sum(1).mean()`, `large = gradients.mean(0).square().sum()`. The signal is "
        "`large - noise / (k * part_size)`, and may be negative.",
    ],
)
def signal_and_noise(expect: Expect, signal_and_noise: Callable[[Tensor, int], Sequence[float]]) -> None:
    not_from_lablib(signal_and_noise)
    draw = expect.draw
    for k, part_size in ((3, 1), (2, 1), (2, 2)):
        expect.measured.clear()
        _expect_unbiased(expect, signal_and_noise, k, part_size)
    with expect.grouped("the estimates of five more batches", "right"):
        for number in range(4):
            k, part_size, params = draw.integer(2, 9), draw.integer(1, 64), draw.integer(2, 30)
            gradients = draw.number(0.0, 0.5) + draw.tensor((k, params), torch.float64)
            if number == 3:
                gradients[:] = gradients[0]  # no noise at all
            _expect_estimate(expect, signal_and_noise, gradients, part_size)
        _expect_estimate(expect, signal_and_noise, draw.tensor((4, 50)), 8)


def _two(value: Any, on: str) -> tuple[float, float]:
    rule = f"signal and noise are returned ({on})"
    is_some = isinstance(value, tuple | list) or (isinstance(value, Tensor) and value.ndim == 1)
    if not is_some or len(value) != 2:
        raise RuleBroken(rule, _told(value), "two numbers: return signal, noise")
    signal, noise = (_number(one, rule) for one in value)
    return signal, noise


def _expect_unbiased(expect: Expect, answer: Callable, k: int, part_size: int) -> None:
    """The mean of the estimates over all possible batches is exact."""
    data = expect.draw.number(0.1, 0.6) + expect.draw.tensor((3, 3), torch.float64)
    exact_signal = float(data.mean(0).square().sum())
    exact_noise = float((data - data.mean(0)).square().sum(1).mean())
    drawn = list(itertools.product(range(len(data)), repeat=k * part_size))
    on = f"average over all {len(drawn)} batches of {k} parts of {part_size} from 3 examples"
    signals, noises = [], []
    for batch in drawn:
        call = observe(answer, data[list(batch)].view(k, part_size, -1).mean(1), part_size)
        changes_nothing(expect, [call])
        signal, noise = _two(call.value, on)
        signals.append(signal)
        noises.append(noise)
    noise, signal = (sum(values) / len(drawn) for values in (noises, signals))
    said = f"noise {noise:.6g} and signal {signal:.6g}"
    for rule, saw, exact in (
        ("the noise is tr(Sigma) on average", noise, exact_noise),
        ("the signal is |G|^2 on average", signal, exact_signal),
    ):
        is_right = abs(saw - exact) <= 1e-9 * (exact_noise + exact_signal)
        expect.that(f"{rule} ({on})", is_right, said, f"noise {exact_noise:.6g} and signal {exact_signal:.6g}")


def _expect_estimate(expect: Expect, answer: Callable, gradients: Tensor, part_size: int) -> None:
    """One estimate: the variance of the parts, with k - 1, is tr(Sigma) / part_size."""
    k, on = len(gradients), f"{len(gradients)} parts of {part_size}, {gradients.shape[1]} weights"
    call = observe(answer, gradients, part_size)
    changes_nothing(expect, [call])
    signal, noise = _two(call.value, on)
    exact = gradients.double()
    variance = float((exact - exact.mean(0)).square().sum()) / (k - 1)
    size = float(exact.square().sum())
    rtol = 1e-9 if gradients.dtype == torch.float64 else 1e-5
    expect.close(
        f"the noise of these parts ({on})", noise, part_size * variance, rtol=rtol, atol=rtol * part_size * size
    )
    wanted = float(exact.mean(0).square().sum()) - variance / k
    expect.close(f"the signal of these parts ({on})", signal, wanted, rtol=rtol, atol=rtol * size)


# ---- WSD ------------------------------------------------------------------------------------------------------------


@exercise(
    "WSD",
    hints=[
        "Three parts of the run: for each, which factor has its first step, and its last?",
        "The decay begins at `num_steps - num_decay`. How many steps are left there, and at the next?",
        "In the decay `(num_steps - step) / num_decay`; beyond it 0. Without a decay avoid a division by 0.",
    ],
)
def wsd(expect: Expect, wsd: Callable[[int, int, int, int], float]) -> None:
    not_from_lablib(wsd)
    draw = expect.draw
    num_steps = draw.integer(20, 60)
    warmup, decay = draw.integers(2, 3, 9)
    cases = {
        "warmup, stable, decay": (num_steps, warmup, decay),
        "no warmup": (num_steps, 0, decay),
        "no decay": (num_steps, warmup, 0),
        "neither": (num_steps, 0, 0),
        "no stable part": (warmup + decay, warmup, decay),
        "warmup alone": (warmup, warmup, 0),
        "decay alone": (decay, 0, decay),
        "one step of each": (3, 1, 1),
        "a run of one step": (1, 0, 1),
        "a long run": (draw.integer(10**5, 10**6), draw.integer(500, 2000), draw.integer(10**4, 2 * 10**4)),
    }
    for words, (num_steps, warmup, decay) in cases.items():
        expect.measured.clear()  # the result shows only the rules of the last run
        borders = (0, warmup, num_steps - decay, num_steps)
        near = {at + off for at in borders for off in range(-12, 13)} | set(draw.integers(8, 0, num_steps + 30))
        on = f"{words}: N {num_steps}, W {warmup}, D {decay}"
        _expect_factors(expect, wsd, sorted(step for step in near if step >= 0), num_steps, warmup, decay, on)


def _expect_factors(
    expect: Expect, answer: Callable, steps: Sequence[int], num_steps: int, warmup: int, decay: int, on: str
) -> None:
    """The message shows the first wrong steps and their number."""
    wrong = []
    for step in steps:
        if step < warmup:
            rule, wanted = "in the warmup the factor is (s + 1) / (W + 1)", (step + 1) / (warmup + 1)
        elif step < num_steps - decay:
            rule, wanted = "between warmup and decay the factor is 1", 1.0
        elif step < num_steps:
            rule, wanted = "in the decay it falls from 1 at N - D to 0 at N", (num_steps - step) / decay
        else:
            rule, wanted = "from N on the factor is 0", 0.0
        saw = _number(answer(step, num_steps, warmup, decay), f"{rule} (step {step}, {on})")
        if not abs(saw - wanted) <= 1e-6:  # float32 is right, too
            wrong.append((f"{rule} (step {step}, {on})", saw, wanted))
    if wrong:
        few, wanted = ([f"{one[place]:.7g}" for one in wrong[:3]] for place in (1, 2))
        said = f"{', '.join(few)}; {len(wrong)} of {len(steps)} steps are wrong"
        raise RuleBroken(wrong[0][0], said, ", ".join(wanted))
    expect.that(f"the factor of {len(steps)} steps ({on})", True, "right", "")
