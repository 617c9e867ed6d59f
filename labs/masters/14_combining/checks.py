"""Checks of lab 14: combining them. Meshes, orders and gradients are random."""

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence, ValuesView
from itertools import permutations
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lablib.course import Expect, exercise
from lablib.course.checks.comparison import is_array, plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import NotAttempted, RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe, whole_numbers
from lablib.parallel import Mesh
from lablib.plan import Parallel, axis_by_axis, predict
from lablib.text.units import format_quantity, plural

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
    return [whole_numbers(f"a group is a list of ranks ({what})", each, "[0, 1]") for each in value]


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
    "The norm of the whole gradient",
    hints=[
        "If every rank adds up the squares of its own numbers, and all ranks' sums are added: how often is a number "
        "with three copies counted?",
        "Each rank divides a tensor's sum by the number of its copies, the product of the sizes of the axes that are "
        "not listed. Or only the ranks with coordinate 0 on all of those axes count it.",
        "`copies = math.prod(size for axis, size in mesh.sizes.items() if axis not in axes)`; add "
        "`gradient.double().square().sum() / copies` to one tensor, `dist.all_reduce` it, and take the root. A rank "
        "without gradients makes the call, too.",
    ],
)
def whole_norm(expect: Expect, whole_norm: Callable[..., Any]) -> None:
    not_from_lablib(whole_norm)
    for case in _norms(expect.draw):
        expect.measured.clear()
        _expect_norm(expect, whole_norm, *case)


Tensors = list[tuple[tuple[int, ...], tuple[str, ...], torch.dtype, float]]  # shape, axes, dtype, size of the numbers


def _norms(draw: Draw) -> Iterator[tuple[str, dict[str, int], Tensors]]:
    """The case in words, the mesh, the tensors. Sizes of a mesh differ, so that a mistake in an axis is seen."""

    def some(*axes: str, dtype: torch.dtype = torch.float64, size: float = 1.0) -> Any:
        return (draw.integer(2, 4), draw.integer(1, 3)), axes, dtype, size

    yield "one rank", {"data": 1}, [some(), some("data")]
    yield "parts on two tensor ranks", {"tensor": 2}, [some("tensor"), some("tensor")]
    yield "copies on three data ranks", {"data": 3}, [some()]
    yield "parts, and copies on tensor ranks", {"tensor": 3}, [some("tensor"), some()]
    yield "parts on tensor ranks, copies on data ranks", {"data": 2, "tensor": 3}, [some("tensor")]
    yield "shards on data ranks, copies on tensor ranks", {"data": 2, "tensor": 3}, [some("data")]
    three = {"data": 2, "pipeline": 3, "tensor": 2}
    yield "three axes", three, [some("pipeline", "tensor"), some("pipeline"), some("pipeline", "tensor")]
    other = draw.shuffled([axis for axis in AXES if axis not in three])[0]
    yield "copies on an axis of another name", {other: 2, "tensor": 2}, [some("tensor")]
    for number in range(3):
        axes = draw.shuffled(list(AXES))[:3]
        sizes = {axis: draw.integer(1, 3) for axis in axes}
        kinds = [tuple(draw.shuffled(axes)[: draw.integer(0, 3)]) for _ in range(draw.integer(1, 4))]
        yield f"drawn, number {number + 1}", sizes, [some(*kind) for kind in kinds]
    yield "no gradients on any rank but those of stage 0", {"pipeline": 3, "tensor": 2}, [some("tensor"), some()]
    yield (
        "gradients of FP16 with squares above its range",
        {"data": 2, "tensor": 2},
        [some("tensor", dtype=torch.float16, size=300.0)],
    )
    small = ((400, 5), ("tensor",), torch.float16, 1e-4)
    yield "gradients of FP16 with squares below its range", {"tensor": 2}, [small]


