# pyright: reportOptionalMemberAccess=false, reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false

"""Backend contract: every call of `torch.distributed` gives the same answer on the simulator and on gloo.

A case is one communication call with its setting: dtype, shape, memory layout, group, root, reduction, sync or async.
Settings are drawn by hypothesis; many cases share one launch, because the launch is what takes the time. All numbers
are small integers, so sums are exact in every dtype and in any order, and answers are compared to the bit.

The same cases run on NCCL where there are GPUs, but those of which `like="nccl"` says that NCCL lacks them
(lablib/sim/communication/nccl_limits.py). Where gloo lacks something, `test_what_gloo_lacks` compares with a
computation on one device:

    AVG of integers, PREMUL_SUM          gloo raises; NCCL has both
    int16                                gloo and NCCL have no such type
    all_gather_into_tensor into a stack  gloo raises; NCCL has it
    all_to_all with parts of any size    gloo raises (its all_to_all_single has splits); NCCL has it
    monitored_barrier                    gloo only; torch refuses it elsewhere
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.torch_version import TorchVersion

from lablib import LaunchError, launch
from lablib.errors import NotOnNcclWarning

RANKS = 4
DTYPES = ["float64", "float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool"]
GROUPS = [None, (0, 1), (1, 3), (0, 2, 3), (2,)]  # None: the world
REDUCTIONS = ["SUM", "PRODUCT", "MIN", "MAX"]
BITWISE = ["BAND", "BOR", "BXOR"]


@dataclass(frozen=True)
class Setting:
    """One communication call, drawn by hypothesis. `root` counts within the group."""

    dtype: str
    shape: tuple[int, ...]
    layout: str
    members: tuple[int, ...] | None
    root: int
    reduction: str
    is_async: bool
    splits: tuple[int, ...]


class Place:
    """One rank inside its group, and what it brings to a call."""

    def __init__(self, setting: Setting, group: Any):
        self.setting, self.group = setting, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.dtype = getattr(torch, setting.dtype)
        self.root = setting.root % self.size
        self.op = getattr(dist.ReduceOp, setting.reduction)
        if setting.reduction == "AVG" and not self.dtype.is_floating_point:
            self.op = dist.ReduceOp.SUM
        if setting.reduction in BITWISE and self.dtype.is_floating_point:
            self.op = dist.ReduceOp.MAX

    def values(self, *, salt: int = 0, shape: tuple[int, ...] | None = None) -> Tensor:
        """Small integers that differ by rank, position and salt. The first factor is never 0, or PRODUCT would be."""
        shape = self.setting.shape if shape is None else shape
        numbers = torch.arange(int(np.prod(shape))) * 5 + dist.get_rank() * 3 + salt * 2
        return self._laid_out((numbers % 3 + (self.dtype != torch.bool)).view(shape).to(self.dtype))

    def empty(self, *shape: int) -> Tensor:
        """Somewhere to receive, filled with what nobody sends."""
        return self._laid_out(torch.full(shape, 77).to(self.dtype))

    def _laid_out(self, x: Tensor) -> Tensor:
        """The same numbers, stored row by row or column by column."""
        if self.setting.layout == "transposed" and x.dim() >= 2:
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        return x

    def done(self, work: Any, *, polls: bool = True) -> None:
        """Wait for an async call, or poll it until it is complete; a sync call is done already."""
        if self.setting.is_async:
            while polls and self.root % 2 and not work.is_completed():
                pass
            work.wait()

    def message(self, salt: int = 0) -> Tensor:
        """What to send: gloo and NCCL take tensors without gaps only."""
        return self.values(salt=salt).contiguous()

    def room(self) -> Tensor:
        """Where to receive it."""
        return self.empty(*self.setting.shape).contiguous()

    @property
    def options(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.setting.is_async}

    @property
    def global_root(self) -> int:
        return dist.get_global_rank(self.group, self.root) if self.group else self.root


Case = Callable[[Place], Any]
CASES: dict[str, Case] = {}


def case(fn: Case) -> Case:
    CASES[fn.__name__] = fn
    return fn


# ---- collectives ----


@case
def all_reduce(at: Place):
    x = at.values()
    at.done(dist.all_reduce(x, op=at.op, **at.options))
    return x


@case
def all_reduce_coalesced(at: Place):
    xs = [at.values(salt=k, shape=(k + 1,)) for k in range(3)]
    at.done(dist.all_reduce_coalesced(xs, op=at.op, **at.options), polls=False)  # torch gives a future
    return xs


@case
def broadcast(at: Place):
    x = at.values()
    at.done(dist.broadcast(x, src=at.global_root, **at.options))
    return x


@case
def reduce(at: Place):
    x = at.values()
    at.done(dist.reduce(x, dst=at.global_root, op=at.op, **at.options))
    return x if at.rank == at.root else None  # gloo leaves partial sums on the others


@case
def all_gather(at: Place):
    xs = [at.empty(*at.setting.shape) for _ in range(at.size)]
    at.done(dist.all_gather(xs, at.values(), **at.options))
    return xs


@case
def all_gather_coalesced(at: Place):
    xs = [[at.empty(k + 1) for k in range(2)] for _ in range(at.size)]
    ours = [at.values(salt=k, shape=(k + 1,)) for k in range(2)]
    at.done(dist.all_gather_coalesced(xs, ours, **at.options), polls=False)  # torch gives a future
    return xs


@case
def all_gather_into_tensor(at: Place):
    shape = at.setting.shape
    x = torch.empty(at.size * shape[0], *shape[1:], dtype=at.dtype)
    at.done(dist.all_gather_into_tensor(x, at.values().contiguous(), **at.options))
    return x


@case
def all_gather_in_place(at: Place):
    x = torch.empty(at.size, at.setting.shape[0], dtype=at.dtype)
    own = x.view(-1).chunk(at.size)[at.rank] if x.numel() else x.view(-1)
    own.copy_(at.values(shape=own.shape))
    at.done(dist.all_gather_into_tensor(x.view(-1), own, **at.options))
    return x


@case
def all_gather_single(at: Place):
    if not hasattr(dist, "all_gather_single"):  # torch 2.13 and later
        return None
    x = torch.empty(at.size * at.setting.shape[0], dtype=at.dtype)
    at.done(dist.all_gather_single(x, at.values(shape=at.setting.shape[:1]), **at.options))
    return x


# gloo does not say that a reduce-scatter is complete before it is waited for: no polling there.


@case
def reduce_scatter(at: Place):
    x = at.empty(*at.setting.shape)
    at.done(dist.reduce_scatter(x, [at.values(salt=k) for k in range(at.size)], op=at.op, **at.options), polls=False)
    return x


@case
def reduce_scatter_tensor(at: Place):
    shape = at.setting.shape
    x = torch.empty(shape, dtype=at.dtype)
    whole = at.values(shape=(at.size * shape[0], *shape[1:])).contiguous()
    at.done(dist.reduce_scatter_tensor(x, whole, op=at.op, **at.options), polls=False)
    return x


@case
def reduce_scatter_single(at: Place):
    if not hasattr(dist, "reduce_scatter_single"):  # torch 2.13 and later
        return None
    x = torch.empty(at.setting.shape[0], dtype=at.dtype)
    whole = at.values(shape=(at.size * at.setting.shape[0],))
    at.done(dist.reduce_scatter_single(x, whole, op=at.op, **at.options), polls=False)
    return x


@case
def gather(at: Place):
    xs = [at.empty(*at.setting.shape) for _ in range(at.size)] if at.rank == at.root else None
    at.done(dist.gather(at.values(), xs, dst=at.global_root, **at.options))
    return xs


@case
def scatter(at: Place):
    x = at.empty(*at.setting.shape)
    xs = [at.values(salt=k) for k in range(at.size)] if at.rank == at.root else None
    at.done(dist.scatter(x, xs, src=at.global_root, **at.options))
    return x


@case
def all_to_all(at: Place):
    xs = [at.empty(*at.setting.shape) for _ in range(at.size)]
    at.done(dist.all_to_all(xs, [at.values(salt=k) for k in range(at.size)], **at.options))
    return xs


@case
def all_to_all_single(at: Place):
    shape = (at.size * at.setting.shape[0], *at.setting.shape[1:])
    x = torch.empty(shape, dtype=at.dtype)
    at.done(dist.all_to_all_single(x, at.values(shape=shape).contiguous(), **at.options))
    return x


@case
def all_to_all_single_with_uneven_splits(at: Place):
    sent, received = uneven_splits(at)
    x = torch.empty(sum(received), 2, dtype=at.dtype)
    given = at.values(shape=(sum(sent), 2)).contiguous()
    at.done(dist.all_to_all_single(x, given, received, sent, **at.options))
    return x


def uneven_splits(at: Place) -> tuple[list[int], list[int]]:
    """Rows that this rank sends to, and receives from, each other: splits[(i + 2 j) mod 5] from i to j."""
    splits = at.setting.splits
    sent = [splits[(at.rank + 2 * j) % len(splits)] for j in range(at.size)]
    return sent, [splits[(i + 2 * at.rank) % len(splits)] for i in range(at.size)]


@case
def barrier(at: Place):
    at.done(dist.barrier(**at.options))
    return at.rank


# ---- point to point ----


@case
def send_and_recv(at: Place):
    """Around the group, even ranks first: x of each goes to the next."""
    x = at.room()
    if at.size == 1:
        return None
    dst, src = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    # A ring of odd length needs one rank that receives first.
    if at.rank == 0:
        dist.send(at.message(), group=at.group, group_dst=dst)
        sender = dist.recv(x, group=at.group, group_src=src)
    else:
        sender = dist.recv(x, group=at.group, group_src=src)
        dist.send(at.message(), group=at.group, group_dst=dst)
    return x, sender


@case
def isend_and_irecv_with_tags(at: Place):
    """Two messages to each peer; the tags, not the order of posting, say which is which."""
    if at.size == 1:
        return None
    dst, src = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    first, second = at.room(), at.room()
    works = [
        dist.isend(at.message(1), group=at.group, group_dst=dst, tag=1),
        dist.isend(at.message(2), group=at.group, group_dst=dst, tag=2),
        dist.irecv(second, group=at.group, group_src=src, tag=2),
        dist.irecv(first, group=at.group, group_src=src, tag=1),
    ]
    for work in works:
        work.wait()
    return first, second


@case
def messages_of_one_tag_arrive_in_the_order_of_posting(at: Place):
    if at.size == 1:
        return None
    dst, src = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    xs = [at.empty(3) for _ in range(3)]
    works = [dist.irecv(x, group=at.group, group_src=src) for x in xs]
    works += [dist.isend(at.values(salt=k, shape=(3,)), group=at.group, group_dst=dst) for k in range(3)]
    for work in reversed(works):
        work.wait()
    return xs


@case
def recv_from_anyone(at: Place):
    """The root receives from each other rank, in the order of tags, and learns who sent."""
    if 0 in at.setting.shape:
        return None  # gloo cannot
    if at.rank != at.root:
        dist.send(at.message(), group=at.group, group_dst=at.root, tag=at.rank)
        return None
    received = []
    for tag in range(at.size):
        if tag != at.root:
            x = at.room()
            sender = dist.recv(x, src=None, group=at.group, tag=tag)
            received.append((sender, x))
    return received


@case
def batch_isend_irecv(at: Place):
    if at.size == 1:
        return None
    dst, src = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    x, y = at.room(), at.empty(2)
    ops = [
        dist.P2POp(dist.irecv, x, group=at.group, group_peer=src),
        dist.P2POp(dist.isend, at.message(), group=at.group, group_peer=dst),
        dist.P2POp(dist.isend, at.values(salt=4, shape=(2,)), group=at.group, group_peer=dst),
        dist.P2POp(dist.irecv, y, group=at.group, group_peer=src),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return x, y


# ---- objects ----


def thing(at: Place, k: int = 0) -> dict[str, Any]:
    return {"rank": dist.get_rank(), "text": "x" * (3 * at.rank + k), "tensor": at.values(salt=k)}


@case
def all_gather_object(at: Place):
    things: list[Any] = [None] * at.size
    dist.all_gather_object(things, thing(at), group=at.group)
    return things


@case
def gather_object(at: Place):
    things: list[Any] | None = [None] * at.size if at.rank == at.root else None
    dist.gather_object(thing(at), things, dst=at.global_root, group=at.group)
    return things


@case
def broadcast_object_list(at: Place):
    things: list[Any] = [thing(at), at.rank, None]
    dist.broadcast_object_list(things, src=at.global_root, group=at.group)
    return things


@case
def scatter_object_list(at: Place):
    mine: list[Any] = [None]
    things = [thing(at, k) for k in range(at.size)] if at.rank == at.root else None
    dist.scatter_object_list(mine, things, src=at.global_root, group=at.group)
    return mine


@case
def send_and_recv_object_list(at: Place):
    if at.size == 1 or at.rank > 1:
        return None
    things: list[Any] = [None, None]
    if at.rank == 0:
        dist.send_object_list([thing(at), "last"], group=at.group, group_dst=1)
        return None
    sender = dist.recv_object_list(things, group=at.group, group_src=0)
    return things, sender


# ---- futures, coalescing, functional collectives ----


@case
def a_future_and_what_is_chained_to_it(at: Place):
    x = at.values()
    work = dist.all_reduce(x, op=at.op, group=at.group, async_op=True)
    doubled = work.get_future().then(lambda future: [t + t for t in future.value()])
    return doubled.wait(), x


@case
def two_collectives_under_way_at_once(at: Place):
    x, y = at.values(), at.values(salt=3, shape=(5,))
    first = dist.all_reduce(x, op=at.op, group=at.group, async_op=True)
    second = dist.broadcast(y, group=at.group, group_src=at.root, async_op=True)
    second.wait()
    first.wait()
    return x, y


@case
def coalesced_all_reduces(at: Place):
    xs = [at.values(salt=k) for k in range(3)]
    with dist._coalescing_manager(at.group, async_ops=at.setting.is_async) as manager:
        for x in xs:
            dist.all_reduce(x, op=at.op, group=at.group)
    if at.setting.is_async:
        manager.wait()
    return xs


@case
def functional_collectives(at: Place):
    group = at.group or dist.group.WORLD
    x, rows = at.values(), at.values(shape=(2 * at.size, 3)).contiguous()
    reduction = {"AVG": "avg", "SUM": "sum", "MIN": "min", "MAX": "max"}.get(at.setting.reduction, "sum")
    if reduction == "avg" and not at.dtype.is_floating_point:
        reduction = "sum"
    return [
        funcol.all_reduce(x.contiguous(), reduction, group) + 0,
        funcol.broadcast(x.contiguous(), at.root, group) + 0,
        funcol.all_gather_tensor(rows, 0, group) + 0,
        funcol.all_gather_tensor(rows, 1, group) + 0,
        funcol.reduce_scatter_tensor(rows, reduction, 0, group) + 0,
        funcol.all_to_all_single(rows, None, None, group) + 0,
        [t + 0 for t in funcol.all_reduce_coalesced([rows, rows + rows], reduction, group)],
        [t + 0 for t in funcol.all_gather_into_tensor_coalesced([rows, rows + rows], group)],
        [t + 0 for t in funcol.reduce_scatter_tensor_coalesced([rows, rows + rows], reduction, [0, 0], group)],
        *(x, rows),  # as they were
    ]


@case
def functional_collectives_with_gradients(at: Place):
    group = at.group or dist.group.WORLD
    rows = torch.arange(6.0 * at.size).view(2 * at.size, 3).double() + dist.get_rank()
    rows.requires_grad_()
    y = funcol.all_gather_tensor_autograd(rows, 0, group)
    z = funcol.reduce_scatter_tensor_autograd(rows * 2, "sum", 0, group)
    t = funcol.all_to_all_single_autograd(rows * 3, None, None, group)
    weights = torch.arange(3.0).double() + dist.get_rank()
    ((y * weights).sum() + (z * weights).sum() + (t * weights).sum()).backward()
    return y.detach() + 0, z.detach() + 0, t.detach() + 0, rows.grad


# ---- groups ----


def several_groups() -> list[Any]:
    """new_group in odd orders, new_subgroups, by enumeration, and a mesh with two and three axes."""
    found: list[Any] = []

    def total(group: Any) -> float | None:
        if group is None or dist.get_rank(group) < 0:
            return None
        x = torch.tensor([10.0 ** dist.get_rank()])
        dist.all_reduce(x, group=group)
        return x.item()

    for members in ([3, 1], [0], [0, 1, 2, 3]):
        group = dist.new_group(members, group_desc="named" if len(members) == 1 else None)
        found.append((total(group), dist.get_process_group_ranks(group) if dist.get_rank() in members else None))
    mine, _ = dist.new_subgroups(2)
    found.append((total(mine), dist.get_process_group_ranks(mine)))
    mine, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    found.append((total(mine), dist.get_group_rank(mine, dist.get_rank())))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found.append([(total(mesh.get_group(axis)), mesh.get_local_rank(axis)) for axis in ("dp", "tp")])
    found.append([mesh["tp"].size(), mesh.get_coordinate(), total(mesh["dp", "tp"]._flatten().get_group())])
    cube = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    found.append([(total(cube.get_group(axis)), cube.get_local_rank(axis)) for axis in range(3)])
    dist.destroy_process_group(mesh.get_group("dp"))
    found.append((dist.get_rank(), dist.get_world_size(), dist.is_initialized()))
    return found


def strided_tensors() -> list[Any]:
    """Tensors with gaps between their elements, where gloo takes them: sent and received part by part."""
    grid = torch.arange(24.0).view(4, 6) + dist.get_rank()
    column, every_second = grid[:, 1], grid[0, ::2]
    xs = [torch.empty(6, 4).t()[:, 0].contiguous() for _ in range(RANKS)]
    dist.all_gather(xs, column.contiguous())
    y = [torch.empty(3) for _ in range(RANKS)]
    dist.all_gather(y, every_second.contiguous())
    return [xs, y]


def a_monitored_barrier() -> int:
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    return dist.get_rank()


# ---- running ----


def run_cases(names: str | tuple[str, ...], drawn: list[Setting]) -> list[Any]:
    """One launch's program: the cases under each setting. On gloo and on the simulator alike."""
    warnings.simplefilter("ignore")  # torch 2.13 calls some of these by new names
    names = (names,) if isinstance(names, str) else names
    groups = {members: dist.new_group(list(members)) for members in sorted({s.members for s in drawn if s.members})}
    found = []
    for setting in drawn:
        is_member = setting.members is None or dist.get_rank() in setting.members
        found += [(name, CASES[name](Place(setting, groups.get(setting.members)))) for name in names if is_member]
    return found


