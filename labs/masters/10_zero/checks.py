"""Checks of lab 10: ZeRO. All run on the simulator, on random data, sizes and numbers of ranks."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

from lablib import Cluster, Device, Link, Run, find_cluster, launch
from lablib.course import Expect, exercise
from lablib.course.checks.comparison import plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe, same_calls, sent_bytes_within
from lablib.text.units import plural

# torch 2.13 gave both a new name.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

HALF = 0.5  # of a byte: budgets of bytes that are exact


# ---- bytes of a rank ----


def _reference_bytes(num_params: int, ranks: int, rank: int, stage: int) -> int:
    room = (num_params + ranks - 1) // ranks
    own = len(range(num_params)[rank * room : (rank + 1) * room])
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage]
    return whole * num_params + (16 - whole) * own


@exercise(
    "Bytes of a rank",
    hints=[
        "How many numbers has this rank's shard? There is room for N/n, rounded up; which shards are not full?",
        "A shard starts at rank * room. From there to N are that many numbers: none if it starts behind the end, and "
        "at most as many as there is room for.",
        "`room = -(-num_params // ranks)` rounds up. Then own = min(room, max(0, num_params - rank * room)), and "
        "stages 0 to 3 cut 0, 12, 14 and 16 of 16 bytes.",
    ],
)
def bytes_of_rank(expect: Expect, bytes_of_rank: Callable[[int, int, int, int], int]) -> None:
    not_from_lablib(bytes_of_rank)
    draw = expect.draw
    n = draw.integer(5, 9)
    many = draw.integer(10**5, 10**6)
    even, last = n * draw.integer(100, 999), n * draw.integer(100, 999) + draw.integer(1, n - 2)
    cases = [
        ("stage 0: nothing is cut, and every rank holds all 16 bytes", (many, n, draw.integer(0, n - 1), 0)),
        ("one rank holds everything, in any stage", (many, 1, 0, draw.integer(1, 3))),
        ("stage 3, N a multiple of n: 16 bytes of N/n numbers", (even, n, draw.integer(0, n - 1), 3)),
        ("stage 1: 12 of 16 bytes are cut", (even, n, draw.integer(0, n - 1), 1)),
        ("stage 2: 14 of 16 bytes are cut", (even, n, draw.integer(0, n - 1), 2)),
        ("stage 3, uneven: the first shards have N/n numbers, rounded up", (last, n, 0, 3)),
        ("stage 3, uneven: the last shard has the remainder", (last, n, n - 1, 3)),
        ("fewer numbers than ranks: the last ranks have none of them", (n - 2, n, n - 1, draw.integer(1, 3))),
        ("any number of ranks", (many, 1024, draw.integer(0, 1022), draw.integer(1, 3))),
        ("no numbers take no bytes", (0, n, draw.integer(0, n - 1), draw.integer(0, 3))),
    ]
    cases += [("an empty shard in the middle of the ranks", (2 * n + 1, 2 * n, n + 1 + draw.integer(0, n - 3), 3))]
    for rule, case in cases:
        _expect_bytes(expect, bytes_of_rank, rule, case)
    large = 5 * 10**17 + many
    with expect.grouped("the number is exact for any size", "12 cases"):
        for i in range(12):
            case = (large + i, n, n - 1, i % 3) if i > 2 else (large + i, 3, 2, 3)
            _expect_bytes(expect, bytes_of_rank, "the number is exact for any size", case)
    with expect.grouped("any size, any rank, any stage", "60 cases"):
        for _ in range(60):
            num_params, ranks = draw.integer(0, 60), draw.integer(1, 12)
            case = (num_params, ranks, draw.integer(0, ranks - 1), draw.integer(0, 3))
            _expect_bytes(expect, bytes_of_rank, "any size, any rank, any stage", case)


def _expect_bytes(expect: Expect, answer: Callable, rule: str, case: tuple[int, int, int, int]) -> None:
    asked = "num_params {:,}, ranks {}, rank {}, stage {}".format(*case)
    saw = answer(*case)
    if saw is None:
        raise RuleBroken(f"{rule} ({asked})", "None: is there a return?", "a whole number")
    value = plain_number(saw)
    wanted = _reference_bytes(*case)
    if isinstance(value, float) and value == wanted and value.is_integer() and wanted < 2**53:
        value = int(value)
    with expect.grouped(rule, f"{wanted:,} bytes"):
        expect.equal(f"{rule} ({asked})", value, wanted)


# ---- a step of stage 1 ----


@exercise(
    "A step of stage 1",
    hints=[
        "Which two tensors does the reduce-scatter take? The full gradient of this rank, and a new, empty tensor of "
        "the length of a shard.",
        "A sum over ranks is not yet a mean. `master.grad` has the dtype of `master`; the tensors sent have the dtype "
        "of `flat`.",
        "Divide `gradient` by n; reduce_scatter(shard, gradient); master.grad = shard.to(master.dtype); "
        "optimizer.step(); and all_gather into `flat` the master, detached and cast to flat.dtype.",
    ],
)
def stage_1_step(expect: Expect, stage_1_step: Callable[..., None]) -> None:
    not_from_lablib(stage_1_step)
    draw = expect.draw
    double, single, half = torch.float64, torch.float32, torch.bfloat16
    runs = [(draw.integer(3, 7), double, double), (1, double, double), (2, single, double)]
    for ranks, dtype, master_dtype in [*runs, (draw.choice([4, 8]), half, single)]:
        expect.measured.clear()  # the report shows the last number of ranks
        _expect_stage_1(expect, stage_1_step, ranks, dtype, master_dtype)


def _expect_stage_1(
    expect: Expect, answer: Callable[..., None], ranks: int, dtype: torch.dtype, master_dtype: torch.dtype
) -> None:
    """Three steps of SGD with momentum and weight decay, where a sum with lr/n differs from a mean.

    In 16 bits gradients are small whole numbers, times n: their sums and means are exact. The learning rate is so small
    that `flat` alone, in lower precision, would hardly change.
    """
    draw, steps, lr, momentum, decay = expect.draw, 3, 2.0**-13, 0.5, 0.125
    numel = ranks * draw.integer(300, 500)
    gradients = [8 * draw.tensor((numel,), torch.float64).to(dtype).double() for _ in range(ranks * steps)]
    if dtype == torch.bfloat16:
        gradients = [ranks * gradient.round() for gradient in gradients]
    rtol = 1e-9 if dtype == torch.float64 else 1e-6
    start = 1 + (32 * draw.tensor((numel,), torch.float64)).round() / 64

    def program(start: Tensor, gradients: list[Tensor], answer: Callable[..., None]) -> dict[str, Any]:
        rank, n = dist.get_rank(), dist.get_world_size()
        flat, shard = start.clone().to(dtype), slice(rank * numel // n, (rank + 1) * numel // n)
        alias = flat[:]
        master = nn.Parameter(start[shard].clone().to(master_dtype))
        whole = master.data[:]
        optimizer = torch.optim.SGD([master], lr=lr, momentum=momentum, weight_decay=decay)
        given: list[
            tuple[Tensor | None, float]
        ] = []  # gradient of the step, learning rate; the answer may clear the gradient afterwards

        def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            grad = None if master.grad is None else master.grad.detach().clone()
            given.append((grad, optimizer.param_groups[0]["lr"]))

        optimizer.register_step_pre_hook(keep)
        seen = []
        for step in range(steps):
            gradient = gradients[step * n + rank].clone().to(dtype)
            answer(flat, gradient, master, optimizer)
            seen.append((master.detach().clone(), flat.clone(), given[-1] if given else (None, lr), len(given)))
        is_same = alias.data_ptr() == flat.data_ptr() and whole.data_ptr() == master.data_ptr()
        return {"seen": seen, "in_place": is_same}

    run = expect.launch(program, start, gradients, answer, ranks=ranks)
    on = f"{plural(ranks, 'ranks')}, {_name(dtype)} with a master copy in {_name(master_dtype)}"
    params, velocity = start.to(master_dtype), torch.zeros(numel, dtype=master_dtype)
    with expect.grouped(f"master.grad, master and flat, on every rank after each of {steps} steps ({on})", "right"):
        for step in range(steps):
            mean = (sum(gradients[step * ranks : (step + 1) * ranks]) / ranks).to(master_dtype)  # pyright: ignore
            decayed = mean + decay * params
            velocity = decayed if step == 0 else momentum * velocity + decayed
            params = params - lr * velocity
            where = f" ({on}, step {step + 1})"
            for rank, value in enumerate(run.values):
                shard = slice(rank * numel // ranks, (rank + 1) * numel // ranks)
                master, flat, (grad, rate), num_steps = value["seen"][step]
                at = f"{where[:-1]}, rank {rank})"
                rule = "the optimizer steps once in each call"
                expect.equal(f"{rule}{at}", num_steps, step + 1)
                expect.equal(f"the learning rate stays as it is{at}", rate, lr)
                _expect_mean(expect, grad, mean[shard], ranks, at, rtol)
                expect.close(f"master has been stepped by the mean gradient{at}", master, params[shard], rtol=rtol)
                expect.that(
                    f"flat and master keep their memory{at}",
                    value["in_place"],
                    saw="the same memory" if value["in_place"] else "other memory: others hold views of the old one",
                    expected="changed in place",
                )
                rule = f"flat holds every rank's shard in the order of the ranks, cast to its dtype{at}"
                rounded = 5e-3 if dtype == torch.bfloat16 else rtol
                expect.close(rule, flat.double(), params.to(dtype).double(), rtol=rounded)
    needed = steps * 2 * (ranks - 1) / ranks * numel * dtype.itemsize
    sent_bytes_within(expect, run, at_most=needed + HALF, at_least=needed)


def _expect_mean(expect: Expect, grad: Tensor | None, mean: Tensor, ranks: int, at: str, rtol: float) -> None:
    rule = f"master.grad is this rank's shard of the mean gradient{at}"
    if grad is None:
        raise RuleBroken(rule, "None: the optimizer got no gradient", "a tensor as long as master")
    if grad.shape == mean.shape and ranks > 1 and torch.allclose(grad.double(), ranks * mean.double()):
        raise RuleBroken(rule, f"{ranks} times the mean: a sum over {ranks} ranks", "the mean")
    expect.close(rule, grad.to(mean.dtype), mean, rtol=rtol, atol=rtol * float(mean.abs().max()))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- shards of gradients ----


class _Network(nn.Module):
    """Layers of odd sizes, a head that shares the last layer's weight, and direct parameters of 3 and 0 dimensions."""

    def __init__(self, widths: Sequence[int], dtype: torch.dtype):
        super().__init__()
        like: dict[str, Any] = {"dtype": dtype, "device": "cpu"}
        pairs = zip(widths, widths[1:], strict=False)
        self.gains = nn.Parameter(torch.empty(3, 2, widths[-1], **like))
        self.scale = nn.Parameter(torch.empty((), **like))
        self.layers = nn.Sequential(*(nn.Linear(a, b, **like) for a, b in pairs))
        self.last = nn.Linear(widths[-1], widths[-1], **like)
        self.head = nn.Linear(widths[-1], widths[-1], **like)
        self.head.weight = self.last.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(self.last(self.layers(x))) * (1 + self.gains.mean((0, 1)))


