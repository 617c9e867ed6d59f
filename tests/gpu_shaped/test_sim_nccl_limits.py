# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

"""What NCCL lacks is refused in its words, with a remedy; what it has goes on as ever."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lablib import RankError, launch
from lablib.sim.communication.nccl_limits import _DTYPES, LIMITS, _is_contiguous, _is_dense

OP = dist.ReduceOp
PREMUL: Any = dist._make_nccl_premul_sum(2.0)


def reduced(op: Any, dtype: torch.dtype) -> Callable[[], Any]:
    return lambda: dist.all_reduce(torch.ones(3).to(dtype), op=op)


def reduced_and_scattered(op: Any, dtype: torch.dtype) -> None:
    dist.reduce_scatter_tensor(torch.empty(2, dtype=dtype), torch.ones(4).to(dtype), op=op)


def coalesced() -> None:
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(2)]
    dist.all_gather_coalesced(lists, [torch.ones(2), torch.ones(3)])


def from_anyone() -> None:
    dist.send(torch.ones(2), 1) if dist.get_rank() == 0 else dist.recv(torch.empty(2))


def message(x: Tensor) -> None:
    dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(torch.empty_like(x), 0)


SQUARE = torch.arange(16.0).view(4, 4)
REFUSED: dict[str, tuple[str, Callable[[], Any], type[Exception], str]] = {
    "BAND": ("bitwise", reduced(OP.BAND, torch.int32), ValueError, "Cannot use ReduceOp.BAND with NCCL; gather"),
    "BOR": ("bitwise", reduced(OP.BOR, torch.int64), ValueError, "Cannot use ReduceOp.BOR with NCCL; gather"),
    "BXOR": ("bitwise", reduced(OP.BXOR, torch.uint8), ValueError, "Cannot use ReduceOp.BXOR with NCCL; gather"),
    "BOR scattered": (
        "bitwise",
        lambda: reduced_and_scattered(OP.BOR, torch.int32),
        ValueError,
        "Cannot use ReduceOp.BOR",
    ),
    "premul": (
        "premul_sum",
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=PREMUL),
        TypeError,
        "PreMulSum .*: got torch.int32; multiply before",
    ),
    "int16": ("dtype", reduced(OP.SUM, torch.int16), TypeError, "not supported for NCCL .*: torch.int16; send it as"),
    "int16 message": ("dtype", lambda: message(torch.ones(2, dtype=torch.int16)), TypeError, "torch.int16; send it as"),
    "complex": (
        "dtype",
        lambda: dist.reduce_scatter_tensor(torch.empty(2, dtype=torch.complex64), torch.ones(4, dtype=torch.complex64)),
        TypeError,
        "torch.complex64; send it as another: .*view_as_real",
    ),
    "float8": ("float8", reduced(OP.SUM, torch.float8_e4m3fnuz), RuntimeError, "Unsupported Float8 type .*; reduce in"),
    "transposed": (
        "contiguous",
        lambda: dist.all_reduce(SQUARE.t()),
        ValueError,
        r"contiguous: got .*strides \[1, 4\]",
    ),
    "every second": ("contiguous", lambda: dist.broadcast(SQUARE[:, ::2], 0), ValueError, "must be contiguous"),
    "message with gaps": ("dense", lambda: message(SQUARE[:, 0]), ValueError, "non-overlapping and dense: got"),
    "list with gaps": (
        "dense",
        lambda: dist.all_reduce_coalesced([torch.ones(2), SQUARE[:, 0]]),
        ValueError,
        "non-overlapping and dense: got",
    ),
    "from anyone": ("any source", from_anyone, NotImplementedError, "does not support recvAnysource; name the sender"),
    "coalesced": ("coalesced lists", coalesced, NotImplementedError, "does not support allgather_coalesced; call"),
    "monitored": ("monitored barrier", lambda: dist.monitored_barrier(), ValueError, "for GLOO backend; call barrier"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_nccl_lacks_is_refused_in_its_words_with_a_remedy(name: str):
    _, program, error, words = REFUSED[name]
    if name != "premul":
        launch(program, ranks=2)  # the simulator has it
    with pytest.raises(RankError, match=f"raised {error.__name__}: NCCL: .*{words}") as raised:
        launch(program, ranks=2, like="nccl")
    assert type(raised.value.__cause__) is error


def test_every_row_of_the_table_has_its_case():
    assert {row for row, *_ in REFUSED.values()} == set(LIMITS)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_on_the_stand_in_for_a_gpu_groups_are_nccls():
    with pytest.raises(RankError, match="NCCL: Cannot use ReduceOp.BAND with NCCL"):
        launch(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), op=OP.BAND), ranks=2, device="cuda")

    def on_the_host() -> list[int]:
        flags = torch.tensor([dist.get_rank() + 1], device="cpu")
        dist.all_reduce(flags, op=OP.BOR, group=dist.new_group(backend="gloo"))
        return flags.tolist()

    assert launch(on_the_host, ranks=2, device="cuda").values == [[3], [3]]


@given(
    dtype=st.sampled_from(sorted(_DTYPES, key=str)), op=st.sampled_from([OP.SUM, OP.MAX, OP.MIN, OP.PRODUCT, OP.AVG])
)
def test_what_nccl_has_gives_the_same_as_ever(dtype: torch.dtype, op: Any):
    """Of float8, NCCL moves all and adds only two."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        return
    if dtype == torch.bool and op == OP.AVG:
        return

    def program() -> Tensor:
        x = (torch.arange(4) % 2 + dist.get_rank() % 2).to(dtype)
        dist.all_reduce(x, op=op)
        return x

    for ours, theirs in zip(launch(program, ranks=3).values, launch(program, ranks=3, like="nccl").values, strict=True):
        assert torch.equal(ours, theirs)


def test_complex_numbers_add_as_pairs_where_torch_views_them_so():
    def program() -> Tensor:
        x = torch.ones(2, dtype=torch.complex64) * (1 + 2j)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        return x

    assert all(torch.equal(x, torch.full((2,), 2 + 4j)) for x in launch(program, ranks=2, like="nccl").values)


@given(st.lists(st.integers(0, 3), min_size=0, max_size=5), st.data())
def test_a_permuted_tensor_is_dense_and_one_with_gaps_is_not(sizes: list[int], data: st.DataObject):
    order = data.draw(st.permutations(range(len(sizes))))
    x = torch.empty(sizes).permute(order)
    assert _is_dense(x)
    assert _is_contiguous(torch.empty(sizes))
    gaps = torch.empty([*sizes, 4])[..., ::2]
    assert _is_dense(gaps) == (gaps.numel() == 0) and _is_contiguous(gaps) == gaps.is_contiguous()


def test_images_with_channels_last_are_contiguous_to_nccl():
    images = torch.empty(2, 3, 4, 4, dtype=torch.float32).to(memory_format=torch.channels_last)
    assert not images.is_contiguous() and _is_contiguous(images)
    launch(lambda: dist.all_reduce(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)), ranks=2, like="nccl")


@pytest.mark.parametrize("value", ["gloo", "NCCL", 5, True])
def test_what_a_program_can_be_like_is_checked(value: object):
    with pytest.raises(ValueError, match='like must be "nccl", or None for no limits: got'):
        launch(int, ranks=1, like=value)  # pyright: ignore[reportArgumentType]


def test_real_processes_are_like_themselves():
    with pytest.raises(ValueError, match="like=\"nccl\" is for the simulator: got backend='gloo'"):
        launch(int, ranks=1, backend="gloo", like="nccl")
