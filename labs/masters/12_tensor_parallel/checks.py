"""Checks of lab 12: tensor parallel. All run on the simulator, on random data, sizes and numbers of ranks."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lablib import Run, launch
from lablib.course import Expect, exercise
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe
from lablib.parallel import SEQUENCE, TENSOR, MLPShard
from lablib.parallel.tensor.mlp import tensor_mlp as _library_mlp
from lablib.text.units import plural

HALF = 0.5  # of a byte: budgets of bytes that are exact
NAMES = ("up", "up_bias", "down", "down_bias")
HELPERS = ("all_reduced", "gathered", "same", "scattered", "with_gradient")  # of lab12
KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "all_gather_single": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter",
}


def _uneven(draw: Draw, ranks: int, least: int, most: int) -> list[int]:
    """A share for each rank, not all equal; the first is not the largest."""
    shares = [draw.integer(least, most) for _ in range(ranks)]
    if ranks > 1:
        shares[0], shares[-1] = least, most + 1
    return shares


def _whole_mlp(draw: Draw, width: int, hidden: int, dtype: torch.dtype) -> list[Tensor]:
    shapes = ((width, hidden), (hidden,), (hidden, width), (width,))
    return [0.7 * draw.tensor(shape, dtype) for shape in shapes]


def _mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    return F.gelu(x @ up + up_bias, approximate="tanh") @ down + down_bias


def _shards(whole: Sequence[Tensor], start: int, end: int) -> list[Tensor]:
    """Separate leaves, on this rank's GPU, some of them stored by columns."""
    up, up_bias, down, down_bias = whole
    mine = (up[:, start:end], up_bias[start:end], down[start:end], down_bias)
    return [part.clone().to(torch.get_default_device()).requires_grad_() for part in mine]


def _refuse_shape(value: Any, like: Tensor) -> None:
    """On the rank itself: with another shape backward would raise another error, or only on some ranks."""
    if isinstance(value, Tensor) and value.shape != like.shape:
        raise RuleBroken("the output has the shape of x", str(tuple(value.shape)), str(tuple(like.shape)))


def _expect_value(expect: Expect, rule: str, where: str, saw: Any, wanted: Tensor, ranks: int, rtol: float) -> None:
    if saw is None:
        raise RuleBroken(f"{rule}{where}", "None: is there a return?", "a tensor")
    if isinstance(saw, Tensor) and saw.dtype != wanted.dtype:
        raise RuleBroken(f"the output has the dtype of x{where}", str(saw.dtype), str(wanted.dtype))
    _refuse_factor(f"{rule}{where}", saw, wanted, ranks)
    expect.close(f"{rule}{where}", saw, wanted, rtol=rtol, atol=rtol * float(wanted.abs().max()))


def _refuse_factor(rule: str, saw: Any, wanted: Tensor, ranks: int) -> None:
    """n times or 1/n of the right value has a separate message: an optimizer such as Adam would hide it."""
    if ranks == 1 or not isinstance(saw, Tensor) or saw.shape != wanted.shape or not wanted.numel():
        return
    for factor, found in (
        (ranks, f"{ranks} times the right value: a sum over ranks"),
        (1 / ranks, f"1/{ranks} of the right value"),
    ):
        if torch.allclose(saw.double(), factor * wanted.double(), rtol=1e-5, atol=1e-12) and wanted.abs().max() > 0:
            raise RuleBroken(rule, found, "1 time")


def _expect_gradient(
    expect: Expect, name: str, where: str, saw: Tensor | None, wanted: Tensor, parts: Tensor | None, rtol: float, n: int
) -> None:
    """`parts`: this rank's result, without the other ranks' parts of the sum."""
    rule = f"the gradient of {name} equals one device's{where}"
    if saw is None:
        raise RuleBroken(rule, "None: it is not in autograd's graph", "a gradient")
    atol = rtol * float(wanted.abs().max())
    is_part = parts is not None and saw.shape == parts.shape and torch.allclose(saw, parts, rtol=1e-5, atol=atol)
    if n > 1 and is_part and not torch.allclose(parts, wanted, rtol=1e-5, atol=atol):  # pyright: ignore
        raise RuleBroken(rule, "only this rank's part of it", "the sum of all ranks' parts")
    _refuse_factor(rule, saw, wanted, n)
    expect.close(rule, saw, wanted, rtol=rtol, atol=atol)


