"""Wrong answers to lab 14: combining them, and right ones in an unusual style."""

_NORM = """
def whole_norm(gradients, mesh):
    total = torch.zeros(1, dtype={dtype})
    for gradient, axes in gradients:
        copies = {copies}
        {add}
    {reduce}
    return {returned}
"""


def _norm(
    dtype: str = "torch.float64",
    copies: str = "math.prod(size for axis, size in mesh.sizes.items() if axis not in axes)",
    add: str = "total += gradient.double().square().sum() / copies",
    reduce: str = "dist.all_reduce(total)",
    returned: str = "total.sqrt()",
) -> str:
    return _NORM.format(dtype=dtype, copies=copies, add=add, reduce=reduce, returned=returned)


def _plan(axes: str, settings: str) -> str:
    return f"def faster_plan():\n    return Parallel({axes}), {{{settings}}}\n"


WRONG_ANSWERS = {
    "groups": [
        (
            "uses the first axis for the units",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[: axes.index(axis)])
    first = [rank for rank in range(n) if rank // stride % sizes[axis] == 0]
    return [[rank + i * stride for i in range(sizes[axis])] for rank in first]
""",
            "first axis has the units",
        ),
        (
            "neighbours always",
            """
def groups(sizes, axis):
    n, size = math.prod(sizes.values()), sizes[axis]
    return [list(range(first, first + size)) for first in range(0, n, size)]
""",
            "the given axis has the units",
        ),
        (
            "counts the axis itself into the stride",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis):])
    first = [rank for rank in range(n) if rank // stride % sizes[axis] == 0]
    return [[rank + i * stride for i in range(sizes[axis])] for rank in first]
""",
            "every rank is in one group",
        ),
        (
            "the groups of all other axes together",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    return [[rank for rank in range(n) if rank // stride % sizes[axis] == i] for i in range(sizes[axis])]
""",
            "as many ranks as its axis",
        ),
        (
            "a group for each rank",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    firsts = [rank - rank // stride % sizes[axis] * stride for rank in range(n)]
    return [[first + i * stride for i in range(sizes[axis])] for first in firsts]
""",
            "every rank is in one group",
        ),
        (
            "the group of rank 0 only",
            """
def groups(sizes, axis):
    axes = list(sizes)
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    return [[i * stride for i in range(sizes[axis])]]
""",
            "every rank is in one group",
        ),
        (
            "right for two axes only",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    last = sizes[axes[-1]]
    if axis == axes[-1]:
        return [list(range(first, first + last)) for first in range(0, n, last)]
    return [list(range(first, n, last)) for first in range(last)]
""",
            "as many ranks as its axis",
        ),
        (
            "each group in reverse",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    first = [rank for rank in range(n) if rank // stride % sizes[axis] == 0]
    return [[rank + i * stride for i in range(sizes[axis])][::-1] for rank in first]
""",
            "ascend",
        ),
        (
            "the library's mesh",
            """
def groups(sizes, axis):
    return [list(group) for group in Mesh(**sizes).groups(axis)]
""",
            "your own code",
        ),
        (
            "sorts the axes by name",
            """
def groups(sizes, axis):
    axes, n = sorted(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    first = [rank for rank in range(n) if rank // stride % sizes[axis] == 0]
    return [[rank + i * stride for i in range(sizes[axis])] for rank in first]
""",
            "sorted by name",
        ),
        (
            "empties its argument",
            """
def groups(sizes, axis):
    n, stride = math.prod(sizes.values()), 1
    while True:
        last, size = sizes.popitem()
        if last == axis:
            break
        stride *= size
    first = [rank for rank in range(n) if rank // stride % size == 0]
    return [[rank + i * stride for i in range(size)] for rank in first]
""",
            "stays as it was",
        ),
        (
            "the class of a mesh that the notebook made",
            """
mesh = Mesh(data=2, pipeline=2, tensor=2)
def groups(sizes, axis):
    return [list(g) for g in type(mesh)(**sizes).groups(axis)]
""",
            "lablib.parallel.mesh.mesh.Mesh",
        ),
        (
            "torch's mesh",
            """
def groups(sizes, axis):
    from torch.distributed.device_mesh import DeviceMesh
    n = math.prod(sizes.values())
    found = set()
    box = torch.arange(n).view(*sizes.values())
    for rank in range(n):
        m = DeviceMesh("cpu", box, mesh_dim_names=tuple(sizes), _init_backend=False, _rank=rank)
        found.add(tuple(m[axis].mesh.tolist()))
    return [list(each) for each in found]
""",
            "DeviceMesh",
        ),
        (
            "right for 64 ranks at most",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    size = sizes[axis]
    first = [rank for rank in range(n) if rank // stride % size == 0]
    return [[f + i * stride for i in range(size)] for f in first if f < 64]
""",
            "every rank is in one group",
        ),
        (
            "numbers of eight bits",
            """
def groups(sizes, axis):
    box = torch.arange(math.prod(sizes.values())).to(torch.int8).view(*sizes.values())
    return box.movedim(list(sizes).index(axis), -1).reshape(-1, sizes[axis]).tolist()
""",
            "every rank is in one group",
        ),
        (
            "caches sizes without their order",
            """
SEEN = {}
def groups(sizes, axis):
    key = frozenset(sizes.items()), axis
    if key not in SEEN:
        axes, n = list(sizes), math.prod(sizes.values())
        stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
        size = sizes[axis]
        first = [rank for rank in range(n) if rank // stride % size == 0]
        SEEN[key] = [[f + i * stride for i in range(size)] for f in first]
    return SEEN[key]
""",
            "differ only in their",
        ),
        (
            "one list for all calls",
            """
FOUND = []
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    size = sizes[axis]
    first = [rank for rank in range(n) if rank // stride % size == 0]
    FOUND[:] = [[f + i * stride for i in range(size)] for f in first]
    return FOUND
""",
            "when the next call is made",
        ),
    ],
    "whole_norm": [
        ("this rank's gradients alone", _norm(reduce="pass"), ""),
        ("counts every copy", _norm(copies="1"), "counts once (copies on three data ranks"),
        (
            "divides by the axes that are listed",
            _norm(copies="math.prod(mesh.sizes[axis] for axis in axes)"),
            "counts once (parts on two tensor ranks",
        ),
        (
            "knows three axes alone",
            _norm(copies="math.prod(mesh.sizes.get(a, 1) for a in ('data', 'pipeline', 'tensor') if a not in axes)"),
            "counts once (copies on an axis of another name",
        ),
        (
            "forgets copies along tensor",
            _norm(copies="math.prod(s for a, s in mesh.sizes.items() if a not in axes and a != 'tensor')"),
            "counts once (parts, and copies on tensor ranks",
        ),
        (
            "takes all data ranks for copies",
            _norm(
                copies="mesh.sizes.get('data', 1) "
                "* math.prod(s for a, s in mesh.sizes.items() if a not in (*axes, 'data'))"
            ),
            "counts once (shards on data ranks",
        ),
        ("forgets the root", _norm(returned="total"), "counts once (one rank"),
        ("the sum of norms", _norm(add="total += gradient.double().norm() / copies", returned="total"), ""),
        ("the root before the sum", _norm(reduce="total.sqrt_(); dist.all_reduce(total)", returned="total"), ""),
        (
            "adds the numbers, not their squares",
            _norm(add="total += gradient.double().sum() / copies", returned="total.abs()"),
            "",
        ),
        (
            "squares in FP16",
            _norm(add="total += gradient.square().sum() / copies"),
            "counts once (gradients of FP16 with squares above its range",
        ),
        (
            "squares in place",
            _norm(add="gradient.square_(); total += gradient.double().sum() / copies"),
            "stays as it was",
        ),
        (
            "adds up the gradients themselves",
            """
def whole_norm(gradients, mesh):
    total = torch.zeros(1, dtype=torch.float64)
    for gradient, axes in gradients:
        copies = math.prod(size for axis, size in mesh.sizes.items() if axis not in axes)
        squares = gradient.double().square() / copies
        dist.all_reduce(squares)
        total += squares.sum()
    return total.sqrt()
""",
            "",
        ),
        (
            "only ranks with gradients call",
            """
def whole_norm(gradients, mesh):
    total = torch.zeros(1, dtype=torch.float64)
    for gradient, axes in gradients:
        copies = math.prod(size for axis, size in mesh.sizes.items() if axis not in axes)
        total += gradient.double().square().sum() / copies
    if gradients:
        dist.all_reduce(total)
    return total.sqrt()
""",
            "",
        ),
        (
            "one call for each tensor",
            """
def whole_norm(gradients, mesh):
    whole = torch.zeros(1, dtype=torch.float64)
    for number in range(10):
        total = torch.zeros(1, dtype=torch.float64)
        for gradient, axes in gradients[number : number + 1]:
            copies = math.prod(size for axis, size in mesh.sizes.items() if axis not in axes)
            total += gradient.double().square().sum() / copies
        dist.all_reduce(total)
        whole += total
    return whole.sqrt()
""",
            "",
        ),
        (
            "counts on rank 0 of each axis, listed or not",
            """
def whole_norm(gradients, mesh):
    total = torch.zeros(1, dtype=torch.float64)
    place = mesh.coordinates(dist.get_rank())
    for gradient, axes in gradients:
        if not any(place.values()):
            total += gradient.double().square().sum()
    dist.all_reduce(total)
    return total.sqrt()
""",
            "counts once (parts on two tensor ranks",
        ),
        ("returns nothing", _norm(returned="None"), "a number is returned"),
    ],
    "best_order": [
        (
            "the axis that sends most last",
            """
def best_order(sizes, sent, per_node):
    return tuple(sorted(sizes, key=lambda axis: sent[axis]))
""",
            "the axis that sends most goes last",
        ),
        (
            "the axis that sends most first",
            """
def best_order(sizes, sent, per_node):
    return tuple(sorted(sizes, key=lambda axis: -sent[axis]))
""",
            "the axis that sends most goes first",
        ),
        (
            "the longest axis last",
            """
def best_order(sizes, sent, per_node):
    return tuple(sorted(sizes, key=lambda axis: sizes[axis]))
""",
            "the longest axis goes last",
        ),
        (
            "the given order",
            """
def best_order(sizes, sent, per_node):
    return tuple(sizes)
""",
            "the axes keep their order",
        ),
        (
            "counts all bytes of a group that leaves its node",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis] * len(group)
            for axis in order for group in mesh.groups(axis)
            if len({rank // per_node for rank in group}) > 1
        )
    return min(itertools.permutations(sizes), key=cost)
""",
            "all bytes of a group that leaves its node",
        ),
        (
            "forgets that the last sends to the first",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for group in mesh.groups(axis) for a, b in zip(group, group[1:])
            if a // per_node != b // per_node
        )
    return min(itertools.permutations(sizes), key=cost)
""",
            "the last rank of a group sends nothing",
        ),
        (
            "the worst order",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for group in mesh.groups(axis) for a, b in zip(group, group[1:] + group[:1])
            if a // per_node != b // per_node
        )
    return max(itertools.permutations(sizes), key=cost)
""",
            "the most bytes, not the fewest",
        ),
        (
            "counts only rank 0's groups",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for group in [mesh.groups(axis)[0]] for a, b in zip(group, group[1:] + group[:1])
            if a // per_node != b // per_node
        )
    return min(itertools.permutations(sizes), key=cost)
""",
            "only the groups of rank 0",
        ),
        (
            "nodes of eight, always",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for group in mesh.groups(axis) for a, b in zip(group, group[1:] + group[:1])
            if a // 8 != b // 8
        )
    return min(itertools.permutations(sizes), key=cost)
""",
            "nodes have eight ranks",
        ),
        (
            "leaves out axes of one rank",
            """
def best_order(sizes, sent, per_node):
    sizes = {axis: size for axis, size in sizes.items() if size > 1}
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for group in mesh.groups(axis) for a, b in zip(group, group[1:] + group[:1])
            if a // per_node != b // per_node
        )
    return min(itertools.permutations(sizes), key=cost)
""",
            "each axis is named once",
        ),
        (
            "the cost instead of the order",
            """
def best_order(sizes, sent, per_node):
    return min(sent.values())
""",
            "a tuple of names is returned",
        ),
        (
            "counts only bytes sent by node 0",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node == 0 != b // per_node
        )
    return min(itertools.permutations(sizes), key=cost)
""",
            "only bytes sent by node 0",
        ),
        (
            "leaves out a last node that is not full",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node != b // per_node and max(a, b) < math.prod(sizes.values()) // per_node * per_node
        )
    return min(itertools.permutations(sizes), key=cost)
""",
            "a last node that is not full",
        ),
        (
            "three axes at most",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node != b // per_node
        )
    if len(sizes) > 3:
        return tuple(sorted(sizes, key=lambda axis: sent[axis]))
    return min(itertools.permutations(sizes), key=cost)
""",
            "four axes",
        ),
        (
            "four axes at most",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node != b // per_node
        )
    if len(sizes) > 4:
        return tuple(sorted(sizes, key=lambda axis: sent[axis]))
    return min(itertools.permutations(sizes), key=cost)
""",
            "five axes",
        ),
        (
            "caches the order by mesh, without the bytes",
            """
SEEN = {}
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node != b // per_node
        )
    key = per_node, frozenset(sizes.items())
    if key not in SEEN: SEEN[key] = min(itertools.permutations(sizes), key=cost)
    return SEEN[key]
""",
            "other bytes",
        ),
        (
            "right for the lab's names of axes only",
            """
def best_order(sizes, sent, per_node):
    names = ("data", "context", "pipeline", "tensor", "expert")
    known = {axis: sizes[axis] for axis in names if axis in sizes}
    def cost(order):
        mesh = Mesh(**{axis: known[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node != b // per_node
        )
    return min(itertools.permutations(known), key=cost)
""",
            "each axis is named once",
        ),
        (
            "one list for all calls",
            """
FOUND = []
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node != b // per_node
        )
    FOUND[:] = min(itertools.permutations(sizes), key=cost)
    return FOUND
""",
            "when the next call is made",
        ),
    ],
    "faster_plan": [
        (
            "the last row",
            _plan("data=16, tensor=8, pipeline=4, chunks=2, zero_stage=1", "'schedule': 'interleaved'"),
            "",
        ),
        ("the fifth row", _plan("data=8, tensor=8, pipeline=8, zero_stage=1", ""), "seconds of a step"),
        ("ZeRO-3 alone", _plan("data=512, zero_stage=3", "'micro_batch': 3, 'recompute': 'full'"), "seconds of a step"),
        (
            "ZeRO-3 alone, without recomputation",
            _plan("data=512, zero_stage=3", "'micro_batch': 3"),
            "it fits into the memory",
        ),
        ("more GPUs", _plan("data=16, tensor=8, pipeline=8, zero_stage=1", "'micro_batch': 4"), "512 GPUs"),
        ("fewer GPUs", _plan("data=4, tensor=8, pipeline=8, zero_stage=1", "'micro_batch': 4"), "512 GPUs"),
        (
            "micro-batches that do not fit",
            _plan("data=16, tensor=8, pipeline=4, chunks=2", "'micro_batch': 4, 'schedule': 'interleaved'"),
            "it fits into the memory",
        ),
        (
            "chunks without their schedule",
            _plan("data=8, tensor=8, pipeline=8, chunks=2, zero_stage=1", "'micro_batch': 4"),
            "the planner accepts",
        ),
        (
            "another precision",
            _plan("data=8, tensor=8, pipeline=8, zero_stage=1", "'micro_batch': 4, 'precision': 'float8'"),
            "only the plan changes",
        ),
        ("an unknown word", _plan("data=8, tensor=8, pipeline=8", "'recompute': 'half'"), "the planner accepts"),
        (
            "by search",
            """
def faster_plan():
    from lablib.plan import search
    best = search("gpt3-175b", "dgx-a100", 1536, gpus=512).best
    return [best.parallel, dict(micro_batch=best.micro_batch, recompute=best.recompute, schedule=best.schedule)]
""",
            "your own code",
        ),
        (
            "messages in 4 bits",
            _plan("data=64, tensor=8, zero_stage=3, zero_plus_plus=('qwZ', 'qgZ')", "'micro_batch': 1"),
            "",
        ),
        (
            "the axes alone",
            "def faster_plan():\n    return Parallel(data=8, tensor=8, pipeline=8)\n",
            "axes and settings",
        ),
        (
            "settings as text",
            "def faster_plan():\n    return Parallel(data=512), 'micro_batch=4'\n",
            "settings are a dict",
        ),
    ],
}

RIGHT_ANSWERS = {
    "groups": [
        (
            "by an array",
            """
def groups(sizes, axis):
    box = torch.arange(math.prod(sizes.values()), device="cpu").view(*sizes.values())
    return box.movedim(list(sizes).index(axis), -1).reshape(-1, sizes[axis]).tolist()
""",
        ),
        (
            "by rank without its coordinate, as tuples",
            """
def groups(sizes, axis):
    found, stride = {}, 1
    for each in reversed(list(sizes)):
        if each == axis:
            break
        stride *= sizes[each]
    for rank in range(math.prod(sizes.values())):
        found.setdefault(rank - rank // stride % sizes[axis] * stride, []).append(rank)
    return tuple(tuple(group) for group in found.values())
""",
        ),
        (
            "ranges, the last group first",
            """
def groups(sizes, axis):
    axes, n = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1:])
    span = stride * sizes[axis]
    return [range(first + i, first + span, stride) for first in range(0, n, span) for i in range(stride)][::-1]
""",
        ),
        (
            "the values of a dict",
            """
def groups(sizes, axis):
    by = {}
    for rank, at in enumerate(itertools.product(*map(range, sizes.values()))):
        key = tuple(a for name, a in zip(sizes, at) if name != axis)
        by.setdefault(key, []).append(rank)
    return by.values()
""",
        ),
    ],
    "whole_norm": [
        (
            "in FP32",
            """
def whole_norm(gradients, mesh):
    total = 0.0
    for gradient, axes in gradients:
        copies = 1
        for axis, size in mesh.sizes.items():
            copies *= 1 if axis in axes else size
        total += gradient.float().square().sum().item() / copies
    total = torch.tensor(total)
    dist.all_reduce(total)
    return total.sqrt().item()
""",
        ),
        (
            "the first of the copies counts",
            """
def whole_norm(gradients, mesh):
    place = mesh.coordinates(dist.get_rank())
    total = torch.zeros((), dtype=torch.float64)
    for gradient, axes in gradients:
        if all(place[axis] == 0 for axis in place if axis not in axes):
            total = total + gradient.double().norm() ** 2
    dist.all_reduce(total)
    return float(total) ** 0.5
""",
        ),
        (
            "gathers the sums",
            """
def whole_norm(gradients, mesh):
    n = dist.get_world_size()
    own = 0.0
    for gradient, axes in gradients:
        parts = math.prod(mesh.sizes[axis] for axis in axes)
        own += float(gradient.double().pow(2).sum()) * parts / n
    every = [torch.zeros(1, dtype=torch.float64) for _ in range(n)] if n < 8 else None
    mine = torch.tensor([own], dtype=torch.float64)
    if every:
        dist.all_gather(every, mine)
        return math.sqrt(sum(float(one) for one in every))
    dist.all_reduce(mine)
    return math.sqrt(mine.item())
""",
        ),
    ],
    "best_order": [
        (
            "by strides, in closed form",
            """
def best_order(sizes, sent, per_node):
    n = math.prod(sizes.values())
    def cost(order):
        total, stride = 0.0, 1
        for axis in reversed(order):
            span = stride * sizes[axis]
            for rank in range(n):
                after = rank + stride if rank % span + stride < span else rank + stride - span
                total += sent[axis] * (rank // per_node != after // per_node)
            stride = span
        return total
    return list(min(itertools.permutations(sizes), key=cost))
""",
        ),
        (
            "by recursion over the remaining axes",
            """
def best_order(sizes, sent, per_node):
    def best(left, stride):
        if not left:
            return 0.0, ()
        found = []
        for axis in left:
            span = stride * sizes[axis]
            n = math.prod(sizes.values())
            own = 0.0
            for rank in range(n):
                at = rank // stride % sizes[axis]
                after = rank + ((at + 1) % sizes[axis] - at) * stride
                own += sent[axis] * (rank // per_node != after // per_node)
            rest, order = best([each for each in left if each != axis], span)
            found.append((own + rest, order + (axis,)))
        return min(found)
    return best(list(sizes), 1)[1]
""",
        ),
        (
            "the keys of a dict",
            """
def best_order(sizes, sent, per_node):
    def cost(order):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        return sum(
            sent[axis]
            for axis in order for g in mesh.groups(axis) for a, b in zip(g, g[1:] + g[:1])
            if a // per_node != b // per_node
        )
    return {a: None for a in min(itertools.permutations(sizes), key=cost)}.keys()
""",
        ),
        (
            "by a numpy box",
            """
def best_order(sizes, sent, per_node):
    import numpy as np
    n = math.prod(sizes.values())
    best = None
    for order in itertools.permutations(sizes):
        box = np.arange(n).reshape([sizes[a] for a in order])
        c = sum(sent[a] * (box // per_node != np.roll(box, -1, i) // per_node).sum() for i, a in enumerate(order))
        if best is None or c < best[0]:
            best = c, order
    return list(np.array(best[1]))
""",
        ),
    ],
    "faster_plan": [
        (
            "four stages",
            _plan(
                "data=16, tensor=8, pipeline=4, chunks=4, zero_stage=1", "'micro_batch': 2, 'schedule': 'interleaved'"
            ),
        ),
        (
            "a schedule of lab 13",
            _plan("data=8, tensor=8, pipeline=8, chunks=2, zero_stage=1", "'micro_batch': 4, 'schedule': 'zb-v'"),
        ),
    ],
}
