"""One kernel is compiled or interpreted by the device of its tensors; what it touches is recorded; misuse is named."""

import linecache
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from lablib import launch
from lablib.kernels.accesses import Operand, distinct_bytes, hbm_bytes, record_accesses
from lablib.kernels.jit import FLOATS, cdiv, jit, next_power_of_2, tl
from lablib.kernels.launch_checks import check_contiguous
from lablib.kernels.vector_add import vector_add

pytest.importorskip("triton")


@jit
def twice(x):
    y = 2
    return x * y.to(x.dtype)  # what is assigned is a tensor # pyright: ignore


@jit
def double(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at * stride, mask=at < n).to(tl.float32)
    tl.store(y_ptr + at, twice(x), mask=at < n)


@jit
def row_sums(x_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr):
    """Every program reads its row, and adds its sum to one cell."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + tl.program_id(0) * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.atomic_add(y_ptr, tl.sum(total, axis=0))


@jit
def unmasked(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@jit
def narrow_sum(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) + tl.load(x_ptr + at))


@jit
def product(a_ptr, b_ptr, c_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(c_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@given(n=st.integers(1, 70), stride=st.integers(1, 3), dtype=st.sampled_from(FLOATS))
def test_a_launch_on_the_cpu_calculates_reads_and_writes_what_its_masks_let(n, stride, dtype):
    x = torch.randn(n * stride, generator=torch.Generator().manual_seed(n)).to(dtype)[::stride]
    y = torch.empty(n, dtype=dtype)
    with record_accesses() as launches:
        double[(cdiv(n, 16),)](x, y, n, stride, BLOCK=16, num_warps=2)
    assert torch.equal(y, (2 * x.float()).to(dtype))
    (launch,) = launches
    assert (launch.kernel, launch.grid) == ("double", (cdiv(n, 16), 1, 1))
    assert hbm_bytes(launches) == distinct_bytes(launches) == {"x": n * x.itemsize, "y": n * y.itemsize}
    for program in range(cdiv(n, 16)):
        own = list(range(16 * program, min(16 * program + 16, n)))
        assert launch.elements("x", (program, 0, 0), "load").tolist() == own
        assert launch.elements("y", (program, 0, 0)).tolist() == own


@given(rows=st.integers(1, 5), cols=st.integers(0, 20))
def test_bytes_are_counted_each_time_and_once(rows, cols):
    x, y = torch.ones(rows, cols), torch.zeros(1)
    with record_accesses() as launches:
        row_sums[(rows,)](x, y, rows, cols, BLOCK=8)
    assert y.item() == rows * cols
    expected = {"x": 4 * rows * cols, "y": 8 * rows} if cols else {"y": 8 * rows}
    assert hbm_bytes(launches) == expected
    assert distinct_bytes(launches, "atomic") == {"y": 8}  # read and written


def test_only_what_runs_in_the_block_is_recorded_and_each_block_for_itself():
    x, y = torch.ones(4), torch.empty(4)
    with record_accesses() as outer:
        with record_accesses() as inner:
            unmasked[(1,)](x, y, BLOCK=4)
        double[lambda meta: (cdiv(4, meta["BLOCK"]),)](x, y, 4, 1, BLOCK=2)
    unmasked[(1,)](x, y, BLOCK=4)
    assert [one.kernel for one in inner] == ["unmasked"]
    assert [(one.kernel, one.grid) for one in outer] == [("double", (2, 1, 1))]


@given(data=st.data())
def test_an_element_is_found_by_its_address_in_any_view(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    whole = torch.zeros([size + 2 for size in shape])
    part = whole[tuple(slice(data.draw(st.integers(0, 2)), None, data.draw(st.integers(1, 2))) for _ in shape)]
    part = part.permute(data.draw(st.permutations(range(len(shape)))))
    operand = Operand("x", tuple(part.shape), part.stride(), 4, part.data_ptr())
    every = whole.data_ptr() + 4 * torch.arange(-3, whole.numel() + 3)
    expected = dict.fromkeys(every.tolist(), -1)
    for index in range(part.numel()):
        place = torch.unravel_index(torch.tensor(index), part.shape)
        expected[part[place].data_ptr()] = index
    assert operand.elements(every.numpy()).tolist() == list(expected.values())


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    strides=st.lists(st.integers(0, 5), min_size=3, max_size=3),
)
def test_an_element_is_found_in_windows_that_overlap(shape, strides):
    view = torch.arange(100.0).as_strided(shape, strides[: len(shape)])
    operand = Operand("x", tuple(view.shape), view.stride(), view.element_size(), view.data_ptr())
    reached = view.unique().to(torch.int64)  # the k-th number of the storage is k
    addresses = view.data_ptr() + 4 * torch.arange(-3, 60).numpy()
    found = operand.elements(addresses)
    assert [k for k, index in zip(range(-3, 60), found, strict=True) if index >= 0] == reached.tolist()
    assert view.flatten()[found[found >= 0]].to(torch.int64).tolist() == reached.tolist()


def test_bfloat16_is_rounded_to_nearest_as_torch_does():
    x = torch.cat([torch.randn(240), torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 3.3895e38, 1e-40, 1])])
    x = torch.cat([x, 1 + torch.arange(8) / 256])  # ties
    y = torch.empty(256, dtype=torch.bfloat16)
    unmasked[(1,)](x, y, BLOCK=256)
    torch.testing.assert_close(y, x.bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_product_of_tiles(dtype):
    a, b = torch.randn(2, 16, 16, dtype=torch.float64).to(dtype)
    c = torch.empty(16, 16, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    product[(1,)](a, b, c, BLOCK=16)
    torch.testing.assert_close(c, a.to(c.dtype) @ b.to(c.dtype))


LAUNCHES = {
    "right": (lambda: (torch.ones(4), torch.empty(4)), {"BLOCK": 4}, None),
    "right, float64": (lambda: (torch.ones(4).double(), torch.empty(4).double()), {"BLOCK": 4}, None),
    "right, other size": (lambda: (torch.ones(9), torch.empty(9)), {"BLOCK": 8}, None),
    "tile": (lambda: (torch.ones(4), torch.empty(4)), {"BLOCK": 3}, "BLOCK must be a power of two: got 3"),
    "bool tile": (lambda: (torch.ones(4), torch.empty(4)), {"BLOCK": True}, "BLOCK must be a power of two: got True"),
    "list tile": (lambda: (torch.ones(4), torch.empty(4)), {"BLOCK": [4]}, r"BLOCK must be a power of two: got \[4\]"),
    "option": (lambda: (torch.ones(4), torch.empty(4)), {"BLOCK": 4, "warps": 2}, "an argument must be one of"),
    "complex": (lambda: (torch.ones(4) + 0j, torch.empty(4)), {"BLOCK": 4}, "x must be one of float16"),
    "sparse": (lambda: (torch.ones(4).to_sparse(), torch.empty(4)), {"BLOCK": 4}, "a dense tensor with memory"),
    "devices": (lambda: (torch.ones(4), torch.empty(4, device="meta")), {"BLOCK": 4}, "on one device"),
}


@settings(max_examples=30)
@given(names=st.lists(st.sampled_from(list(LAUNCHES)), min_size=2, max_size=8))
def test_a_launch_is_refused_or_not_whatever_was_launched_before(names):
    """Checks are remembered by kind: a kind must hold everything that they look at."""
    kernel = jit(unmasked.fn)  # with nothing remembered
    for name in names:
        make, options, message = LAUNCHES[name]
        x, y = make()
        if message is None:
            kernel[(1,)](x, y, **options)
            assert torch.equal(x[: options["BLOCK"]], y[: options["BLOCK"]])
        else:
            with pytest.raises(ValueError, match=message):
                kernel[(1,)](x, y, **options)


def test_bfloat16_is_not_added_as_bits():
    x = torch.ones(4, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"add needs float32 here: got bfloat16; widen it with \.to\(tl\.float32\)"):
        narrow_sum[(1,)](x, x.clone(), BLOCK=4)


def test_threads_launch_at_once_and_the_language_is_put_back():
    import triton.language as language

    before = [dict(vars(part)) for part in (language, language.core, language.math, language.standard)]
    results, errors = {}, []

    def work(index):
        x, y = torch.full((9,), float(index)), torch.empty(9)
        try:
            with record_accesses() as launches:
                double[(2,)](x, y, 9, 1, BLOCK=8)
            results[index] = y.tolist(), len(launches)
            unmasked[(1,)](x, y, BLOCK=16)
        except IndexError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert results == {index: ([2.0 * index] * 9, 1) for index in range(4)} and len(errors) == 4
    after = [dict(vars(part)) for part in (language, language.core, language.math, language.standard)]
    assert before == after
    assert "interpreter_semantic" not in globals()


def test_ranks_of_the_simulator_launch_kernels():
    def work(rank):
        x = torch.full((9,), float(rank), requires_grad=True)
        vector_add(x, x.detach(), block=8).sum().backward()
        assert x.grad is not None
        y = torch.empty(9)
        double[(2,)](x.detach(), y, 9, 1, BLOCK=8)
        return y.tolist(), x.grad.tolist()

    run = launch(lambda: work(dist.get_rank()), ranks=4)
    assert run.values == [([2.0 * rank] * 9, [1.0] * 9) for rank in range(4)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: unmasked[(1,)](x, y, BLOCK=6), "unmasked: BLOCK must be a power of two: got 6; try BLOCK=8"),
        (lambda x, y: unmasked[(1,)](x, y, BLOCK=4.0), "unmasked: BLOCK must be a power of two: got 4.0; try BLOCK=1"),
        (lambda x, y: unmasked[(1,)](x, y, BLOCK=np.int64(4)), "BLOCK must be a Python int: got .*; try BLOCK=4"),
        (lambda x, y: unmasked[(1,)](x.to("meta"), y, BLOCK=4), "must be on one device.*: got x on meta, y on cpu."),
        (lambda x, y: unmasked[(1,)](x.cfloat(), y, BLOCK=4), "x must be one of float16, .*: got torch.complex64"),
        (
            lambda x, y: unmasked[(1,)](x, y.to(torch.float8_e5m2), BLOCK=4),
            "y must be one of .*: got torch.float8_e5m2",
        ),
        (lambda x, y: unmasked.run(x, y, BLOCK=4, grid=1), "unmasked: a grid must be .*: got 1; count tiles with cdiv"),
        (lambda x, y: unmasked.run(x, y, BLOCK=4, grid=(4 / 4,)), r"a grid must be .* whole numbers.*: got \(1.0,\)"),
        (lambda x, y: unmasked[lambda given: (-1,)](x, y, BLOCK=4), r"none below 0: got \(-1,\)"),
        (lambda x, y: unmasked[1, 1, 1, 2](x, y, BLOCK=4), "a grid must be a tuple of one to three"),
        (lambda x, y: unmasked[()](x, y, BLOCK=4), "a grid must be a tuple of one to three"),
        (
            lambda x, y: unmasked[(1,)](x, y, BLOCK=4, num_warp=4),
            "must be one of x_ptr, .* num_warps, .*: got num_warp.",
        ),
        (lambda x, y: unmasked[(1,)](x.to_sparse(), y, BLOCK=4), "x must be a dense tensor with memory: .*sparse_coo"),
        (lambda x, y: in_a_fake_mode(), "must be a dense tensor with memory: got a FakeTensor"),
        (lambda x, y: unmasked[(1,)](1, 2, BLOCK=4), "must be on one device.*: got no tensor."),
        (lambda x, y: unmasked[(1,)](x, y, BLOCK=8), r"may only load elements of its tensors: got element \d of x"),
        (lambda x, y: check_contiguous("softmax", x=torch.ones(3, 2).T), r"softmax: x must be contiguous: .*\(1, 2\)"),
    ],
)
def test_misuse_is_one_clear_error(call, message):
    with pytest.raises((ValueError, IndexError), match=message):
        call(torch.ones(4), torch.ones(5)[1:])


def in_a_fake_mode():
    with FakeTensorMode():
        unmasked[(1,)](torch.ones(4), torch.ones(4), BLOCK=4)


def test_a_kernel_uses_names_of_the_function_around_it():
    scale = 2

    @jit
    def scaled(x, times=scale):
        y = x * times
        return y * factor

    @jit
    def local(x_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x_ptr + at, scaled(tl.load(x_ptr + at)))

    x, factor = torch.ones(4), 3
    local[(1,)](x, BLOCK=4)
    factor = 5  # what the name holds at the launch is what counts
    local[(1,)](x, BLOCK=4)
    assert x.tolist() == [60.0] * 4


def test_an_error_shows_the_line_of_the_kernel():
    with pytest.raises(IndexError) as caught:
        unmasked[(1,)](torch.ones(4), torch.ones(4), BLOCK=8)
    (line,) = [entry.lineno for entry in traceback.extract_tb(caught.tb) if entry.name == "unmasked"]
    assert "tl.store(y_ptr + at, tl.load(x_ptr + at))" in linecache.getline(__file__, line or 0)


def test_the_least_power_of_two():
    assert [next_power_of_2(n) for n in (0, 1, 2, 3, 4, 5, 1023, 1024, 1025)] == [1, 1, 2, 4, 4, 8, 1024, 1024, 2048]


def test_without_triton_the_package_is_imported_and_a_launch_says_what_is_missing():
    code = """
import sys
sys.modules["triton"] = None
import torch
from lablib.kernels.jit import jit, tl
@jit
def nothing(x_ptr, BLOCK: "tl.constexpr"):
    pass
try:
    nothing[(1,)](torch.ones(1), BLOCK=1)
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("nothing: a Triton kernel needs the package triton: got none; install it")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_kernel_compiled_after_it_was_interpreted(dtype):
    x = torch.randn(100_003).to(dtype)
    y, y_gpu = torch.empty_like(x), torch.empty_like(x, device="cuda")
    grid = (cdiv(len(x), 1024),)
    double[grid](x, y, len(x), 1, BLOCK=1024)
    double[grid](x.cuda(), y_gpu, len(x), 1, BLOCK=1024)
    assert torch.equal(y, y_gpu.cpu())
    with record_accesses(), pytest.raises(ValueError, match="recorded in the interpreter only"):
        double[grid](x.cuda(), y_gpu, len(x), 1, BLOCK=1024)