def _expect_calls(expect: Expect, run: Run, best: Run, allowed: dict[str, int], where: str, least: float = 1.0) -> None:
    """No more calls and bytes than the library's; a send and its receive count once.

    `least`: the share of the library's bytes that must be sent to have the other ranks' numbers.
    """
    calls = Counter(KINDS.get(transfer.name, transfer.name) for transfer in run.traffic.transfers)
    most = ", ".join(f"{count} {name}" for name, count in allowed.items())
    other = {name: count for name, count in calls.items() if count > allowed.get(name, 0)}
    saw = ", ".join(f"{count} {name}" for name, count in sorted(calls.items())) or "none"
    expect.that(f"collectives of forward and backward{where}", not other, saw=saw, expected=f"at most {most}")
    sent = [max(one.traffic.sent_bytes(rank) for rank in range(one.ranks)) for one in (run, best)]
    rule = f"bytes a rank sends, forward and backward{where}"
    expect.budget(rule, sent[0], sent[1] + HALF, "B", at_least=least * sent[1])


def _refuse_dtensor(answer: Callable[..., Any]) -> None:
    """Refuse torch's own solution, by name. Called after the runs: an answer that uses it has loaded it by then."""
    names = ("DTensor", "distribute_tensor", "distribute_module", "parallelize_module", "loss_parallel")
    modules = [sys.modules.get(f"torch.distributed.tensor{name}") for name in ("", ".parallel")]
    not_from_lablib(answer, HELPERS, [getattr(one, name) for one in modules for name in names if hasattr(one, name)])


# ---- exercise 1 ----


@exercise(
    "An MLP on n ranks",
    hints=[
        "Two places: the input x, and the sum of the parts of the output. What does each do in backward?",
        "f is `with_gradient(x, same, all_reduced)`; g is the reverse. down_bias must be added once: where?",
        "x = f(x); hidden = gelu(x @ up + up_bias); return g(hidden @ down) + down_bias.",
    ],
)
def tensor_mlp(expect: Expect, tensor_mlp: Callable[..., Any]) -> None:
    not_from_lablib(tensor_mlp, allowed=HELPERS)
    draw = expect.draw
    for ranks, dtype in [(draw.integer(3, 5), torch.float64), (1, torch.float64), (draw.choice([2, 4]), torch.float32)]:
        expect.measured.clear()  # the report shows the last number of ranks
        _expect_mlp(expect, tensor_mlp, ranks, dtype)
    _refuse_dtensor(tensor_mlp)


