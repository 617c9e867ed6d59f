"""Checks of lab 14: combining them. Meshes, orders and routings are random; sums and gradients equal one device's."""

import operator
from collections.abc import Callable, KeysView, Mapping, Sequence, ValuesView
from itertools import permutations
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lablib import Run
from lablib.course import Expect, exercise
from lablib.course.checks.comparison import is_array
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed
from lablib.course.checks.rules import calls_only, changes_nothing, not_from_lablib, observe
from lablib.parallel import Mesh
from lablib.text.units import plural

HALF = 0.5  # of a byte: budgets of bytes that are exact
AXES = ("data", "context", "pipeline", "tensor", "expert", "replica")
EXACT = 1e-9


def _sizes(draw: Draw, sizes: Sequence[int]) -> dict[str, int]:
    """Axes in any order, by any names."""
    return dict(zip(draw.shuffled(AXES)[: len(sizes)], draw.shuffled(sizes), strict=True))


def _words(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items())


def _stride(sizes: Mapping[str, int], axis: str) -> int:
    axes = list(sizes)
    return prod(sizes[name] for name in axes[axes.index(axis) + 1 :])


def _whole_numbers(rule: str, value: Any, example: str) -> list[int]:
    value = value.tolist() if is_array(value) else value
    try:
        return [int(operator.index(each)) for each in value]  # a subclass of int may equal everything
    except TypeError:
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(rule, said, example) from None


# ---- exercise 1 ----


@exercise(
    "The groups of a mesh",
    hints=[
        "How far apart are two numbers such as 352 that differ by one in the hundreds? What corresponds to the hundred "
        "in a mesh?",
        "The distance of neighbours along an axis is the product of the sizes of all later axes. A group begins at a "
        "rank with coordinate 0 on the axis.",
        "stride = product of the sizes behind the axis; rank r begins a group if r // stride % size == 0; its group is "
        "r, r + stride, r + 2 stride, ...",
    ],
)
def groups(expect: Expect, groups: Callable[[dict[str, int], str], list[list[int]]]) -> None:
    not_from_lablib(groups, refused=(Mesh, DeviceMesh, init_device_mesh))
    draw = expect.draw
    meshes = [
        [draw.integer(2, 5)],
        [2, 3],
        [2, 3, 4],
        [1, 3, 2],
        [2, 2, 2, 3],
        [3, 1, 2, 2, 5, 2],
        [draw.integer(9, 13), 2, 13, 2],
    ]
    drawn = [_sizes(draw, each) for each in meshes]
    drawn.append(dict(reversed(drawn[2].items())))  # the same axes in another order
    asked = [(sizes, axis) for sizes in drawn for axis in draw.shuffled(list(sizes))]
    found, returned = [], []
    for sizes, axis in asked:
        call = observe(groups, dict(sizes), axis)
        changes_nothing(expect, [call])
        found.append(_groups(expect, call.value, sizes, axis))
        returned.append(call.value)
    mistakes = [
        name for name, gives in ORDERS.items() if all(_matches(*each, gives) for each in zip(found, asked, strict=True))
    ]
    _expect_kept(returned, found)
    for each, (sizes, axis) in zip(found, asked, strict=True):
        expect.measured.clear()  # the report shows the last mesh
        with expect.grouped(f"the groups are right ({_words(sizes)}, along {axis})", f"{len(each)} groups"):
            mistake = f"; all your groups belong to {mistakes[0]}" if mistakes else ""
            _expect_groups(expect, each, sizes, axis, mistake)


def _expect_kept(returned: Sequence[Any], found: Sequence[Sequence[Any]]) -> None:
    """Returned lists are unchanged: later calls did not write to them."""
    for value, was in zip(returned, found, strict=True):
        if isinstance(value, list) and all(isinstance(each, list | str) for each in value) and value != list(was):
            rule = "a result does not change when the next call is made"
            raise RuleBroken(rule, f"{short_repr(was)} became {short_repr(value)}", "a new list from each call")


# Mistakes: another order of the axes. The units belong to the given axis, to the first, ...
ORDERS: dict[str, Callable[[dict[str, int], str], list[str]]] = {
    "a mesh in which the first axis has the units": lambda sizes, axis: list(sizes)[::-1],
    "a mesh in which the given axis has the units": lambda sizes, axis: (
        [each for each in sizes if each != axis] + [axis]
    ),
    "a mesh with axes sorted by name": lambda sizes, axis: sorted(sizes),
    "a mesh with axes sorted by size": lambda sizes, axis: sorted(sizes, key=lambda each: sizes[each]),
}


def _matches(found: list[list[int]], asked: tuple[dict[str, int], str], gives: Callable[..., list[str]]) -> bool:
    sizes, axis = asked
    other = {each: sizes[each] for each in gives(sizes, axis)}
    return sorted(map(sorted, found)) == _right_groups(other, axis)