def _expect_norm(
    expect: Expect, answer: Callable[..., Any], kind: str, sizes: Mapping[str, int], tensors: Tensors
) -> None:
    mesh, is_staged = Mesh(**sizes), kind.startswith("no gradients")
    on = f"{kind}; {_words(sizes)}"
    parts: list[dict[tuple[int, ...], Tensor]] = []  # coordinates on the tensor's axes -> its part
    total = 0.0
    for shape, axes, dtype, size in tensors:
        found: dict[tuple[int, ...], Tensor] = {}
        for rank in range(mesh.num_ranks):
            place = mesh.coordinates(rank)
            if (key := tuple(place[axis] for axis in axes)) not in found:
                found[key] = (size * expect.draw.tensor(shape, torch.float64)).to(dtype)
                total += float(found[key].double().square().sum())
        parts.append(found)

    def program() -> Observed:
        place = mesh.coordinates(dist.get_rank())
        given = [
            (found[tuple(place[axis] for axis in axes)].clone(), list(axes) + ["pipeline"] * is_staged)
            for (_, axes, _, _), found in zip(tensors, parts, strict=True)
            if not (is_staged and place["pipeline"])
        ]
        return observe(answer, given, mesh)

    run = expect.launch(program, ranks=mesh.num_ranks)
    changes_nothing(expect, run)
    values = [_plain_norm(call.value, on) for call in run.values]
    rule = f"the norm is the same on every rank ({on})"
    expect.that(rule, len(set(values)) == 1, saw=f"{len(set(values))} different norms", expected="one")
    expect.close(f"each number of the whole gradient counts once ({on})", values[0], total**0.5, rtol=1e-5)
    calls = max(sum(rank in one.ranks for one in run.traffic.transfers) for rank in range(mesh.num_ranks))
    expect.budget(f"calls of a rank ({on})", calls, 2)
    sent = max(run.traffic.sent_bytes(rank) for rank in range(mesh.num_ranks))
    expect.budget(f"bytes that a rank sends: a sum or two, and no gradients ({on})", sent, 64, "B")


def _plain_norm(value: Any, on: str) -> float:
    if value is Ellipsis:
        raise NotAttempted
    number = plain_number(value)
    if not isinstance(number, int | float):
        raise RuleBroken(f"a number is returned ({on})", short_repr(value), "the root of the sum of squares")
    return float(number)


# ---- exercise 3 ----


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


# ---- exercise 4 ----

_SETTINGS = ("micro_batch", "recompute", "schedule")
_FASTER = 0.97  # of the last row's step


@exercise(
    "A faster plan",
    hints=[
        "What grows with the micro-batch: the rate of the products, the memory, or the bubble? All three; the rows of "
        "the table all have micro-batches of one sequence.",
        "A larger micro-batch needs memory; more stages free some. And a bubble is smaller with more chunks.",
        "Keep 8 tensor ranks, ZeRO-1 and the schedule interleaved. Try 4 and 8 stages with more than 2 chunks, and "
        "double the micro-batch as long as the plan fits.",
    ],
)
def faster_plan(expect: Expect, faster_plan: Callable[[], tuple[Parallel, dict[str, Any]]]) -> None:
    not_from_lablib(faster_plan, allowed=("predict", "Parallel"))
    value = faster_plan()
    if value is Ellipsis:
        raise NotAttempted
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[0], Parallel):
        raise RuleBroken("axes and settings are returned", short_repr(value), "Parallel(...), {...}")
    axes, settings = value
    if not isinstance(settings, Mapping):
        raise RuleBroken("the settings are a dict", short_repr(settings), '{"micro_batch": 1}')
    others = [name for name in settings if name not in _SETTINGS]
    expect.that("only the plan changes", not others, saw=f"{others}", expected=f"some of {', '.join(_SETTINGS)}")
    try:
        plan = predict("gpt3-175b", "dgx-a100", axes, 1536, **settings)
    except (TypeError, ValueError) as error:
        raise RuleBroken("the planner accepts the plan", str(error), "such axes and settings") from None
    expect.that("the plan is for 512 GPUs", plan.num_gpus == 512, saw=f"{axes}: {plan.num_gpus} GPUs", expected="512")
    lossy = axes.zero_plus_plus
    expect.that("messages keep their precision", not lossy, saw=f"ZeRO++ {lossy}", expected="none in 8 or 4 bits")
    expect.that(
        "it fits into the memory of a GPU",
        plan.fits,
        saw=f"{format_quantity(plan.peak_memory_bytes, 'B')} of {format_quantity(plan.memory_limit_bytes, 'B')}",
        expected="less memory: more stages, a smaller micro-batch, or recomputation",
    )
    last_s = axis_by_axis("gpt3-175b", "dgx-a100", batch=1536, gpus=512)[-1].step_time_s
    expect.budget(
        f"seconds of a step: at most {_FASTER:.0%} of the last row's", plan.step_time_s, _FASTER * last_s, "s"
    )