def _network(draw: Draw, widths: Sequence[int], dtype: torch.dtype) -> _Network:
    module = _Network(widths, dtype)
    for param in module.parameters():
        param.data = 0.2 * draw.tensor(tuple(param.shape), dtype)
    module.scale.data += 1
    return module


def _loss(module: nn.Module, batch: Tensor) -> Tensor:
    return torch.tanh(module(batch)).square().mean()


def _one_device(module: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    module = copy.deepcopy(module)
    _loss(module, batch).backward()
    return {name: param.grad.flatten() for name, param in module.named_parameters() if param.grad is not None}


def _sharded(module: nn.Module) -> dict[Tensor, Tensor]:
    """A reference: its bytes and memory are the budget."""
    shards: dict[Tensor, Tensor] = {}

    def reduce(param: Tensor) -> None:
        assert param.grad is not None
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(full.numel() // n)
        _reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard

    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards


@exercise(
    "Keep a shard of each gradient",
    hints=[
        "A hook gets the parameter when `param.grad` is complete. What must happen to it before backward goes on, so "
        "that it can be freed at once?",
        "Flatten, divide by n, and append -numel % n zeros; then reduce-scatter into a new tensor of len(full) // n. "
        "Set param.grad to None. The dict belongs to this call, and the hook only changes it.",
        "`shards[param] = shard` for the first backward, `shards[param].add_(shard)` for later ones; register the hook "
        "on every parameter and return shards.",
    ],
)
def shard_gradients(expect: Expect, shard_gradients: Callable[[nn.Module], Mapping[Tensor, Tensor]]) -> None:
    not_from_lablib(shard_gradients)
    draw = expect.draw
    double, single = torch.float64, torch.float32
    for ranks, num_modules, count, dtype in [
        (3, 2, 3, double),
        (1, 1, 2, double),
        (draw.choice([2, 4, 5]), 1, 2, single),
    ]:
        expect.measured.clear()  # the report shows the last number of ranks
        _expect_sharded(expect, shard_gradients, ranks, num_modules, count, dtype)
    _expect_zeros_sharded(expect, shard_gradients)


def _expect_zeros_sharded(expect: Expect, answer: Callable) -> None:
    """One rank's gradients are all 0: it must make the same calls as the others."""
    draw, ranks = expect.draw, 3
    idle, module = draw.integer(0, ranks - 1), _network(draw, [4, 5], torch.float64)
    batches = [draw.tensor((4, 4), torch.float64) for _ in range(ranks)]
    weights = [float(rank != idle) for rank in range(ranks)]

    def program(module: nn.Module, batches: list[Tensor], answer: Callable) -> list[Tensor]:
        rank, shards = dist.get_rank(), answer(module)
        (weights[rank] * _loss(module, batches[rank])).backward()
        return [shards[param].clone() for param in module.parameters()]

    on = f"{plural(ranks, 'ranks')}, all gradients of rank {idle} are 0"
    with same_calls(on):
        run = expect.launch(program, module, batches, answer, ranks=ranks)
    alone = [_one_device(module, batch) for batch in batches]
    for number, name in enumerate(alone[0]):
        full = torch.stack([weight * one[name] for weight, one in zip(weights, alone, strict=True)]).sum(0) / ranks
        pieces = F.pad(full, (0, -full.numel() % ranks)).chunk(ranks)
        saw = [value[number] for value in run.values]
        rule = f"rank r has the r-th piece of the mean gradient ({name}, {on})"
        expect.close(rule, saw, list(pieces), rtol=1e-9, atol=1e-9 * float(full.abs().max()))


def _expect_sharded(
    expect: Expect, answer: Callable, ranks: int, num_modules: int, count: int, dtype: torch.dtype
) -> None:
    """Each module makes two steps: of one micro-batch, and of `count`. The caller empties the dict between."""
    draw, samples = expect.draw, 4
    modules = []
    for _ in range(num_modules):
        inner = [draw.integer(41, 47) for _ in range(draw.integer(4, 5))]
        modules.append(_network(draw, [31, *inner], dtype))
    counts = [1, count]
    batches = [[draw.tensor((samples * ranks, 31), dtype) for _ in range(count)] for count in counts]

    def program(modules: list[nn.Module], batches: list[list[Tensor]], answer: Callable) -> list[list[Any]]:
        kept = []
        made = [answer(module) for module in modules]
        for shards in made:
            expect.that(
                "shard_gradients returns a dict, which backward fills",
                isinstance(shards, Mapping),
                saw="None: is there a return?" if shards is None else short_repr(shards),
                expected="a dict: parameter -> shard",
            )
        for module, shards in zip(modules, made, strict=True):
            for micro_batches in batches:
                for batch in micro_batches:
                    _loss(module, batch.chunk(dist.get_world_size())[dist.get_rank()]).backward()
                names = {param: name for name, param in module.named_parameters()}
                left = [name for param, name in names.items() if param.grad is not None]
                strange = [key for key in shards if not isinstance(key, Tensor) or key not in names]
                found = {names[key]: shards[key].clone() for key in shards if key in names}
                kept.append((found, left, [short_repr(key) for key in strange]))
                shards.clear()
                module.zero_grad()
        return kept

    run = expect.launch(program, modules, batches, answer, ranks=ranks)
    at = 0
    for number, module in enumerate(modules):
        for micro_batches in batches:
            on = f"{plural(ranks, 'ranks')}, {plural(len(micro_batches), 'micro-batches')}"
            where = f"{on}{', another module' if number else ''}"
            alone = [_one_device(module, batch) for batch in micro_batches]
            wanted = {name: torch.stack([one[name] for one in alone]).sum(0) for name in alone[0]}
            _expect_shards(expect, [value[at] for value in run.values], wanted, len(micro_batches), where)
            at += 1
    calls = num_modules * sum(counts)
    needed = sum(-(-param.numel() // ranks) * dtype.itemsize for module in modules for param in module.parameters())
    needed *= (ranks - 1) * calls // num_modules
    least = (ranks - 1) / ranks * calls / num_modules * sum(p.nbytes for m in modules for p in m.parameters())
    sent_bytes_within(expect, run, at_most=needed + HALF, at_least=least)
    largest = max(param.nbytes for module in modules for param in module.parameters())
    best = launch(program, modules, batches, _sharded, ranks=ranks)
    peaks = [max(one.memory.peak_bytes(rank) for rank in range(ranks)) for one in (run, best)]
    rule = f"peak memory of a rank: full gradients are freed in backward ({plural(ranks, 'ranks')})"
    expect.budget(rule, peaks[0], peaks[1] + 2.5 * largest, "B")


def _expect_shards(
    expect: Expect, seen: Sequence[tuple], wanted: Mapping[str, Tensor], num_batches: int, where: str
) -> None:
    ranks = len(seen)
    with expect.grouped(f"every parameter has a shard on every rank, and no gradient is left ({where})", "right"):
        for rank, (found, left, strange) in enumerate(seen):
            on = f" ({where}, rank {rank})"
            if strange:
                raise RuleBroken(f"the dict's keys are the module's parameters{on}", strange[0], "the parameter itself")
            missing = [name for name in wanted if name not in found]
            if missing:
                raise RuleBroken(f"every parameter has a shard{on}", f"{missing[0]} has none", "one for each")
            rule = f"after backward every param.grad is None{on}"
            expect.that(rule, not left, saw=f"{left[0]} has a gradient" if left else "each is", expected="None")
    rtol = 1e-9 if next(iter(wanted.values())).dtype == torch.float64 else 1e-5
    with expect.grouped(f"shards are pieces of the mean gradient ({where})", f"equal to {rtol:.0e}"):
        for name, full in wanted.items():
            room = -(-full.numel() // ranks)
            for rank, (found, _, _) in enumerate(seen):
                rule = f"a shard is 1-D, and has numel/n numbers, rounded up ({name}, {where}, rank {rank})"
                expect.equal(rule, tuple(found[name].shape), (room,))
                rule = f"a shard has the dtype of its parameter ({name}, {where}, rank {rank})"
                expect.equal(rule, _name(found[name].dtype), _name(full.dtype))
            padded = F.pad(full, (0, room * ranks - full.numel())).reshape(ranks, room)
            got = torch.stack([found[name].double() for found, _, _ in seen])
            _expect_factor(got, padded.double(), ranks, num_batches, f"{name}, {where}")
            for rank, (found, _, _) in enumerate(seen):
                rule = f"rank r has the r-th piece of the mean gradient, then zeros ({name}, {where}, rank {rank})"
                expect.close(rule, found[name], padded[rank], rtol=rtol, atol=rtol * float(full.abs().max()))


def _expect_factor(got: Tensor, wanted: Tensor, ranks: int, num_batches: int, where: str) -> None:
    """A wrong factor has a separate rule: an optimizer such as Adam would hide it."""
    factor = float((got * wanted).sum() / (wanted * wanted).sum())
    if abs(factor - 1) < 1e-5 or not float((got - factor * wanted).norm()) < 1e-5 * float(got.norm()):
        return
    said = f"{factor:.4g} times the mean" + (f": a sum over {ranks} ranks" if abs(factor - ranks) < 1e-5 else "")
    rule = f"shards hold the mean over ranks{' and the sum over micro-batches' if num_batches > 1 else ''} ({where})"
    raise RuleBroken(rule, said, "1 time")


# ---- exercise 4 ----


def _gathered(shards: list[Tensor], compute: Callable, x: Tensor) -> Tensor:
    """A reference: its time and memory are the budget."""
    n = dist.get_world_size()

    def start(i: int) -> tuple[Tensor, Any]:
        full = shards[i].new_empty(n * shards[i].numel())
        return full, _all_gather(full, shards[i], async_op=True)

    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
    return x


def _blocking(shards: list[Tensor], compute: Callable, x: Tensor) -> Tensor:
    for i, shard in enumerate(shards):
        full = shard.new_empty(dist.get_world_size() * shard.numel())
        _all_gather(full, shard)
        x = compute(i, full, x)
    return x


def _slow_machine() -> Cluster:
    """A unit's products take about as long as its gather."""
    device = Device("a sixth of a gigaflop", {"float32": 1.6e8, "float64": 1.6e8}, 1e12, 1e15)
    return find_cluster("dgx-a100").replace(device=device, intra=Link("wire", 1e-6, 0.25e9))


@exercise(
    "Gather ahead",
    hints=[
        "Before the loop, start the first gather. In the loop: which gather must have ended, and which one must be "
        "under way, when `compute` is called?",
        "Keep a pair (full, work) of the gather that was started last. In turn i: take it, wait, start the next if "
        "there is one, compute. Assigning the next pair to a name releases the one before.",
        "`full = shards[i].new_empty(n * len(shards[i]))`, then `work = all_gather(full, shards[i], async_op=True)`. "
        "Do not keep a list of all full tensors: it would keep them in memory.",
    ],
)
def gather_ahead(expect: Expect, gather_ahead: Callable[..., Tensor]) -> None:
    not_from_lablib(gather_ahead)
    draw = expect.draw
    runs = [(draw.integer(2, 3), draw.integer(6, 8)), (1, 3), (draw.integer(4, 6), draw.integer(3, 5)), (2, 1)]
    for ranks, num_units in [*runs, (draw.integer(2, 4), 2)]:
        if num_units > 2:
            expect.measured.clear()  # the report shows the last case
        _expect_gathered(expect, gather_ahead, ranks, num_units, torch.float32 if ranks > 3 else torch.float64)


def _expect_gathered(expect: Expect, answer: Callable, ranks: int, num_units: int, dtype: torch.dtype) -> None:
    """Units are square matrices and some more numbers, each of another size. Two calls: each begins with nothing.

    Samples are few, so that three units at once take more memory than two units and the activations.
    """
    draw = expect.draw
    width, samples = 16 * draw.integer(4, 6), draw.integer(4, 6)
    extras = [draw.integer(1, 9) * width for _ in range(num_units)]
    sizes = [-(-(width * width + extra) // ranks) * ranks for extra in extras]
    units = [draw.tensor((size,), dtype) / width for size in sizes]
    x = draw.tensor((samples, width), dtype)

    def compute(i: int, full: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ full[: width * width].view(width, width)) + full[width * width :].sum()

    def program(units: list[Tensor], x: Tensor, answer: Callable) -> list[Any]:
        with record_function("setup"):
            n, rank = dist.get_world_size(), dist.get_rank()
            shards = [unit.chunk(n)[rank].clone() for unit in units]
            turns, values = [], []

            def asked(i: int, full: Tensor, x: Tensor) -> Tensor:
                turns.append((i, tuple(full.shape) if isinstance(full, Tensor) else short_repr(full)))
                return compute(i, full, x)

        with torch.no_grad():
            for _ in range(2):
                values.append(observe(answer, list(shards), asked, x))
        return [values, turns]

    on = {"ranks": ranks, "cluster": _slow_machine()}
    run = expect.launch(program, units, x, answer, **on)
    what = f"{plural(num_units, 'units')} on {plural(ranks, 'ranks')}"
    wanted = x
    for i, unit in enumerate(units):
        wanted = compute(i, unit, wanted)
    with expect.grouped(f"each unit is whole when it computes, and the output right, on every rank ({what})", "equal"):
        for rank, (calls, turns) in enumerate(run.values):
            where = f" ({what}, rank {rank})"
            order = [i for i, _ in turns]
            expect.equal(f"compute is called once for each unit, in order{where}", order, 2 * list(range(num_units)))
            shapes = [shape for _, shape in turns]
            expect.equal(f"compute is given a whole unit: n shards{where}", shapes, 2 * [(size,) for size in sizes])
            for call in calls:
                if call.value is None:
                    raise RuleBroken(f"the output of the last unit is returned{where}", "None: is there a return?", "x")
                rtol = 1e-9 if dtype == torch.float64 else 1e-4
                rule = f"the output equals one device's with all parameters{where}"
                expect.close(rule, call.value, wanted, rtol=rtol, atol=rtol)
                expect.equal(f"the output has the dtype of the input{where}", _name(call.value.dtype), _name(dtype))
            changes_nothing(expect, calls)
    needed = 2 * (ranks - 1) * sum(size // ranks * dtype.itemsize for size in sizes)
    sent_bytes_within(expect, run, at_most=needed + HALF, at_least=needed)
    best = launch(program, units, x, _gathered, **on)
    peaks = [max(one.memory.peak_bytes(rank) for rank in range(ranks)) for one in (run, best)]
    room = 0.5 * dtype.itemsize * min(sizes)
    expect.budget(f"peak memory of a rank: two units at a time ({what})", peaks[0], peaks[1] + room, "B")
    if ranks == 1 or num_units == 1:
        return  # no communication
    naive = launch(program, units, x, _blocking, **on)
    took_s, best_s, naive_s = (one.timeline.without("setup").makespan_s for one in (run, best, naive))
    limits = f"{1e3 * naive_s:.3g} ms without gathering ahead, {1e3 * best_s:.3g} ms at best"
    expect.budget(f"simulated seconds of two calls, {what} ({limits})", took_s, 1.01 * best_s, "s")


# ---- the backward of stage 3 ----


def _backward(shards: list[Tensor], inputs: list[Tensor], backward: Callable, grad: Tensor, ahead: bool = True) -> Any:
    """A reference: with `ahead`, its seconds and its peak are the budgets."""
    n, grads, last = dist.get_world_size(), [torch.empty_like(shard) for shard in shards], len(shards) - 1

    def start(i: int) -> tuple[Tensor, Any]:
        full = shards[i].new_empty(n * shards[i].numel())
        return full, _all_gather(full, shards[i], async_op=True)

    reducing, following = None, start(last) if ahead else None
    for i in range(last, -1, -1):
        full, work = following or start(i)
        work.wait()
        following = start(i - 1) if ahead and i else None
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = _reduce_scatter(grads[i], whole.div_(n), async_op=True)
        del whole, full, work
        if not ahead and reducing:
            reducing.wait()
            reducing = None
    if reducing:
        reducing.wait()
    return grads, grad


@exercise(
    "The backward of stage 3",
    hints=[
        "Begin with your forward, in reverse: which gather is started before the loop, and which one in it? Then: when "
        "is the gradient of a unit complete, and who needs it?",
        "After `backward` of unit i: wait for the reduce-scatter of unit i + 1, if there is one, then start that of "
        "unit i. So one of them is under way while the next unit computes; the last is waited for after the loop. "
        "Divide in place, or after the wait: a new tensor before it would be a third whole gradient.",
        "`whole, grad = backward(i, full, inputs[i], grad)`; `reducing.wait()` if it is not None; `reducing = "
        "reduce_scatter(grads[i], whole.div_(n), async_op=True)`, with grads[i] an empty tensor like the shard.",
    ],
)
def backward_of_units(expect: Expect, backward_of_units: Callable[..., Any]) -> None:
    not_from_lablib(backward_of_units)
    draw = expect.draw
    runs = [(draw.integer(2, 3), draw.integer(6, 7)), (1, 3), (draw.integer(4, 5), draw.integer(4, 5)), (2, 1)]
    for ranks, num_units in [*runs, (draw.integer(2, 4), 2)]:
        if num_units > 2:
            expect.measured.clear()  # the report shows the last case
        dtype = torch.float32 if num_units == 2 else torch.float64
        _expect_backward(expect, backward_of_units, ranks, num_units, dtype)


def _expect_backward(expect: Expect, answer: Callable, ranks: int, num_units: int, dtype: torch.dtype) -> None:
    """Units are square matrices and some more numbers, each of another size; each rank has its own batch."""
    draw, is_exact = expect.draw, dtype == torch.float64
    like: dict[str, Any] = {"rtol": 1e-9 if is_exact else 1e-4, "atol": 1e-12 if is_exact else 1e-5}
    width, samples = 16 * draw.integer(4, 5), draw.integer(4, 6)
    extras = [draw.integer(1, 9) * width for _ in range(num_units)]
    sizes = [-(-(width * width + extra) // ranks) * ranks for extra in extras]
    units = [draw.tensor((size,), dtype) / width for size in sizes]
    batches = [draw.tensor((2, samples, width), dtype) for _ in range(ranks)]  # the input, and the last gradient

    def compute(i: int, full: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ full[: width * width].view(width, width)) + full[width * width :].sum()

    def inputs_of(x: Tensor) -> list[Tensor]:
        inputs = [x]
        for i, unit in enumerate(units[:-1]):
            inputs.append(compute(i, unit, inputs[-1]))
        return inputs

    kept = [inputs_of(x) for x, _ in batches]

    def program(units: list[Tensor], kept: list[list[Tensor]], batches: list[Tensor], answer: Callable) -> list[Any]:
        with record_function("setup"):
            n, rank = dist.get_world_size(), dist.get_rank()
            shards = [unit.chunk(n)[rank].clone() for unit in units]
            inputs, grad, turns = kept[rank], batches[rank][1].clone(), []
            del units, kept, batches

            def asked(i: int, full: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
                turns.append((i, tuple(full.shape) if isinstance(full, Tensor) else short_repr(full)))
                a = torch.tanh(x @ full[: width * width].view(width, width))
                inner = grad * (1 - a * a)
                whole = torch.empty_like(full)
                torch.mm(x.T, inner, out=whole[: width * width].view(width, width))
                whole[width * width :] = grad.sum()
                return whole, inner @ full[: width * width].view(width, width).T

        with torch.no_grad():
            call = observe(answer, list(shards), list(inputs), asked, grad)
        return [call, turns]

    on = {"ranks": ranks, "cluster": _slow_machine()}
    run = expect.launch(program, units, kept, batches, answer, **on)
    what = f"{plural(num_units, 'units')} on {plural(ranks, 'ranks')}"
    whole, firsts = _gradients(units, batches, compute)
    with expect.grouped(
        f"each unit is whole in its backward, and all gradients right, on every rank ({what})", "equal"
    ):
        for rank, (call, turns) in enumerate(run.values):
            where = f" ({what}, rank {rank})"
            order = [i for i, _ in turns]
            expect.equal(
                f"backward is called once for each unit, the last first{where}", order, [*range(num_units)][::-1]
            )
            shapes = [shape for _, shape in turns]
            expect.equal(f"backward is given a whole unit: n shards{where}", shapes, [(size,) for size in sizes[::-1]])
            value = call.value
            if not (isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], list | tuple)):
                raise RuleBroken(
                    f"gradients of the shards and of the input are returned{where}", short_repr(value), "grads, grad"
                )
            if len(value[0]) != num_units:
                raise RuleBroken(f"there is a gradient for each shard{where}", f"{len(value[0])}", f"{num_units}")
            for i, (saw, unit) in enumerate(zip(value[0], whole, strict=True)):
                wanted = unit.chunk(ranks)[rank]
                for factor, words in (
                    (ranks, "the sum over ranks, n times the mean"),
                    (1 / ranks, "the mean, divided by n again"),
                ):
                    if (
                        ranks > 1
                        and isinstance(saw, Tensor)
                        and saw.shape == wanted.shape
                        and saw.dtype == wanted.dtype
                        and torch.allclose(saw, factor * wanted, **like)
                    ):
                        raise RuleBroken(f"a shard's gradient is the mean over ranks{where}", words, "the mean")
                expect.close(f"the gradient of shard {i} is one device's, of all batches{where}", saw, wanted, **like)
            expect.close(f"the gradient of the first input is this rank's{where}", value[1], firsts[rank], **like)
            changes_nothing(expect, [call])
    needed = 2 * (ranks - 1) * sum(size // ranks * dtype.itemsize for size in sizes)
    sent_bytes_within(expect, run, at_most=needed + HALF, at_least=needed)
    best = launch(program, units, kept, batches, _backward, **on)
    peaks = [max(one.memory.peak_bytes(rank) for rank in range(ranks)) for one in (run, best)]
    room = 0.5 * dtype.itemsize * min(sizes)
    if ranks > 1:  # without the shards: an answer may make their gradients one by one
        whole_peaks = [_peak_of_large(one, 0.9 * dtype.itemsize * min(sizes)) for one in (run, best)]
        if num_units < 3:  # the reference needs less than the exercise's text allows
            room += max(0, 4 * dtype.itemsize * max(sizes) - whole_peaks[1])
        rule = f"peak memory of whole parameters and gradients: two units and two gradients ({what})"
        expect.budget(rule, whole_peaks[0], whole_peaks[1] + room, "B")
    expect.budget(f"peak memory of a rank: two units and two gradients ({what})", peaks[0], peaks[1] + room, "B")
    if ranks == 1 or num_units == 1:
        return  # no communication, or nothing to hide it
    naive = launch(program, units, kept, batches, partial(_backward, ahead=False), **on)
    took_s, best_s, naive_s = (one.timeline.without("setup").makespan_s for one in (run, best, naive))
    limits = f"{1e3 * naive_s:.3g} ms without overlap, {1e3 * best_s:.3g} ms at best"
    expect.budget(f"simulated seconds, {what} ({limits})", took_s, 1.02 * best_s, "s")


def _peak_of_large(run: Run, least_bytes: float) -> int:
    """The peak of a rank, counting the storages of at least this size that the program made after its setup."""
    large = [each for each in run.memory.allocations if each.size_bytes >= least_bytes and each.phase != "setup"]
    return replace(run.memory, allocations=large).peak_bytes()


def _gradients(units: list[Tensor], batches: list[Tensor], compute: Callable) -> tuple[list[Tensor], list[Tensor]]:
    """By autograd: the mean gradient of each unit over the batches, and that of each batch's input."""
    means, firsts = [torch.zeros_like(unit) for unit in units], []
    for x, grad in batches:
        leaves = [each.clone().requires_grad_() for each in (*units, x)]
        y = leaves[-1]
        for i, unit in enumerate(leaves[:-1]):
            y = compute(i, unit, y)
        *found, first = torch.autograd.grad(y, leaves, grad)
        means = [mean + one / len(batches) for mean, one in zip(means, found, strict=True)]
        firsts.append(first)
    return means, firsts


# ---- clipping ----

_EMPTY = "too long, and the last rank has no numbers at all"
_INFINITE = "an inf on one rank"


def _clipped(shards: list[Tensor], max_norm: float) -> Tensor:
    """A reference: its bytes are the budget."""
    total = torch.stack([shard.square().sum() for shard in shards]).sum()
    dist.all_reduce(total)
    for shard in shards:
        shard.mul_(max_norm / total.sqrt().clamp(min=max_norm))
    return total.sqrt()


@exercise(
    "Clip by the global norm",
    hints=[
        "The norm of all shards is not the sum of their norms. What can be added up over ranks?",
        "The sum of squares of this rank's numbers is one number. All-reduce it; its root is the norm of everything.",
        "`total = sum(shard.square().sum() for shard in shards)`; dist.all_reduce(total); norm = total.sqrt(); then "
        "multiply each shard in place by `torch.clamp(max_norm / norm, max=1.0)`.",
    ],
)
def clip_shards(expect: Expect, clip_shards: Callable[[list[Tensor], float], Any]) -> None:
    not_from_lablib(clip_shards)
    draw = expect.draw
    cases = [(draw.integer(4, 6), 0.02, "too long"), (1, 0.5, "too long"), (draw.integer(2, 4), 3.0, "short enough")]
    cases += [(draw.integer(4, 7), 0.7, "too long on all ranks together, and on no rank alone")]
    cases += [(3, 0.3, _EMPTY), (draw.integer(3, 5), 0.5, _INFINITE)]
    for ranks, share, kind in [*cases, (draw.integer(3, 5), 0.0, "zero everywhere")]:
        expect.measured.clear()  # the report shows the last case
        _expect_clipped(expect, clip_shards, ranks, share, kind)


def _expect_clipped(expect: Expect, answer: Callable, ranks: int, share: float, kind: str) -> None:
    """The last rank has no numbers in its first shard, or in any. `max_norm` is a share of the global norm."""
    draw = expect.draw
    num = draw.integer(2, 4)
    per_rank = [
        [(rank + 1) * draw.tensor((draw.integer(3, 40),), torch.float64) for _ in range(num)] for rank in range(ranks)
    ]
    if ranks > 1:
        first, *others = per_rank[-1]
        per_rank[-1] = [first[:0], *(shard[:0] if kind == _EMPTY else shard for shard in others)]
    if not share:
        per_rank = [[0 * shard for shard in shards] for shards in per_rank]
    everything = torch.cat([shard for shards in per_rank for shard in shards])
    norm = float(everything.square().sum().sqrt())
    max_norm = share * norm if share else 1.0
    scale = min(1.0, max_norm / norm) if norm else 1.0

    def program(per_rank: list[list[Tensor]], answer: Callable) -> tuple[Any, list[Tensor], bool]:
        shards = [shard.clone() for shard in per_rank[dist.get_rank()]]
        aliases = [shard.detach() for shard in shards]
        returned = answer(shards, max_norm)
        in_place = all(a.data_ptr() == b.data_ptr() for a, b in zip(aliases, shards, strict=True))
        return returned, aliases, in_place

    if kind == _INFINITE:
        per_rank[draw.integer(0, ranks - 2)][1][0] = torch.inf
        run = expect.launch(program, per_rank, answer, ranks=ranks)
        for rank, (returned, _, _) in enumerate(run.values):
            rule = f"an inf in a shard of any rank is in the norm of all ({plural(ranks, 'ranks')}, rank {rank})"
            is_seen = returned is not None and not math.isfinite(float(plain_number(returned)))
            expect.that(rule, is_seen, short_repr(returned), "inf or nan")
        return
    run = expect.launch(program, per_rank, answer, ranks=ranks)
    with expect.grouped(f"norm and shards on every rank ({plural(ranks, 'ranks')}, {kind})", "right"):
        for rank, (returned, shards, in_place) in enumerate(run.values):
            where = f" ({plural(ranks, 'ranks')}, {kind}, rank {rank})"
            if returned is None:
                raise RuleBroken(f"the norm before clipping is returned{where}", "None: is there a return?", "the norm")
            value = plain_number(returned)
            expect.close(f"the norm of all ranks' shards before clipping is returned{where}", value, norm)
            expect.that(
                f"shards are scaled in place{where}", in_place, saw="other memory", expected="shard.mul_(...) or *="
            )
            rule = f"all shards are scaled by max_norm / norm if the norm is too long, otherwise not changed{where}"
            for saw, before in zip(shards, per_rank[rank], strict=True):
                expect.close(rule, saw, scale * before, rtol=1e-5)
    best = launch(program, per_rank, _clipped, ranks=ranks)
    sent = [sum(one.traffic.sent_bytes(rank) for rank in range(ranks)) / ranks for one in (run, best)]
    rule, least = f"bytes a rank sends in the mean ({plural(ranks, 'ranks')})", 8 * (ranks - 1) / ranks
    expect.budget(rule, sent[0], sent[1] + HALF, "B", at_least=least)