def _right_groups(sizes: dict[str, int], axis: str) -> list[list[int]]:
    stride, size = _stride(sizes, axis), sizes[axis]
    firsts = [rank for rank in range(prod(sizes.values())) if rank // stride % size == 0]
    return sorted([[first + stride * i for i in range(size)] for first in firsts])


def _groups(expect: Expect, value: Any, sizes: dict[str, int], axis: str) -> list[list[int]]:
    """The returned groups, as lists of whole numbers."""
    what = f"{_words(sizes)}, along {axis}"
    expect.equal("groups are returned", value is ..., False)
    value = value.tolist() if is_array(value) else value
    if not isinstance(value, list | tuple | ValuesView):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(f"a list of lists of ranks is returned ({what})", said, "[[0, 1], [2, 3]]")
    return [_whole_numbers(f"a group is a list of ranks ({what})", each, "[0, 1]") for each in value]


def _expect_groups(expect: Expect, found: list[list[int]], sizes: dict[str, int], axis: str, mistake: str) -> None:
    what = f"{_words(sizes)}, along {axis}"
    expect.that(
        f"a group has as many ranks as its axis ({what})",
        all(len(group) == sizes[axis] for group in found),
        saw=found,
        expected=f"{plural(sizes[axis], 'ranks')} in each",
    )
    members, num_ranks = sorted(rank for group in found for rank in group), prod(sizes.values())
    rule = f"every rank is in one group ({what})"
    expect.that(rule, members == list(range(num_ranks)), found, f"each of 0 to {num_ranks - 1} once")
    right = _right_groups(sizes, axis)
    for group in found:
        rule = f"the ranks of a group differ only in their {axis} coordinate ({what})"
        wanted = f"ranks {_stride(sizes, axis)} apart, from {axis} coordinate 0 on"
        expect.that(rule, sorted(group) in right, f"{short_repr(group)}{mistake}", wanted)
        expect.that(f"the ranks of a group ascend ({what})", group == sorted(group), group, sorted(group))


# ---- exercise 2 ----


@exercise(
    "The order of the axes",
    hints=[
        "There are few orders: try them all. How many bytes does one cost?",
        "For one order: for each axis and each of its groups, look at each rank and the next one. Are they on the same "
        "node? Rank r is on node r // per_node.",
        "Mesh(**{axis: sizes[axis] for axis in order}).groups(axis) has the groups; the rank after the last is the "
        "first. Add sent[axis] for each pair on two nodes, and take min(permutations(sizes), key=...).",
    ],
)
def best_order(expect: Expect, best_order: Callable[[dict[str, int], dict[str, float], int], tuple[str, ...]]) -> None:
    not_from_lablib(best_order, allowed=("Mesh",))
    cases, orders, returned = _orders(expect.draw), [], []
    for _, sizes, sent, per_node in cases:
        call = observe(best_order, dict(sizes), dict(sent), per_node)
        changes_nothing(expect, [call])
        orders.append(_order(expect, call.value, sizes))
        returned.append(call.value)
    _expect_kept(returned, orders)
    for order, (name, sizes, sent, per_node) in zip(orders, cases, strict=True):
        costs = {each: _crossing(each, sizes, sent, per_node) for each in permutations(sizes)}
        what, least = f"{_words(sizes)}, nodes of {per_node}, {name}", min(costs.values())
        if costs[order] > least * (1 + EXACT) and (mistake := _mistake(orders, cases)):
            saw = f"{', '.join(order)} with {costs[order]:.4g} B; all your orders follow a rule: {mistake}"
            raise RuleBroken(f"the fewest bytes cross between nodes ({what})", saw, f"{least:.4g} B")
        expect.measured.clear()
        expect.budget(f"bytes that cross between nodes ({what})", costs[order], least, "B")


def _mistake(orders: Sequence[tuple[str, ...]], cases: Sequence[tuple[Any, ...]]) -> str:
    """The known mistake that gives all of these orders, or ""."""
    for name, gives in MISTAKES.items():
        if all(gives(order, *case[1:]) for order, case in zip(orders, cases, strict=True)):
            return name
    return ""


def _least(cost: Callable[..., float]) -> Callable[..., bool]:
    """Whether `cost(order, sizes, sent, per_node)` is the least of all orders."""

    def is_least(order: Sequence[str], sizes: Mapping[str, int], *rest: Any) -> bool:
        costs = {each: cost(each, sizes, *rest) for each in permutations(sizes)}
        return costs[tuple(order)] <= min(costs.values()) + EXACT * max(map(abs, costs.values()))

    return is_least


def _sorted(key: Callable[[str, Any, Any], float]) -> Callable[..., bool]:
    return lambda order, sizes, sent, _: list(order) == sorted(sizes, key=lambda axis: key(axis, sizes, sent))


def _pairs(order: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[str, int, int, bool]]:
    """(axis, rank, the next rank of its group, whether that is the first again) for each rank and axis."""
    mesh, found = {axis: sizes[axis] for axis in order}, []
    strides = [(axis, size, _stride(mesh, axis)) for axis, size in mesh.items()]
    for rank in range(prod(sizes.values())):
        for axis, size, stride in strides:
            at = rank // stride % size
            found.append((axis, rank, rank + ((at + 1) % size - at) * stride, at == size - 1))
    return found


def _crossing(order: Sequence[str], sizes: Mapping[str, int], sent: Mapping[str, float], per_node: int) -> float:
    """Bytes of all ranks that go to another node, each rank sending to the next of its group."""
    return sum(sent[axis] for axis, a, b, _ in _pairs(order, sizes) if a // per_node != b // per_node)


def _as_open_chains(order: Sequence[str], sizes: Mapping[str, int], sent: Mapping[str, float], per_node: int) -> float:
    return sum(sent[axis] for axis, a, b, last in _pairs(order, sizes) if not last and a // per_node != b // per_node)


def _whole_groups(order: Sequence[str], sizes: Mapping[str, int], sent: Mapping[str, float], per_node: int) -> float:
    mesh, total = {axis: sizes[axis] for axis in order}, 0.0
    for axis, size in mesh.items():
        for first in (rank for rank in range(prod(sizes.values())) if rank // _stride(mesh, axis) % size == 0):
            nodes = {(first + i * _stride(mesh, axis)) // per_node for i in range(size)}
            total += sent[axis] * size * (len(nodes) > 1)
    return total


def _last_node_left_out(
    order: Sequence[str], sizes: Mapping[str, int], sent: Mapping[str, float], per_node: int
) -> float:
    full = prod(sizes.values()) // per_node * per_node
    pairs = _pairs(order, sizes)
    return sum(sent[x] for x, a, b, _ in pairs if max(a, b) < full and a // per_node != b // per_node)


def _of_node_0(order: Sequence[str], sizes: Mapping[str, int], sent: Mapping[str, float], per_node: int) -> float:
    return sum(sent[axis] for axis, a, b, _ in _pairs(order, sizes) if a // per_node == 0 != b // per_node)


def _of_rank_0(order: Sequence[str], sizes: Mapping[str, int], sent: Mapping[str, float], per_node: int) -> float:
    mesh = {axis: sizes[axis] for axis in order}
    own = {axis: {i * _stride(mesh, axis) for i in range(size)} for axis, size in mesh.items()}
    return sum(sent[x] for x, a, b, _ in _pairs(order, sizes) if a in own[x] and a // per_node != b // per_node)


# Mistakes, by the orders that they give in all cases.
MISTAKES: dict[str, Callable[..., bool]] = {
    "the axis that sends most goes last": _sorted(lambda axis, sizes, sent: sent[axis]),
    "the axis that sends most goes first": _sorted(lambda axis, sizes, sent: -sent[axis]),
    "the longest axis goes last": _sorted(lambda axis, sizes, sent: sizes[axis]),
    "the axes keep their order": lambda order, sizes, *_: list(order) == list(sizes),
    "all bytes of a group that leaves its node are counted": _least(_whole_groups),
    "the last rank of a group sends nothing": _least(_as_open_chains),
    "only the groups of rank 0 are counted": _least(_of_rank_0),
    "only bytes sent by node 0 are counted": _least(_of_node_0),
    "a last node that is not full is left out": _least(_last_node_left_out),
    "the most bytes, not the fewest": _least(lambda *case: -_crossing(*case)),
    "nodes have eight ranks": _least(lambda order, sizes, sent, _: _crossing(order, sizes, sent, 8)),
}


def _telling(
    draw: Draw, names: Sequence[str], options: Sequence[int], nodes: Sequence[int], *mistakes: str
) -> tuple[dict[str, int], dict[str, float], int]:
    """A mesh, bytes and nodes for which these mistakes give no best order."""
    while True:
        sizes = {axis: draw.choice(options) for axis in names}
        sent, per_node = {axis: draw.number(1.0, 20.0) for axis in names}, draw.choice(nodes)
        costs = {each: _crossing(each, sizes, sent, per_node) for each in permutations(sizes)}
        best = [each for each, cost in costs.items() if cost <= min(costs.values()) * (1 + EXACT)]
        if not any(MISTAKES[name](each, sizes, sent, per_node) for name in mistakes for each in best):
            return sizes, sent, per_node


def _orders(draw: Draw) -> list[tuple[str, dict[str, int], dict[str, float], int]]:
    """Meshes on which simple rules fail: most bytes last, largest axis last, none that fits."""
    names = draw.shuffled(AXES)
    a, b, c, d, e = names[:5]
    unit, most_last = draw.number(1.0, 5.0), "the axis that sends most goes last"

    def shuffled(sizes: dict[str, int]) -> dict[str, int]:
        return {axis: sizes[axis] for axis in draw.shuffled(list(sizes))}

    return [
        ("one axis sends most", shuffled({a: 2, b: 4, c: 2}), {a: 1.0 * unit, b: 50.0 * unit, c: 3.0 * unit}, 4),
        (
            "a long axis sends most, two short ones nearly as much",
            shuffled({a: 8, b: 2, c: 2}),
            {a: 10.0 * unit, b: 9.0 * unit, c: 8.0 * unit},
            8,
        ),
        (
            "an axis longer than a node",
            shuffled({a: 16, b: 2, c: 4}),
            {a: 12.0 * unit, b: 7.0 * unit, c: 6.0 * unit},
            8,
        ),
        (
            "an axis of one rank sends most",
            shuffled({a: 1, b: 4, c: 3}),
            {a: 99.0 * unit, b: 2.0 * unit, c: 3.0 * unit},
            4,
        ),
        (
            "sizes that are no multiples of a node",
            shuffled({a: 6, b: 2, c: 4}),
            {a: 11.0 * unit, b: 3.0 * unit, c: 6.0 * unit},
            4,
        ),
        ("one node", shuffled({a: 2, b: 2}), {a: unit, b: 2.0 * unit}, 8),
        (
            "the first mesh again, other bytes",
            shuffled({a: 2, b: 4, c: 2}),
            {a: 50.0 * unit, b: unit, c: 3.0 * unit},
            4,
        ),
        ("one axis", {AXES[-1]: 6}, {AXES[-1]: unit}, 4),
        ("four axes", *_telling(draw, (a, b, c, d), [2, 2, 3], [4, 6, 8], most_last)),
        (
            "five axes",
            shuffled({a: 8, b: 2, c: 2, d: 1, e: 1}),
            {a: 10.0 * unit, b: 9.0 * unit, c: 8.0 * unit, d: 30.0 * unit, e: unit},
            8,
        ),
        ("drawn", *_telling(draw, names[:3], [2, 3, 4, 6], [4, 6, 8], "only bytes sent by node 0 are counted")),
        ("drawn", *_telling(draw, names[:3], [2, 3, 5], [4, 8], "a last node that is not full is left out")),
    ]


def _order(expect: Expect, value: Any, sizes: dict[str, int]) -> tuple[str, ...]:
    expect.equal("an order is returned", value is ..., False)
    if not isinstance(value, list | tuple | KeysView) or not all(isinstance(each, str) for each in value):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken("a tuple of names is returned, the axis with the farthest ranks first", said, str((*sizes,)))
    order = tuple(str.__str__(each) for each in value)
    expect.that(f"each axis is named once ({_words(sizes)})", sorted(order) == sorted(sizes), order, sorted(sizes))
    return order


# ---- exercise 3 ----


@exercise(
    "Merge two attentions",
    hints=[
        "exp(l) is the sum of the weights of a part. What share of the whole sum is part 2's?",
        "w = exp(l2) / (exp(l1) + exp(l2)), and o = o1 + w (o2 - o1). With scores such as 1000, exp overflows: which "
        "function of l2 - l1 is w?",
        "w = torch.sigmoid(l2 - l1)[..., None]; l = torch.logaddexp(l1, l2).",
    ],
)
def merge(expect: Expect, merge: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(merge)
    draw = expect.draw
    far = draw.number(500.0, 2000.0)
    few, other = ([draw.integer(2, 5), draw.integer(2, 5)] for _ in range(2))
    f32, f64 = torch.float32, torch.float64
    lead = (draw.integer(1, 3), draw.integer(2, 3))  # batch, heads
    cases = [  # name, parts, levels of scores, shape before the last two, (queries, width), type
        ("two parts", [draw.integer(2, 6), draw.integer(7, 11)], 0.0, lead, None, f64),
        ("one key against many", [1, draw.integer(20, 30)], 0.0, lead, None, f64),
        ("large scores", few, 300.0, lead, None, f64),
        ("scores far below zero", other, -far, lead, None, f64),
        ("four parts, one after another", draw.integers(4, 1, 9), 0.0, (draw.integer(2, 5),), None, f64),
        ("one query of one number", few, 0.0, (1, 1), (1, 1), f64),
        ("as many queries as heads and numbers", few, 0.0, (2, 3), (3, 3), f64),
        ("five dimensions", other, 0.0, (2, 1, 3), None, f64),
        ("one part's scores far above the other's", few, None, lead, None, f64),
        ("float32", few, 0.0, lead, None, f32),
    ]
    for name, parts, level, lead, shape, dtype in cases:
        with expect.grouped(f"o and l equal attention over all keys ({name})", "right"):
            queries, width = shape or (draw.integer(3, 5), draw.integer(2, 6))
            _expect_merged(expect, merge, name, parts, level, (*lead, queries, width), dtype)
    with expect.grouped("if a part has no key (l = -inf), the other one is the result", "right"):
        for of_all in (False, True):
            _expect_unseen(expect, merge, of_all)


def _attention(q: Tensor, k: Tensor, v: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT + shift
    return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)


def _pair(rule: str, value: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(each, Tensor) for each in value):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(rule, said, "two tensors, o and l")
    return value[0], value[1]


def _expect_merged(
    expect: Expect,
    answer: Callable[..., Any],
    name: str,
    parts: list[int],
    level: float | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    draw, rtol = expect.draw, EXACT if dtype == torch.float64 else 1e-5
    *lead, queries, width = shape
    q = draw.tensor(shape, dtype)
    k, v = (draw.tensor((*lead, sum(parts), width), dtype) for _ in range(2))
    # A different level for each query's scores: exp(1200) is inf, and exp(-1200) is 0.
    levels = torch.linspace(-0.3, 1.0, queries)[:, None] * 4 * (level or 0.0)
    shift = levels.expand(queries, sum(parts)).to(dtype).clone()
    if level is None:  # one query's first part is far above the second, another's far below
        shift[:, : parts[0]] += torch.linspace(-3000.0, 3000.0, queries, dtype=dtype)[:, None]
    k = k * (10 if level else 1)
    wanted = _attention(q, k, v, shift)
    split = zip(k.split(parts, -2), v.split(parts, -2), shift.split(parts, -1), strict=True)
    pieces = [_attention(q, *each) for each in split]
    (o, lse), kept = pieces[0], []
    for piece in pieces[1:]:
        call = observe(answer, o.clone(), lse.clone(), piece[0].clone(), piece[1].clone())
        o, lse = _merged(expect, call, name)
        kept.append((o, o.clone(), lse, lse.clone()))
        _expect_shapes(expect, name, o, lse, *wanted)
    rule = f"a result does not change when the next call is made ({name})"
    same = all(torch.equal(each[i], each[i + 1]) for each in kept for i in (0, 2) if bool(each[i + 1].isfinite().all()))
    expect.that(rule, same, "it changed", "new tensors from each call")
    note = f"({name}, {'+'.join(map(str, parts))} keys)"
    expect.close(f"l is the log of the sum over all keys {note}", lse, wanted[1], rtol=rtol, atol=rtol)
    expect.close(f"o is attention over all keys {note}", o, wanted[0], rtol=rtol, atol=rtol)


def _merged(expect: Expect, call: Observed, name: str) -> tuple[Tensor, Tensor]:
    """The pair of a call that did not change its arguments."""
    expect.equal("a pair is returned", call.value is ..., False)
    changes_nothing(expect, [call])
    pair = _pair(f"o and l are returned ({name})", call.value)
    said = "the result shares its memory with an argument" if call.aliased else "new ones"
    expect.that(f"o and l are new tensors ({name})", not call.aliased, said, "separate memory: a copy, x.clone()")
    return pair


def _expect_shapes(expect: Expect, name: str, o: Tensor, lse: Tensor, wanted_o: Tensor, wanted_lse: Tensor) -> None:
    for what, saw, wanted in (("o", o, wanted_o), ("l", lse, wanted_lse)):
        expect.equal(f"{what} keeps its shape ({name})", tuple(saw.shape), tuple(wanted.shape))
        expect.equal(f"{what} keeps its type ({name})", str(saw.dtype), str(wanted.dtype))


def _expect_unseen(expect: Expect, answer: Callable[..., Any], of_all: bool) -> None:
    """Queries without a key in one part, as under a causal mask: l is -inf, and o is ignored."""
    draw, (rows, width) = expect.draw, (expect.draw.integer(3, 6), expect.draw.integer(2, 5))
    o = [draw.tensor((rows, width), torch.float64) for _ in range(2)]
    lse = [draw.tensor((rows,), torch.float64) for _ in range(2)]
    share = torch.sigmoid(lse[1] - lse[0])[:, None]
    both = o[0] + share * (o[1] - o[0]), torch.logaddexp(*lse)
    lost_rows = slice(0, rows if of_all else 1)
    for seen, unseen in ((0, 1), (1, 0)):
        lost, wanted = lse[unseen].clone(), [each.clone() for each in both]
        lost[lost_rows], wanted[0][lost_rows] = float("-inf"), o[seen][lost_rows]
        wanted[1][lost_rows] = lse[seen][lost_rows]
        args = [(o[0], lse[0]), (o[1], lse[1])]
        args[unseen] = (o[unseen], lost)
        call = observe(answer, *[x.clone() for each in args for x in each])
        value = _merged(expect, call, "a part with no key")
        rule = f"if part {unseen + 1} has no key (l = -inf), the other one is the result"
        expect.close(f"{rule}: o", value[0][lost_rows], wanted[0][lost_rows], rtol=EXACT)
        expect.close(f"{rule}: l", value[1][lost_rows], wanted[1][lost_rows], rtol=EXACT)
        rule = f"if both parts have keys, and another query none in part {unseen + 1}, both count"
        expect.close(f"{rule}: o", value[0], wanted[0], rtol=EXACT, atol=EXACT)
        expect.close(f"{rule}: l", value[1], wanted[1], rtol=EXACT, atol=EXACT)


# ---- exercise 4 ----


@exercise(
    "An order of equal work",
    hints=[
        "A late token attends to many keys, an early one to few. Which piece goes with the first one, so that the sum "
        "is the mean?",
        "Cut the sequence into 2n pieces of equal length. Rank r has the r-th from the front and the r-th from behind.",
        "Pieces r and 2n - 1 - r: list(range(r * c, (r + 1) * c)), and the other in the same way, with c = seq_len // "
        "(2 * n).",
    ],
)
def even_order(expect: Expect, even_order: Callable[[int, int, int], list[int]]) -> None:
    not_from_lablib(even_order)
    draw = expect.draw
    long = draw.choice([2, 4, 6])
    pieces = {
        1: 3,
        draw.integer(9, 12): draw.integer(2, 5),
        long: draw.integer(280, 320) // long,
        draw.choice([5, 7]): 1,
    }
    for n, length in pieces.items():
        expect.measured.clear()
        seq_len = 2 * n * length
        what = f"{seq_len} tokens on {plural(n, 'ranks')}"
        asked = draw.shuffled(range(n))

        def program(answer: Callable[..., Any], seq_len: int, asked: Sequence[int]) -> Any:
            return observe(answer, seq_len, len(asked), asked[dist.get_rank()]).value

        run = expect.launch(program, even_order, seq_len, asked, ranks=n)  # each rank with separate variables
        calls_only(expect, run)
        tokens: list[list[int]] = [[]] * n
        for rank, value in zip(asked, run.values, strict=True):
            expect.equal("positions are returned", value is ..., False)
            tokens[rank] = _whole_numbers(f"a list of positions is returned ({what})", value, "[0, 1, 6, 7]")
        listed = sorted(token for each in tokens for token in each)
        rule = f"every token is on one rank ({what})"
        expect.that(rule, listed == list(range(seq_len)), tokens, f"each of 0 to {seq_len - 1} once")
        ascending = [each == sorted(each) for each in tokens]
        expect.that(f"the positions of a rank ascend ({what})", all(ascending), tokens, "each list in order")
        counts = [len(each) for each in tokens]
        expect.that(f"every rank has equally many tokens ({what})", len(set(counts)) == 1, counts, seq_len // n)
        pairs = [sum(token + 1 for token in each) for each in tokens]
        rule = f"every rank has equally many pairs of a query and a key ({what})"
        expect.that(rule, len(set(pairs)) == 1, pairs, f"{sum(pairs) // n} on each")
        runs = [1 + sum(b != a + 1 for a, b in zip(each, each[1:], strict=False)) for each in tokens]
        rule = f"the tokens of a rank are at most two runs ({what})"
        expect.that(rule, max(runs) <= 2, f"{max(runs)} runs: {tokens[runs.index(max(runs))]}", "2 runs")


# ---- exercise 5 ----


@exercise(
    "Tokens to their experts, and back",
    hints=[
        "Each expert has `capacity` places for this rank's tokens. Which place does a token get? How many earlier "
        "tokens chose the same expert?",
        "place = expert * capacity + number of earlier tokens for it; a token with a number of capacity or more is "
        "left out. Put tokens into a tensor [num_experts * capacity, D] of zeros, exchange it, run, exchange back.",
        "earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]; kept = earlier < "
        "capacity; box[place[kept]] = x[kept]; at the end out[kept] = weight[kept, None] * back[place[kept]].",
    ],
)
def mixture(expect: Expect, mixture: Callable[..., Tensor]) -> None:
    not_from_lablib(mixture)
    draw = expect.draw
    for kind, ranks in (("any", 1), ("all to one expert", 5), ("room for all", 2), ("any", draw.integer(2, 4))):
        expect.measured.clear()
        _expect_mixture(expect, mixture, kind, ranks, torch.float64)
    _expect_mixture(expect, mixture, "float32", 2, torch.float32)


def _expect_mixture(expect: Expect, answer: Callable[..., Any], kind: str, ranks: int, dtype: torch.dtype) -> None:
    draw, local, width = expect.draw, expect.draw.integer(1, 3), expect.draw.integer(3, 6)
    exact = EXACT if dtype == torch.float64 else 1e-5
    experts = ranks * local
    counts = [draw.integer(5, 12) for _ in range(ranks)]  # tokens of each rank
    capacity = max(counts) if kind == "room for all" else draw.integer(1, 3)
    xs = [draw.tensor((count, width), dtype) for count in counts]
    weights = [0.5 + draw.tensor((count,), dtype).abs() for count in counts]
    one = draw.integer(0, experts - 1)
    drawn = [
        [one if kind in ("all to one expert", "room for all") else draw.integer(0, experts - 1) for _ in range(n)]
        for n in counts
    ]
    choices = [torch.tensor(each) for each in drawn]
    matrices = draw.tensor((experts, width, width), dtype)
    biases = draw.tensor((experts, width), dtype)  # the output for an empty place is not 0 either
    grads = [draw.tensor((count, width), dtype) for count in counts]

    def program(answer: Callable[..., Any]) -> Any:
        rank = dist.get_rank()
        own = slice(rank * local, (rank + 1) * local)
        here = torch.get_default_device()
        matrix, bias = (each[own].clone().to(here).requires_grad_() for each in (matrices, biases))
        x, weight = (each[rank].clone().to(here).requires_grad_() for each in (xs, weights))

        boxes_seen: list[Tensor] = []

        def run_experts(boxes: Tensor) -> Tensor:
            boxes_seen.append(boxes.detach().clone())
            if tuple(boxes.shape) != (ranks, local, capacity, width):
                raise RuleBroken(
                    "run_experts gets [ranks, experts of this rank, capacity, D]",
                    str(tuple(boxes.shape)),
                    str((ranks, local, capacity, width)),
                )
            return torch.tanh(torch.einsum("necd,edf->necf", boxes, matrix) + bias[None, :, None])

        call = observe(answer, x, choices[rank].clone().to(here), weight, run_experts, experts, capacity)
        if isinstance(call.value, Tensor) and call.value.shape == x.shape and call.value.requires_grad:
            (call.value * grads[rank].to(here)).sum().backward()
        return call, [each.grad for each in (x, weight, matrix, bias)], boxes_seen

    run = expect.launch(program, answer, ranks=ranks)
    leaves = [each.clone().requires_grad_() for each in (*xs, *weights)]
    matrix, bias = matrices.clone().requires_grad_(), biases.clone().requires_grad_()
    outputs, total = [], torch.zeros((), dtype=dtype)
    for rank in range(ranks):
        x, weight = leaves[rank], leaves[ranks + rank]
        kept = [drawn[rank][:i].count(expert) < capacity for i, expert in enumerate(drawn[rank])]
        of_each = [
            weight[i] * torch.tanh(x[i] @ matrix[expert] + bias[expert]) if kept[i] else 0 * x[i]
            for i, expert in enumerate(drawn[rank])
        ]
        outputs.append(torch.stack(of_each))
        total = total + (outputs[-1] * grads[rank]).sum()
    total.backward()
    on = f"({kind}: {plural(ranks, 'ranks')}, {plural(experts, 'experts')}, {plural(capacity, 'places')} each)"
    wanted_grads: list[Any] = [each.grad for each in (*leaves, matrix, bias)]
    with expect.grouped(f"outputs and gradients equal one device's {on}", "right"):
        for rank, (call, _, _) in enumerate(run.values):
            _expect_output(expect, call.value, outputs[rank].detach(), xs[rank], f"{on}, rank {rank}", exact)
        for rank, (_, _, boxes) in enumerate(run.values):
            expect.equal(f"run_experts is called once {on}, rank {rank}", len(boxes), 1)
            came = [[each.count(rank * local + e) for e in range(local)] for each in drawn]
            filled = (boxes[0] != 0).any(3).sum(2).tolist()
            wanted = [[min(count, capacity) for count in counts] for counts in came]
            said = f"{filled}; last places hold up to {short_repr(boxes[0][:, :, -1].abs().amax((0, 1)))}"
            rule = f"each token with a place fills one place, the others are 0 {on}, rank {rank}"
            expect.that(rule, filled == wanted, said, wanted)
        for rank, (call, found, _) in enumerate(run.values):
            where = f"{on}, rank {rank}"
            own = slice(rank * local, (rank + 1) * local)
            wanted = [wanted_grads[rank], wanted_grads[ranks + rank], wanted_grads[-2][own], wanted_grads[-1][own]]
            names = ("x", "weight", "the experts' matrices", "the experts' biases")
            for name, saw, want in zip(names, found, wanted, strict=True):
                rule = f"the gradient of {name} equals one device's {where}"
                if saw is None:
                    raise RuleBroken(rule, "None: it is not in autograd's graph", "a gradient")
                expect.close(rule, saw, want, rtol=exact, atol=exact)
            changes_nothing(expect, [call])
    _expect_sent(expect, run, dtype.itemsize * experts * capacity * width, on)


def _expect_output(expect: Expect, saw: Any, wanted: Tensor, x: Tensor, where: str, exact: float) -> None:
    if not isinstance(saw, Tensor):
        said = "None: is there a return?" if saw is None else short_repr(saw)
        expect.equal(f"a tensor is returned {where}", saw is ..., False)
        raise RuleBroken(f"a tensor is returned {where}", said, "[t, D]")
    expect.equal(f"the output has the shape of x {where}", tuple(saw.shape), tuple(x.shape))
    expect.equal(f"the output has the type of x {where}", str(saw.dtype), str(x.dtype))
    lost, found = wanted.abs().sum(1) == 0, saw.detach().cpu()
    if bool(lost.any()) and not bool((found[lost] == 0).all()):
        said = "other numbers"
        if torch.equal(found[lost], x[lost]):
            said = "the token, unchanged"
        elif bool((found[~lost] == 0).all(1).any()):
            said = f"numbers, and zeros for an earlier one: token {int((found == 0).all(1).nonzero()[0])} has a place"
        raise RuleBroken(f"a token without a place gets zeros {where}", said, "0 in all of its row")
    expect.close(f"the output equals one device's {where}", saw.detach(), wanted, rtol=exact, atol=exact)


def _expect_sent(expect: Expect, run: Run, box_bytes: int, on: str) -> None:
    """The boxes out and back, and their gradients: four exchanges."""
    other = sorted({t.name for t in run.traffic.transfers if not t.name.startswith(("all_to_all", "alltoall"))})
    expect.that(f"the only calls are all-to-alls {on}", not other, " and ".join(other) or "none", "all_to_all")
    expect.budget(f"exchanges, forward and backward {on}", len(run.traffic), 4, "calls")
    n = run.ranks
    sent = max(run.traffic.sent_bytes(rank) for rank in range(n))
    expect.budget(f"bytes a rank sends, forward and backward {on}", sent, 4 * box_bytes * (n - 1) / n + HALF, "B")


# ---- exercise 6 ----


@exercise(
    "A block for some tokens",
    hints=[
        "Which tokens: sort by score, take the first ones, and then put those in the order of the sequence.",
        "Only these go through the block, in a single call. Its output, times their scores, is added to x.",
        "chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values; x.index_add(0, "
        "chosen, scores[chosen, None] * block(x[chosen])).",
    ],
)
def some_tokens(expect: Expect, some_tokens: Callable[..., Tensor]) -> None:
    not_from_lablib(some_tokens)
    draw = expect.draw
    any_size = draw.integer(20, 40), draw.integer(10, 18)  # called twice: other scores, other tokens
    kinds = (
        "all tokens",
        "scores below zero",
        "equal scores",
        "one token",
        "scores that are close",
        "float32",
        "any",
        "any",
    )
    for kind in kinds:
        expect.measured.clear()
        dtype = torch.float32 if kind == "float32" else torch.float64
        length, width = draw.integer(6, 11), draw.integer(2, 5)
        capacity = {"all tokens": length, "one token": 1}.get(kind, draw.integer(2, length - 3))
        if kind == "any":
            length, capacity = any_size
        x, grad = (draw.tensor((length, width), dtype) for _ in range(2))
        scores = draw.tensor((length,), dtype) if kind == "any" else _scores_apart(draw, length, dtype)
        if kind == "equal scores":
            scores = torch.full((length,), 2.0, dtype=dtype)  # the last is larger, one is smaller; the rest are equal
            scores[-1], scores[draw.integer(0, length - 2)] = 3.0, 1.0
        if kind == "scores below zero":
            scores = -scores.abs() - 0.1
        if kind == "scores that are close":  # in fewer bits they would be equal
            scores = 1.0 + 1e-9 * torch.arange(length, dtype=dtype)
        _expect_some_tokens(expect, some_tokens, kind, x, scores, capacity, grad)


def _scores_apart(draw: Draw, length: int, dtype: torch.dtype) -> Tensor:
    """Scores that keep their order in fewer bits, or below zero: only the case of close scores tests fewer bits."""
    while True:
        scores = draw.tensor((length,), dtype)
        kinds = (scores, -scores.abs() - 0.1)
        if all(len(each.bfloat16().unique()) == length for each in kinds):
            return scores


def _expect_some_tokens(
    expect: Expect, answer: Callable[..., Any], kind: str, x: Tensor, scores: Tensor, capacity: int, grad: Tensor
) -> None:
    what = f"({kind}: {capacity} of {len(x)} tokens)"
    seen: list[int] = []
    matrix = expect.draw.tensor((x.shape[1], x.shape[1]), x.dtype)
    exact = EXACT if x.dtype == torch.float64 else 1e-5

    def block(x_CD: Tensor) -> Tensor:
        """Each token's output depends on those before it."""
        seen.append(len(x_CD))
        return torch.tanh(x_CD.cumsum(0) @ matrix)

    leaves = [x.clone().requires_grad_(), scores.clone().requires_grad_()]
    call = observe(answer, *leaves, block, capacity)
    saw = call.value
    if not isinstance(saw, Tensor):
        expect.equal(f"a tensor is returned {what}", saw is ..., False)
        raise RuleBroken(
            f"a tensor is returned {what}", "None: is there a return?" if saw is None else short_repr(saw), "[T, D]"
        )
    expect.equal(f"the block is called once, with `capacity` tokens {what}", seen, [capacity])
    changes_nothing(expect, [call])
    mine = [x.clone().requires_grad_(), scores.clone().requires_grad_()]
    order = sorted(range(len(x)), key=lambda i: (-float(scores[i]), i))[:capacity]
    chosen = sorted(order)
    added = block(torch.stack([mine[0][i] for i in chosen]))
    wanted = torch.stack(
        [mine[0][i] + (mine[1][i] * added[chosen.index(i)] if i in chosen else 0.0) for i in range(len(x))]
    )
    (wanted * grad).sum().backward()
    expect.equal(f"the output has the shape of x {what}", tuple(saw.shape), tuple(x.shape))
    expect.equal(f"the output has the type of x {what}", str(saw.dtype), str(x.dtype))
    passed = [i for i in range(len(x)) if i not in chosen]
    rule = f"a token that is not chosen passes unchanged {what}"
    wrong = [i for i in passed if not torch.equal(saw[i].detach(), x[i])]
    said = "all do"
    if wrong:
        zeros = not bool(saw[wrong[0]].any())
        said = f"tokens that {'became zeros' if zeros else 'have other numbers'}: {wrong}"
    expect.that(rule, not wrong, said, "x itself")
    expect.close(f"the output is x + score * block(x) {what}", saw.detach(), wanted.detach(), rtol=exact, atol=exact)
    if saw.requires_grad:
        (saw * grad).sum().backward()
    for name, own, one in zip(("x", "scores"), leaves, mine, strict=True):
        rule = f"the gradient of {name} is right {what}"
        if own.grad is None:
            raise RuleBroken(rule, "None: it is not in autograd's graph", "a gradient")
        expect.close(rule, own.grad, one.grad, rtol=exact, atol=exact)