SETTINGS = st.builds(
    Setting,
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from([(0,), (1,), (2,), (7,), (64,), (1, 1), (3, 2), (2, 3, 2), (0, 3), (1025,)]),
    layout=st.sampled_from(["rows", "rows", "transposed"]),
    members=st.sampled_from(GROUPS),
    root=st.integers(0, 3),
    reduction=st.sampled_from([*REDUCTIONS, *BITWISE, "AVG"]),
    is_async=st.booleans(),
    splits=st.lists(st.integers(0, 3), min_size=5, max_size=5).map(tuple),
)


def assert_same(simulated: Any, real: Any, where: str) -> None:
    """Equal to the bit: type, dtype, shape and every element, in nested lists, tuples and dictionaries."""
    if isinstance(simulated, Tensor):
        assert isinstance(real, Tensor), where
        assert (simulated.dtype, simulated.shape) == (real.dtype, real.shape), where
        assert torch.equal(simulated, real.to(simulated.device)), f"{where}: {simulated} on sim, {real} in processes"
    elif isinstance(simulated, (list, tuple)):
        assert len(simulated) == len(real), where
        for i, (a, b) in enumerate(zip(simulated, real, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(simulated, dict):
        assert simulated.keys() == real.keys(), where
        for key in simulated:
            assert_same(simulated[key], real[key], f"{where}[{key!r}]")
    else:
        assert simulated == real, f"{where}: {simulated} on sim, {real} in processes"


def assert_backends_agree(backend: str, program: Callable[..., Any], *args: Any, ranks: int = RANKS) -> None:
    simulated = launch(program, *args, ranks=ranks, trace=False).values
    shares = backend == "nccl"  # one GPU will do: values are right there, too
    real = launch(program, *args, ranks=ranks, backend=backend, trace=False, timeout_s=60, share_gpus=shares).values
    for rank, (a, b) in enumerate(zip(simulated, real, strict=True)):
        assert_same(a, b, f"rank {rank}, case")


ON_GLOO = [name for name in CASES if name != "all_to_all" or torch.__version__ >= TorchVersion("2.12")]


@pytest.mark.parametrize("first", range(5))
@settings(max_examples=4)
@given(drawn=st.lists(SETTINGS, min_size=12, max_size=12))
def test_calls_give_the_same_on_the_simulator_as_on_gloo(first: int, drawn: list[Setting]):
    """Every fifth call, in one launch: a launch of processes takes longer than the calls."""
    assert_backends_agree("gloo", run_cases, tuple(ON_GLOO[first::5]), drawn)


def nccl_has(name: str, setting: Setting, ranks: int) -> bool:
    """Whether a case can run on NCCL: the simulator says so, asked to be like it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", NotOnNcclWarning)
            launch(run_cases, name, [setting], ranks=ranks, trace=False, like="nccl")
    except (LaunchError, NotOnNcclWarning):
        return False
    return True


PLAIN = Setting("float32", (3, 2), "rows", None, 1, "SUM", False, (1, 2, 0, 3, 1))
# A receive from anyone, lists of several shapes, tags that sort; and receives that are posted, unbatched, before sends.
NOT_ON_NCCL = {
    "recv_from_anyone",
    "all_gather_coalesced",
    "isend_and_irecv_with_tags",
    "messages_of_one_tag_arrive_in_the_order_of_posting",
}


@pytest.mark.parametrize("name", CASES)
def test_nccl_has_all_cases_but_a_few(name: str):
    """What the test below leaves out, found without a GPU."""
    assert [nccl_has(name, PLAIN, ranks) for ranks in (2, 4)] == [name not in NOT_ON_NCCL] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(CASES.keys() - NOT_ON_NCCL))
@settings(max_examples=1)
@given(drawn=st.lists(SETTINGS, min_size=8, max_size=8))
def test_a_call_gives_the_same_on_the_simulator_as_on_nccl(name: str, drawn: list[Setting]):
    # NCCL's average multiplies by 1 / ranks first, which is exact for a power of two.
    ranks = RANKS if torch.cuda.device_count() >= RANKS else 2
    fitting = [s for s in (PLAIN, *drawn) if s.members is None and nccl_has(name, s, ranks)]
    assert_backends_agree("nccl", run_cases, name, fitting, ranks=ranks)


@pytest.mark.parametrize("program", [several_groups, strided_tensors, a_monitored_barrier])
def test_groups_and_barriers_are_the_same_on_the_simulator_as_on_gloo(program: Callable[[], Any]):
    assert_backends_agree("gloo", program)


# ---- what gloo lacks ----


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_the_average_of_integers_is_cut_to_an_integer(dtype: torch.dtype):
    def program() -> Tensor:
        x = (torch.arange(5) + 3 * dist.get_rank()).to(dtype)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        return x

    total = sum(torch.arange(5) + 3 * rank for rank in range(3))
    for x in launch(program, ranks=3).values:
        assert torch.equal(x, (total // 3).to(dtype))


@pytest.mark.parametrize("factor", [0.5, torch.tensor([2.0])])
def test_premul_sum_multiplies_each_operand_before_the_sum(factor: float | Tensor):
    def program() -> tuple[Tensor, Tensor]:
        x, shard = torch.arange(4.0) + dist.get_rank(), torch.empty(2)
        op = dist._make_nccl_premul_sum(factor)
        dist.reduce_scatter_tensor(shard, x.clone(), op=op)
        dist.all_reduce(x, op=op)
        return x, shard

    warnings.simplefilter("ignore")
    expected = sum(float(factor) * (torch.arange(4.0) + rank) for rank in range(2))
    for rank, (x, shard) in enumerate(launch(program, ranks=2).values):
        assert torch.equal(x, expected) and torch.equal(shard, expected.chunk(2)[rank])


def test_all_gather_into_tensor_may_stack_instead_of_concatenating():
    def program() -> Tensor:
        warnings.simplefilter("ignore")
        x = torch.empty(3, 2, 2)
        dist.all_gather_into_tensor(x, torch.full((2, 2), float(dist.get_rank())))
        return x

    for x in launch(program, ranks=3).values:
        assert torch.equal(x, torch.arange(3.0).view(3, 1, 1).expand(3, 2, 2))


def test_the_parts_of_an_all_to_all_may_differ_in_size():
    """Rank i sends i + j elements of value i to rank j."""

    def program() -> list[Tensor]:
        rank, size = dist.get_rank(), dist.get_world_size()
        received = [torch.empty(other + rank) for other in range(size)]
        dist.all_to_all(received, [torch.full((rank + other,), float(rank)) for other in range(size)])
        return received

    for rank, received in enumerate(launch(program, ranks=3).values):
        assert [x.tolist() for x in received] == [[float(other)] * (other + rank) for other in range(3)]


def test_collectives_take_tensors_with_gaps_in_memory():
    """gloo refuses them; NCCL wants contiguous ones, too. Here the elements count, not where they are."""

    def program() -> tuple[Tensor, Tensor]:
        grid = torch.arange(12.0).view(3, 4) + dist.get_rank()
        dist.all_reduce(grid[:, 1])
        shards = torch.zeros(3, 2 * dist.get_world_size())
        dist.all_gather([shards[:, 2 * i : 2 * i + 2] for i in range(dist.get_world_size())], grid[:, ::2])
        return grid, shards

    (grid, shards), (_, twin) = launch(program, ranks=2).values
    assert torch.equal(grid[:, 1], torch.tensor([3.0, 11.0, 19.0])) and torch.equal(
        grid[:, 0], torch.tensor([0.0, 4, 8])
    )
    ranks = [torch.arange(12.0).view(3, 4)[:, ::2] + rank for rank in range(2)]
    assert torch.equal(shards, torch.cat(ranks, dim=1)) and torch.equal(twin, shards)


def test_a_reduction_that_a_dtype_does_not_have_is_refused_by_every_rank_itself():
    def program(name: str, dtype: torch.dtype) -> str:
        try:
            dist.all_reduce(torch.ones(2, dtype=dtype), op=getattr(dist.ReduceOp, name))
        except TypeError as error:
            return str(error)
        return ""

    for name in BITWISE:
        for text in launch(program, name, torch.float32, ranks=2).values:
            assert text.startswith(f"bitwise reductions need integers: got {name} of torch.float32")
    assert all("needs numbers" in text for text in launch(program, "AVG", torch.bool, ranks=2).values)


def test_a_rank_or_root_outside_the_group_is_refused_with_the_ranks_there_are():
    def program(call: Callable[[], Any]) -> str:
        with pytest.raises(ValueError) as caught:
            call()
        return str(caught.value)

    calls = [lambda: dist.send(torch.ones(1), 7), lambda: dist.broadcast(torch.ones(1), src=9)]
    for call, wrong in zip(calls, (7, 9), strict=True):
        for text in launch(program, call, ranks=2).values:
            assert text == f"rank {wrong} does not exist: group world has ranks 0 to 1"


@pytest.mark.parametrize("backend", ["sim", "gloo"])
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # new names since torch 2.13
def test_a_collective_gathers_and_scatters_in_one_type(backend: str):
    def program(backend: str) -> list[str]:
        whole, part = torch.zeros(4), torch.zeros(2, dtype=torch.float64)
        told = []
        for call in (dist.all_gather_into_tensor, dist.reduce_scatter_tensor):
            pair = (whole, part) if call is dist.all_gather_into_tensor else (part, whole)
            with pytest.raises(ValueError if backend == "sim" else RuntimeError) as caught:
                call(*pair)
            told.append(str(caught.value))
        return told

    for told in launch(program, backend, ranks=2, backend=backend).values:
        for text in told:
            named = text.replace("double", "float64")
            assert "float64" in named and "float" in named.replace("float64", "")


def test_sparse_tensors_may_be_computed_with_but_not_sent():
    """gloo can sum them, NCCL cannot; DDP with `sparse=True` embeddings needs gloo."""

    def program() -> str:
        embedding = torch.nn.Embedding(10, 3, sparse=True)
        embedding(torch.tensor([1, 1, 4])).sum().backward()
        assert embedding.weight.grad is not None and embedding.weight.grad.is_sparse
        with pytest.raises(ValueError) as caught:
            dist.all_reduce(embedding.weight.grad)
        return str(caught.value)

    for text in launch(program, ranks=2).values:
        assert text == "communication takes dense tensors: got one of layout torch.sparse_coo; use to_dense()"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats_are_summed_in_float32_in_rank_order_and_rounded_once(dtype: torch.dtype):
    def program() -> tuple[Tensor, Tensor]:
        mine = torch.randn(1000, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
        total = mine.clone()
        dist.all_reduce(total)
        return mine, total

    values = launch(program, ranks=5).values
    expected = values[0][0].float()
    for mine, _ in values[1:]:
        expected = expected + mine.float()
    for _, total in values:
        assert torch.equal(total, expected.to(dtype))


def test_sums_run_in_rank_order_however_long_the_tensor():
    """((t0 + t1) + t2) + t3 to the bit, also past the size of one block of the reduction."""

    def program() -> tuple[Tensor, Tensor]:
        mine = torch.randn(200_001, generator=torch.Generator().manual_seed(dist.get_rank()))
        total = mine.clone()
        dist.all_reduce(total)
        return mine, total

    values = launch(program, ranks=4).values
    expected = ((values[0][0] + values[1][0]) + values[2][0]) + values[3][0]
    assert all(torch.equal(total, expected) for _, total in values)