def _expect_mlp(expect: Expect, answer: Callable[..., Any], ranks: int, dtype: torch.dtype) -> None:
    """Two batches with gradients that add up, each through two MLPs with a residual sum between them.

    So the input of the second MLP has gradients from two paths.
    """
    draw, rtol = expect.draw, 1e-9 if dtype == torch.float64 else 1e-4
    tokens, width, shares = draw.integer(3, 7), draw.integer(4, 9), _uneven(draw, ranks, 2, 5)
    ends = [sum(shares[: rank + 1]) for rank in range(ranks)]
    wholes = [_whole_mlp(draw, width, ends[-1], dtype) for _ in range(2)]
    batches = [(draw.tensor((tokens, width), dtype), draw.tensor((tokens, width), dtype)) for _ in range(2)]

    def one_batch(x: Tensor, grad: Tensor, shards: list[list[Tensor]], answer: Callable[..., Any]) -> dict[str, Any]:
        x = x.clone().requires_grad_()
        first = observe(answer, x, *shards[0])
        _refuse_shape(first.value, x)
        if not isinstance(first.value, Tensor):
            return {"calls": [first], "outputs": [first.value] * 2, "grads": []}
        middle = x + first.value
        middle.retain_grad()
        second = observe(answer, middle, *shards[1])
        _refuse_shape(second.value, x)
        if isinstance(second.value, Tensor):
            (middle + second.value).backward(grad.clone())
        values = [call.value for call in (first, second)]
        outputs = [one.detach() if isinstance(one, Tensor) else one for one in values]
        return {"calls": [first, second], "outputs": outputs, "grads": [x.grad, middle.grad]}

    def program(batches: list[tuple[Tensor, Tensor]], wholes: list[list[Tensor]], answer: Callable[..., Any]) -> Any:
        rank = dist.get_rank()
        shards = [_shards(whole, ends[rank] - shares[rank], ends[rank]) for whole in wholes]
        found = [one_batch(x, grad, shards, answer) for x, grad in batches]
        return found, [part.grad for shard in shards for part in shard]

    run = expect.launch(program, batches, wholes, answer, ranks=ranks)

    def reference(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        shard = MLPShard(up.t(), up_bias, down.t(), down_bias)
        return _library_mlp(x, shard, None, TENSOR)

    weights = [part.clone().requires_grad_() for whole in wholes for part in whole]
    wanted = [_two_mlps(x, grad, weights) for x, grad in batches]
    on = f" ({plural(ranks, 'ranks')}, {str(dtype).removeprefix('torch.')}"
    with expect.grouped(f"outputs and all gradients equal one device's, on every rank{on})", "right"):
        for rank, (found, of_weights) in enumerate(run.values):
            where, own = f"{on}, rank {rank})", slice(ends[rank] - shares[rank], ends[rank])
            for value, right in zip(found, wanted, strict=True):
                for i, output in enumerate(right["outputs"]):
                    _expect_bias_once(value["outputs"][i], output, wholes[i][3], ranks, where)
                    rule = "the output equals one device's" + (", in the second MLP" if i else "")
                    _expect_value(expect, rule, where, value["outputs"][i], output, ranks, rtol)
                changes_nothing(expect, value["calls"])
            cuts: list[Any] = [(slice(None), own), own, own, ...]
            listed: list[tuple[str, Any, Tensor, Tensor | None]] = [
                (f"{NAMES[i % 4]} of MLP {1 + i // 4}", saw, _gradient(weights[i])[cuts[i % 4]], None)
                for i, saw in enumerate(of_weights)
            ]
            for batch, value, right, (_, grad) in zip(("", ", second batch"), found, wanted, batches, strict=True):
                alone = _of_one_rank(right["middle"], wholes[1], own, grad)
                listed.append((f"x of MLP 2{batch}", value["grads"][1], right["grads"][1], alone))
                listed.append((f"x{batch}", value["grads"][0], right["grads"][0], None))
            # From the output to the input: the gradient of the first x contains all mistakes.
            for i in (7, 4, 5, 6, 8, 10, 3, 0, 1, 2, 9, 11):
                name, saw, right, alone = listed[i]
                _expect_gradient(expect, name, where, saw, right, alone, rtol, ranks)
    best = launch(program, batches, wholes, reference, ranks=ranks)
    _expect_calls(expect, run, best, {"all-reduce": 8}, f" of two MLPs, for two batches{on})")


def _expect_bias_once(saw: Any, wanted: Tensor, bias: Tensor, ranks: int, where: str) -> None:
    is_comparable = isinstance(saw, Tensor) and saw.shape == wanted.shape
    if ranks > 1 and is_comparable and torch.allclose(saw.double(), (wanted + (ranks - 1) * bias).double(), rtol=1e-4):
        raise RuleBroken(f"down_bias is added once{where}", f"it is in the output {ranks} times", "once")


def _two_mlps(x: Tensor, grad: Tensor, weights: Sequence[Tensor]) -> dict[str, Any]:
    """On one device: outputs, the gradients of both inputs, and the second input. Weights' gradients add up."""
    x = x.clone().requires_grad_()
    first = _mlp(x, *weights[:4])
    middle = x + first
    middle.retain_grad()
    second = _mlp(middle, *weights[4:])
    (middle + second).backward(grad)
    grads = [_gradient(x), _gradient(middle)]
    return {"outputs": [first.detach(), second.detach()], "grads": grads, "middle": middle.detach()}


def _gradient(x: Tensor) -> Tensor:
    assert x.grad is not None
    return x.grad


def _of_one_rank(x: Tensor, whole: Sequence[Tensor], own: slice, grad: Tensor) -> Tensor:
    """A rank's gradient of the input without the other ranks' parts."""
    x = x.clone().requires_grad_()
    up, up_bias, down, down_bias = whole
    (x + _mlp(x, up[:, own], up_bias[own], down[own], down_bias)).backward(grad)
    return _gradient(x)


# ---- attention ----

Sizes = tuple[int, int, int]  # ranks, heads of queries, heads of keys and values


@exercise(
    "Attention on n ranks",
    hints=[
        "Which query heads has rank r of n? Each head of keys and values serves num_heads / num_kv_heads consecutive "
        "query heads: which one does the first query head of a rank use, and which one the last?",
        "f at x and g at the output, as in the MLP. If n is larger than num_kv_heads, n / num_kv_heads consecutive "
        "ranks have the same head: sum the gradient of the *weights* key and value over these, in backward.",
        "`with_gradient(take('key', kv_heads), same, summed)`, where `summed` copies the gradient and calls "
        "`dist.all_reduce(total, group=group)`; the same for the value. The gradient of x is summed over all ranks.",
    ],
)
def tensor_attention(expect: Expect, tensor_attention: Callable[..., Any]) -> None:
    not_from_lablib(tensor_attention, allowed=HELPERS)
    draw = expect.draw
    sizes = [(4, 8, 2), (1, 4, 2), (3, 6, 1), (2, 8, 4), (4, 4, 4), (8, 8, 2)]
    for ranks, heads, kv_heads in [(2, 4, 4), *draw.shuffled(sizes), (6, 12, 3)]:
        expect.measured.clear()  # the report shows the last sizes
        _expect_attention(expect, tensor_attention, (ranks, heads, kv_heads))
    _refuse_dtensor(tensor_attention)


def _attention(x: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, num_heads: int) -> Tensor:
    """On one device."""
    width = query.shape[1] // num_heads
    q, k, v = ((x @ one).view(len(x), -1, width).transpose(0, 1) for one in (query, key, value))
    k, v = (one.repeat_interleave(len(q) // len(one), 0) for one in (k, v))
    weights = (q @ k.transpose(1, 2) / width**0.5).masked_fill(
        torch.ones(len(x), len(x)).triu(1).bool().to(x.device), -torch.inf
    )
    return (weights.softmax(-1) @ v).transpose(0, 1).flatten(1) @ out


def _expect_attention(expect: Expect, answer: Callable[..., Any], sizes: Sizes) -> None:
    """Two texts, whose gradients of the weights add up."""
    ranks, num_heads, num_kv_heads = sizes
    draw, width, dtype = expect.draw, expect.draw.integer(2, 4), torch.float64
    columns = {"query": num_heads, "key": num_kv_heads, "value": num_kv_heads, "out": num_heads}
    d, tokens = num_heads * width, draw.integer(4, 7)
    whole = {name: draw.tensor((d, count * width), dtype) / d**0.5 for name, count in columns.items()}
    whole["out"] = whole["out"].t().contiguous()
    texts = [(draw.tensor((tokens, d), dtype), draw.tensor((tokens, d), dtype)) for _ in range(2)]
    copies, of_rank = max(1, ranks // num_kv_heads), num_heads // ranks
    shared_by = num_heads // num_kv_heads
    what = f" ({plural(ranks, 'ranks')}, {num_heads} heads of queries, {num_kv_heads} of keys"

    def heads_of(name: str, rank: int) -> range:
        own = range(rank * of_rank, (rank + 1) * of_rank)
        return own if name in ("query", "out") else range(own[0] // shared_by, own[-1] // shared_by + 1)

    def cut(tensor: Tensor, name: str, heads: range) -> Tensor:
        own = slice(heads[0] * width, (heads[-1] + 1) * width)
        return tensor[own] if name == "out" else tensor[:, own]

    def program(whole: dict[str, Tensor], texts: list[tuple[Tensor, Tensor]], answer: Callable[..., Any]) -> Any:
        rank = dist.get_rank()
        blocks = [list(range(i, i + copies)) for i in range(0, ranks, copies)]
        groups = {tuple(block): dist.new_group(block) for block in blocks}
        everybody = dist.new_group(list(range(ranks)))
        leaves: dict[str, Tensor] = {}

        def take(name: str, heads: Any) -> Tensor:
            if name not in whole:
                raise RuleBroken(f"take gets the name of a matrix{what})", repr(name), "query, key, value or out")
            wanted, rule = [*heads_of(name, rank)], f"a rank takes its own heads of {name}{what}, rank {rank})"
            if (taken := _numbers(heads, rule)) != wanted:
                raise RuleBroken(rule, f"heads {taken}", f"heads {wanted}")
            if name not in leaves:
                leaves[name] = cut(whole[name], name, heads_of(name, rank)).clone().requires_grad_()
            return leaves[name]

        def group_of(members: Any) -> Any:
            rule = f"a group has the ranks with the same heads of keys{what})"
            own = tuple(sorted(_numbers(members, rule)))
            if own == tuple(range(ranks)):
                return everybody
            if own not in groups or rank not in own:
                raise RuleBroken(rule, f"ranks {[*own]} on rank {rank}", f"{blocks[rank // copies]}")
            return groups[own]

        calls, grads = [], []
        for text, grad in texts:
            x = text.clone().requires_grad_()
            call = observe(answer, x, num_heads, num_kv_heads, take, group_of)
            _refuse_shape(call.value, x)
            if isinstance(call.value, Tensor):
                call.value.backward(grad.clone())
            calls.append(call)
            grads.append(x.grad)
        return calls, grads, {name: leaf.grad for name, leaf in leaves.items()}

    run = expect.launch(program, whole, texts, answer, ranks=ranks)
    weights = {name: one.clone().requires_grad_() for name, one in whole.items()}
    inputs = [text.clone().requires_grad_() for text, _ in texts]
    four = weights["query"], weights["key"], weights["value"], weights["out"]
    outputs = [_attention(x, *four, num_heads) for x in inputs]
    for output, (_, grad) in zip(outputs, texts, strict=True):
        output.backward(grad)
    with expect.grouped(f"the output and all gradients equal one device's, on every rank{what})", "right"):
        for rank, (calls, grads, of_weights) in enumerate(run.values):
            where = f"{what}, rank {rank})"
            for call, output in zip(calls, outputs, strict=True):
                saw = call.value.detach() if isinstance(call.value, Tensor) else call.value
                _expect_value(expect, "the output equals one device's", where, saw, output.detach(), ranks, 1e-9)
                changes_nothing(expect, [call])
            missing = [name for name in columns if name not in of_weights]
            expect.that(
                f"all four matrices are taken{where}", not missing, ", ".join(missing), "query, key, value, out"
            )
            for name in ("out", "query", "value", "key"):
                right = cut(_gradient(weights[name]), name, heads_of(name, rank))
                times = ranks if name in ("out", "query") else copies
                block = range(rank // copies * copies, (rank // copies + 1) * copies)
                if name in ("key", "value") and copies > 1:
                    _refuse_unsummed(name, where, [run.values[other][2].get(name) for other in block], right)
                _expect_gradient(expect, name, where, of_weights[name], right, None, 1e-9, times)
            for i, (saw, x) in enumerate(zip(grads, inputs, strict=True)):
                _expect_gradient(expect, f"x of text {i + 1}", where, saw, _gradient(x), None, 1e-9, ranks)
    _expect_sums(expect, run, 4, 4 * (ranks // copies) * (copies > 1), d * tokens, d * width, f" for two texts{what})")


def _numbers(value: Any, rule: str) -> list[int]:
    try:
        return [int(each) for each in value]
    except (TypeError, ValueError):
        raise RuleBroken(rule, short_repr(value), "a range or a list of whole numbers") from None


def _refuse_unsummed(name: str, where: str, grads: Sequence[Tensor | None], wanted: Tensor) -> None:
    """`grads`: of the copies of one head, on their ranks. A missing sum has a separate message."""
    same = [grad for grad in grads if grad is not None and grad.shape == wanted.shape]
    if len(same) < len(grads) or torch.allclose(same[0], same[1]):  # equal ones are a mean
        return
    if torch.allclose(sum(same[1:], same[0]), wanted, rtol=1e-5, atol=1e-12):
        rule = f"the gradient of {name} equals one device's{where}"
        raise RuleBroken(rule, "only the part of this rank's query heads", "the sum over the ranks with the same head")


def _expect_sums(expect: Expect, run: Run, of_all: int, of_some: int, numbers: int, weights: int, where: str) -> None:
    """All-reduces of `numbers` on all ranks, and of `weights` on the ranks of a head. One rank alone sends nothing."""
    sums = [one for one in run.traffic.transfers if len(one.ranks) > 1]
    calls = Counter(KINDS.get(one.name, one.name) for one in sums)
    saw = ", ".join(f"{count} {name}" for name, count in sorted(calls.items())) or "none"
    few_enough = set(calls) <= {"all-reduce"} and calls["all-reduce"] <= of_all + of_some
    rule = f"collectives of forward and backward{where}"
    expect.that(rule, few_enough, saw=saw, expected=f"at most {of_all + of_some} all-reduce")
    each = [sum(one.tensor_bytes for one in sums if rank in one.ranks) for rank in range(run.ranks)]
    most = 8.0 * (of_all * numbers + 4 * (of_some > 0) * weights) if run.ranks > 1 else 0.0  # float64
    expect.budget(f"bytes that a rank sums, forward and backward{where}", max(each), most, "B", at_least=most)


# ---- sequence parallel ----


@exercise(
    "A norm and an MLP, on cut tokens",
    hints=[
        "f' is an all-gather, and its gradient a sum, of which each rank needs its own tokens. g' is the reverse.",
        "gain and down_bias are used only on this rank's tokens, so each rank has a part of their gradient. Which of f "
        "and "
        "g, applied to the weight, adds the parts up?",
        "gain and down_bias go through with_gradient(..., same, all_reduced); the norm's result through "
        "with_gradient(..., gathered, scattered); hidden @ down through with_gradient(..., scattered, gathered).",
    ],
)
def sequence_mlp(expect: Expect, sequence_mlp: Callable[..., Any]) -> None:
    not_from_lablib(sequence_mlp, allowed=HELPERS)
    draw = expect.draw
    for ranks, dtype in [(draw.integer(3, 5), torch.float64), (1, torch.float64), (draw.choice([2, 4]), torch.float32)]:
        expect.measured.clear()
        _expect_sequence(expect, sequence_mlp, ranks, dtype)
    _refuse_dtensor(sequence_mlp)


def _library_sequence(x: Tensor, gain: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    normed = F.rms_norm(x, x.shape[1:], TENSOR.enter(gain, None))
    shard = MLPShard(up.t(), up_bias, down.t(), down_bias)
    return _library_mlp(normed[None], shard, None, SEQUENCE)[0]


def _expect_sequence(expect: Expect, answer: Callable[..., Any], ranks: int, dtype: torch.dtype) -> None:
    """Two batches with gradients that add up."""
    draw, rtol = expect.draw, 1e-9 if dtype == torch.float64 else 1e-4
    per_rank, width, shares = draw.integer(9, 14), draw.integer(4, 9), _uneven(draw, ranks, 2, 5)
    ends = [sum(shares[: rank + 1]) for rank in range(ranks)]
    whole = _whole_mlp(draw, width, ends[-1], dtype)
    shape = (ranks * per_rank, width)
    batches = [(draw.tensor(shape, dtype), draw.tensor(shape, dtype)) for _ in range(2)]
    gain = 1 + 0.3 * draw.tensor((width,), dtype)

    def program(batches: list[tuple[Tensor, Tensor]], gain: Tensor, whole: list[Tensor], answer: Callable) -> Any:
        rank, calls = dist.get_rank(), []
        weights = [gain.clone().requires_grad_(), *_shards(whole, ends[rank] - shares[rank], ends[rank])]
        own = [[part.chunk(dist.get_world_size())[rank].clone() for part in batch] for batch in batches]
        for x, grad in own:
            calls.append(observe(answer, x.requires_grad_(), *weights))
            value = calls[-1].value
            if isinstance(value, Tensor) and value.shape == x.shape:
                (x + value).backward(grad)
        return calls, [x.grad for x, _ in own], [part.grad for part in weights]

    run = expect.launch(program, batches, gain, whole, answer, ranks=ranks)
    weights = [part.clone().requires_grad_() for part in (gain, *whole)]
    xs = [x.clone().requires_grad_() for x, _ in batches]
    ys = [_mlp(F.rms_norm(x, (width,), weights[0]), *weights[1:]) for x in xs]
    for x, y, (_, grad) in zip(xs, ys, batches, strict=True):
        (x + y).backward(grad)
    on = f" ({plural(ranks, 'ranks')}, {str(dtype).removeprefix('torch.')}"
    with expect.grouped(f"outputs and all gradients equal one device's, on every rank{on})", "right"):
        for rank, (calls, of_x, of_weights) in enumerate(run.values):
            where = f"{on}, rank {rank})"
            for call, y in zip(calls, ys, strict=True):
                if isinstance(call.value, Tensor) and call.value.shape == y.shape and ranks > 1:
                    saw = f"{len(y)} tokens, from all ranks"
                    raise RuleBroken(f"the output has this rank's tokens{where}", saw, f"{per_rank} tokens")
                rule, wanted_y = "the output is one device's, this rank's tokens", y.detach().chunk(ranks)[rank]
                _expect_bias_once(call.value, wanted_y, whole[3], ranks, where)
                _expect_value(expect, rule, where, call.value, wanted_y, ranks, rtol)
                changes_nothing(expect, [call])
            own = slice(ends[rank] - shares[rank], ends[rank])
            cuts: list[Any] = [..., (slice(None), own), own, own, ...]
            parts = torch.stack([grad.chunk(ranks)[rank].sum(0) for _, grad in batches]).sum(0)
            for i in (4, 1, 2, 3, 0):
                alone, wanted = parts if i == 4 else None, _gradient(weights[i])[cuts[i]]
                name = ("gain", *NAMES)[i]
                _expect_gradient(expect, name, where, of_weights[i], wanted, alone, rtol, ranks)
            for found, x in zip(of_x, xs, strict=True):
                _expect_gradient(expect, "x", where, found, _gradient(x).chunk(ranks)[rank], None, rtol, ranks)
    allowed = {"all-gather": 4, "reduce-scatter": 4, "all-reduce": 4}
    best = launch(program, batches, gain, whole, _library_sequence, ranks=ranks)
    _expect_calls(expect, run, best, allowed, f" for two batches{on})", least=0.9)
    if ranks > 1:
        peaks = [max(one.memory.peak_bytes(rank) for rank in range(ranks)) for one in (run, best)]
        rule = f"peak memory of a rank: the norm keeps only this rank's tokens{on})"
        expect.budget(rule, peaks[0], peaks[1] + batches[1][0].nbytes, "B")


# ---- exercise 3 ----


@exercise(
    "A loss of cut logits",
    hints=[
        "Send three numbers per token: the maximum, the sum of exp, and the right word's logit, which one rank has.",
        "Ranks that do not have the right word add 0. The sum over ranks is g: all-reduce in forward, nothing in "
        "backward.",
        "top = logits.detach().amax(1), all-reduced with MAX; total = g((logits - top).exp().sum(1)); target = g(this "
        "rank's shifted logit of the target, or 0); the loss is (total.log() - target).mean().",
    ],
)
def sharded_loss(expect: Expect, sharded_loss: Callable[..., Any]) -> None:
    not_from_lablib(sharded_loss, allowed=HELPERS)
    draw = expect.draw
    double, single = torch.float64, torch.float32
    cases = [
        (draw.integer(3, 5), double, "logits near 0", 1.0, 0.0),
        (1, double, "logits near 0", 1.0, 0.0),
        (draw.integer(2, 4), single, "large logits: exp would overflow", 20.0, 300.0),
        (draw.integer(2, 4), single, "very negative logits: exp would be 0", 20.0, -300.0),
        (draw.integer(2, 4), double, "one token", 1.0, 0.0),
        (draw.integer(2, 4), double, "one rank's logits are far larger, and one token's far smaller", 1.0, 1.0),
    ]
    for case in cases:
        expect.measured.clear()
        _expect_loss(expect, sharded_loss, *case)
    _refuse_dtensor(sharded_loss)


def _expect_loss(
    expect: Expect, answer: Callable, ranks: int, dtype: torch.dtype, kind: str, scale: float, offset: float
) -> None:
    """Two batches, one after the other."""
    draw, rtol = expect.draw, 1e-9 if dtype == torch.float64 else 1e-4
    shares = [share + 1 for share in _uneven(draw, ranks, 2, 4)]
    if ranks > 1:
        shares[draw.integer(0, ranks - 2)] = 1  # a rank with a single word
    ends = [sum(shares[: rank + 1]) for rank in range(ranks)]
    tokens = 1 if kind == "one token" else ends[-1] + draw.integer(3, 9)
    batches = [_batch_of_loss(draw, tokens, ends, dtype, kind, scale, offset) for _ in range(2)]

    def program(batches: list[tuple[Tensor, Tensor]], answer: Callable) -> list[Any]:
        rank, found = dist.get_rank(), []
        first = ends[rank] - shares[rank]
        for logits, targets in batches:
            own = logits[:, first : ends[rank]].clone().requires_grad_()
            call = observe(answer, own, targets.clone(), first)
            if isinstance(call.value, Tensor) and call.value.numel() == 1 and call.value.requires_grad:
                (3 * call.value).backward()
            value = call.value.detach().clone() if isinstance(call.value, Tensor) else call.value
            found.append((call, value, own.grad))
        return found

    run = expect.launch(program, batches, answer, ranks=ranks)
    on = f" ({plural(ranks, 'ranks')}, {kind}"
    with expect.grouped(f"loss and gradients equal one device's, on every rank{on})", "right"):
        for number, (logits, targets) in enumerate(batches):
            whole = logits.clone().requires_grad_()
            loss = F.cross_entropy(whole, targets)
            (3 * loss).backward()
            for rank, of_rank in enumerate(run.values):
                call, value, grad = of_rank[number]
                where = f"{on}, rank {rank}{', second batch' if number else ''})"
                rule = f"the loss is the mean over tokens, as on one device{where}"
                if value is None:
                    raise RuleBroken(rule, "None: is there a return?", "a tensor with one number")
                if not isinstance(value, Tensor) or value.numel() != 1:
                    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    raise RuleBroken(rule, f"{shape}", "a tensor with one number")
                if tokens > 1 and torch.allclose(value.double(), tokens * loss.double(), rtol=1e-4):
                    raise RuleBroken(rule, f"{tokens} times the mean: the sum over tokens", "the mean")
                expect.close(rule, float(value), float(loss.detach()), rtol=rtol, atol=rtol)
                wanted = _gradient(whole)[:, ends[rank] - shares[rank] : ends[rank]]
                _expect_gradient(expect, "logits", where, grad, wanted, None, rtol, ranks)
                changes_nothing(expect, [call])

    def reference(own: Tensor, targets: Tensor, first: int) -> Tensor:
        """The library's three sums only, in double precision: its chunks are not these uneven shares."""
        total = own.detach().sum(1, dtype=torch.float64)
        for _ in range(3):
            dist.all_reduce(total)
        return own.sum()

    best = launch(program, batches, reference, ranks=ranks)
    # A mean of the targets' logits is one number, and a maximum may be in any precision.
    _expect_calls(expect, run, best, {"all-reduce": 6}, f" for two batches{on})", least=0.2)


def _batch_of_loss(
    draw: Draw, tokens: int, ends: list[int], dtype: torch.dtype, kind: str, scale: float, offset: float
) -> tuple[Tensor, Tensor]:
    """Logits and targets: every word if there are enough tokens, including the first and the last of each shard."""
    words = ends[-1]
    logits = scale * draw.tensor((tokens, words), dtype) + offset
    if kind.startswith("one rank"):
        # exp overflows at 709: the mean of the ranks' maxima, rank 0's, or the maximum of all tokens do not prevent it.
        largest = draw.integer(1, len(ends) - 1)
        logits[:, ends[largest - 1] : ends[largest]] += 4000.0
        logits[draw.integer(0, tokens - 1)] -= 9000.0
    targets = draw.shuffled([i % words for i in range(max(tokens, words))])
    return logits, torch.tensor(targets[:tokens])


# ---- exercise 4 ----


@exercise(
    "The shard that one device would draw",
    hints=[
        "A generator gives its numbers in order. How does a rank get the numbers of its rows?",
        "Draw the whole matrix on every rank, from the same seed, and keep some rows: room = ceil(rows / n), from rank "
        "* room on. What would keep the whole matrix in memory?",
        "torch.Generator('cpu').manual_seed(seed), torch.randn(rows, columns, ...), then "
        "whole[rank * room : (rank + 1) * room].clone().",
    ],
)
def draw_shard(expect: Expect, draw_shard: Callable[[int, int, int], Any]) -> None:
    not_from_lablib(draw_shard)
    draw = expect.draw
    n = draw.integer(3, 5)
    cases = [(n, n * draw.integer(2, 9)), (n, n * draw.integer(2, 9) + draw.integer(1, n - 2)), (n + 1, 2), (1, 7)]
    for ranks, rows in [*cases, (2 * n, n + 1)]:
        expect.measured.clear()
        _expect_drawn(expect, draw_shard, ranks, rows)


def _expect_drawn(expect: Expect, answer: Callable, ranks: int, rows: int) -> None:
    draw = expect.draw
    columns, seed, outside = draw.integer(2, 9), draw.integer(1, 10**6), draw.integer(1, 10**6)

    def program(answer: Callable) -> Any:
        before = torch.get_rng_state()
        shards = [answer(rows, columns, one) for one in (seed, outside, seed)]  # another seed between two equal ones
        is_untouched = torch.equal(before, torch.get_rng_state())
        shard = shards[0]
        held = max((one.untyped_storage().nbytes() for one in shards if isinstance(one, Tensor)), default=0)
        shared = isinstance(shard, Tensor) and shard.numel() > 0 and shard.data_ptr() == shards[2].data_ptr()
        return shards, held, is_untouched, shared

    run = expect.launch(program, answer, ranks=ranks)
    best = launch(program, _drawn_shard, ranks=ranks)
    room, like = -(-rows // ranks), {"dtype": torch.float64, "device": "cpu"}
    wholes = [
        torch.randn(rows, columns, generator=torch.Generator("cpu").manual_seed(one), **like)
        for one in (seed, outside, seed)
    ]
    on = f" ({rows} rows, {plural(ranks, 'ranks')}"
    with expect.grouped(f"the shards together equal one device's matrix{on})", "equal"):
        for rank, value in enumerate(run.values):
            _expect_not_rank_0s(expect, value[0][0], run.values[0][0][0], wholes[0][rank * room :][:room], rank, on)
        for rank, (shards, held, is_untouched, shared) in enumerate(run.values):
            where = f"{on}, rank {rank})"
            for i, (shard, whole) in enumerate(zip(shards, wholes, strict=True)):
                wanted = whole[rank * room :][:room]
                if shard is None:
                    raise RuleBroken(f"the shard is returned{where}", "None: is there a return?", "a tensor")
                shape = tuple(shard.shape) if isinstance(shard, Tensor) else type(shard).__name__
                expect.equal(
                    f"a shard has ceil(rows / n) rows, the last ranks fewer{where}", shape, tuple(wanted.shape)
                )
                expect.equal(f"the shard is in float64{where}", str(shard.dtype), str(wanted.dtype))
                which = ("", ", drawn from another seed", ", drawn again")[i]
                expect.equal(f"the shard is this rank's rows of one device's matrix{which}{where}", shard, wanted)
            needed = 8 * columns * len(wholes[0][rank * room :][:room])
            rule = f"a shard does not keep the whole matrix in memory{where}"
            if shards[0].numel():
                expect.that(rule, held <= needed, saw=f"{held} bytes are held", expected=f"{needed} bytes")
            rule = f"torch's own generator stays as it was{where}"
            expect.that(rule, is_untouched, saw="it has been seeded, or drawn from", expected="as it was")
            rule = f"each call returns a separate tensor{where}"
            expect.that(rule, not shared, saw="two calls return the same memory", expected="two tensors")
            kept = [sum(one.memory.at(rank, one.timeline.makespan_s).values()) for one in (run, best)]
            rule = f"after three calls a rank keeps three shards, and nothing else{where}"
            expect.budget(rule, kept[0], kept[1] + HALF, "B")
    expect.budget(f"communications{on})", len(run.traffic), 0, "calls")


def _drawn_shard(rows: int, columns: int, seed: int) -> Tensor:
    """A reference for the memory that a rank keeps."""
    room, generator = -(-rows // dist.get_world_size()), torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    return whole[dist.get_rank() * room :][:room].clone()


def _expect_not_rank_0s(expect: Expect, shard: Any, first: Any, wanted: Tensor, rank: int, on: str) -> None:
    """Rank 0's rows on another rank have a separate message: the section is about this mistake."""
    if not rank or not isinstance(shard, Tensor) or not isinstance(first, Tensor) or shard.shape != first.shape:
        return
    if shard.numel() and not torch.equal(shard, wanted) and torch.equal(shard, first):
        rule = f"ranks draw different shards{on}, rank {rank})"
        raise RuleBroken(rule, "the same numbers as rank 0", "other rows")
