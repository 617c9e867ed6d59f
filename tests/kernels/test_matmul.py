"""The tiled product and its epilogue: F.linear and the activation, over sizes that do not divide the tile."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib.kernels.accesses import hbm_bytes, record_accesses
from lablib.kernels.jit import check_dot_tiles
from lablib.kernels.matmul import ACTIVATIONS, matmul
from lablib.kernels.matmul_plan import MatmulTiles, panels, program_tiles
from tests.kernels.drawn import unchecked

TILES = MatmulTiles(4, 8, 2, group=2)
TORCHS = {"none": torch.nn.Identity(), "relu": F.relu, "gelu": F.gelu, "silu": F.silu}
size = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 17])


def example(M: int, N: int, K: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> list[Tensor]:
    """a, a linear layer's weight, its bias and the gradient of the result."""
    generator = torch.Generator().manual_seed(M + 31 * N + 1023 * K)
    shapes = (M, K), (N, K), (N,), (M, N)
    made = [scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x.to(dtype).requires_grad_() for x in made]


@settings(max_examples=8)
@given(M=size, N=size, K=size, activation=st.sampled_from(sorted(ACTIVATIONS)), has_bias=st.booleans())
def test_equals_torchs_linear_and_activation(M, N, K, activation, has_bias):
    a, weight, bias, dc = example(M, N, K)
    ours = matmul(a, weight.T, bias if has_bias else None, activation, TILES)
    theirs = TORCHS[activation](F.linear(a, weight, bias if has_bias else None))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    inputs = [a, weight, bias] if has_bias else [a, weight]
    for got, want in zip(*(torch.autograd.grad(c, inputs, dc) for c in (ours, theirs)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_only_the_gradients_that_are_asked_for_are_made():
    a, weight, bias, dc = example(3, 5, 4)
    with record_accesses() as launches:
        (d_bias,) = torch.autograd.grad(matmul(a.detach(), weight.detach().T, bias, tiles=TILES), bias, dc)
    torch.testing.assert_close(d_bias, dc.sum(0))
    assert len(launches) == 1  # forward


@pytest.mark.parametrize("group", [1, 2, 3, 100])
def test_the_order_of_programs_changes_no_bit(group):
    a, weight, bias, _ = example(19, 21, 5)
    in_rows = matmul(a, weight.T, bias, "gelu", MatmulTiles(4, 8, 2, group=1))
    assert torch.equal(matmul(a, weight.T, bias, "gelu", MatmulTiles(4, 8, 2, group=group)), in_rows)


@pytest.mark.parametrize("tiles", [MatmulTiles(1, 1, 1), MatmulTiles(16, 2, 8), MatmulTiles()])
def test_any_tile_gives_the_same(tiles):
    a, weight, bias, _ = example(5, 3, 10)
    ours = matmul(a, weight.T, bias, tiles=tiles)
    torch.testing.assert_close(ours, F.linear(a, weight, bias), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_narrow_dtypes_are_rounded_once(dtype, activation):
    """Summed in float32: off by half an eps of the result, and by what float32 loses in K = 40 terms of size one."""
    a, weight, bias, _ = example(10, 9, 40, dtype)
    exact = TORCHS[activation](F.linear(a.double(), weight.double(), bias.double()))
    ours = matmul(a, weight.T, bias, activation, TILES)
    assert ours.dtype == dtype
    in_float32 = 40 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(ours.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=in_float32 * 4)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_large_numbers_of_either_sign_do_no_harm(activation):
    a, weight, bias, _ = example(5, 6, 3, scale=200.0)
    ours = matmul(a, weight.T, bias, activation, TILES)
    torch.testing.assert_close(ours, TORCHS[activation](F.linear(a, weight, bias)), rtol=1e-12, atol=1e-9)


def test_windows_that_overlap_are_multiplied():
    windows, b = torch.arange(9.0).unfold(0, 3, 1), torch.arange(6.0).reshape(3, 2)
    assert torch.equal(matmul(windows, b), windows @ b)


def test_nothing_to_add_up_is_the_bias_and_nothing_to_make_is_empty():
    a, weight, bias, _ = example(3, 5, 4)
    assert torch.equal(matmul(a[:, :0], weight[:, :0].T, bias, tiles=TILES), bias.expand(3, 5))
    assert matmul(a[:0], weight.T, bias, tiles=TILES).shape == (0, 5)
    assert matmul(a, weight[:0].T, bias[:0], tiles=TILES).shape == (3, 0)


def test_the_order_is_that_of_the_drawing():
    rows = program_tiles(4, 4, MatmulTiles(1, 1, 1, group=1))
    groups = program_tiles(4, 4, MatmulTiles(1, 1, 1, group=2))
    assert rows == [(row, column) for row in range(4) for column in range(4)]
    drawn = [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert [[groups.index((row, column)) for column in range(4)] for row in range(4)] == drawn


@given(group=st.sampled_from([1, 2, 4, 8]), columns=st.integers(1, 8))
def test_a_wave_in_groups_reads_g_rows_and_w_over_g_columns(group, columns):
    """For a wave of whole columns of a group, and a c that is larger than the wave."""
    wave = group * columns
    assert panels(64, 64, MatmulTiles(1, 1, 1, group), wave) == group + wave // group
    assert panels(64, 64, MatmulTiles(1, 1, 1, 1), wave) == 1 + wave


def numbers_moved(M: int, N: int, K: int, tiles: MatmulTiles, has_bias: bool = False) -> dict[str, int]:
    """Numbers of each tensor that go between memory and chip, without a cache."""
    num_m, num_n = -(-M // tiles.m), -(-N // tiles.n)
    return {"a": M * K * num_n, "b": K * N * num_m, "bias": N * num_m if has_bias else 0, "c": M * N}


@settings(max_examples=6)
@given(M=size, N=size, K=size, has_bias=st.booleans(), group=st.integers(1, 3))
def test_the_kernel_moves_what_the_formula_says_in_the_order_of_the_list(M, N, K, has_bias, group):
    a, weight, bias, _ = example(M, N, K)
    tiles = MatmulTiles(4, 8, 2, group)
    with record_accesses() as launches:
        matmul(a, weight.T, bias if has_bias else None, tiles=tiles)
    formula = {name: 8 * numbers for name, numbers in numbers_moved(M, N, K, tiles, has_bias).items() if numbers}
    assert hbm_bytes(launches) == formula
    for program, (row, column) in enumerate(program_tiles(M, N, tiles)):
        first = launches[0].elements("c", (program, 0, 0), "store")[0]
        assert divmod(int(first), N) == (4 * row, 8 * column)


@given(M=st.integers(1, 99), N=st.integers(1, 99), K=st.integers(1, 99))
def test_moved_numbers_are_those_of_the_loops(M, N, K):
    tiles = MatmulTiles(8, 16, 4)
    moved = dict.fromkeys(("a", "b", "bias", "c"), 0)
    for row, column in program_tiles(M, N, tiles):
        rows, columns = min(8, M - 8 * row), min(16, N - 16 * column)
        moved["a"] += rows * K
        moved["b"] += K * columns
        moved["bias"] += columns
        moved["c"] += rows * columns
    assert numbers_moved(M, N, K, tiles, has_bias=True) == moved
    assert numbers_moved(M, N, K, tiles)["bias"] == 0
    # The rule of thumb, exact where tiles divide the sizes.
    whole = numbers_moved(8 * M, 16 * N, K, tiles)
    assert sum(whole.values()) == 8 * M * 16 * N * K * (1 / 16 + 1 / 8) + 8 * M * 16 * N


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": torch.zeros(4, 5)}, "a must be .M, K., b .K, N. and the bias .N.: got .2, 3., .4, 5. and .5,."),
        ({"bias": torch.zeros(4)}, "and the bias .N."),
        ({"a": torch.zeros(3)}, "and the bias .N."),
        (
            {"a": torch.zeros(2, 3, dtype=torch.int32)},
            "of one dtype, float16, bfloat16, float32 or float64: got torch.i",
        ),
        ({"bias": torch.zeros(5, dtype=torch.float64)}, "of one dtype"),
        ({"b": torch.zeros(3, 5, device="meta")}, "must be on one device: got cpu, meta, cpu"),
    ],
)
def test_bad_input(change, message):
    arguments = {"a": torch.zeros(2, 3), "b": torch.zeros(3, 5), "bias": torch.zeros(5), "activation": "none"} | change
    with pytest.raises(ValueError, match=message):
        unchecked(matmul)(*arguments.values())


def test_tiles_that_matrix_units_cannot_take_are_told_before_a_launch():
    with pytest.raises(ValueError, match="matmul: a GPU's matrix units need tiles of at least 16: got k=8; try 16"):
        check_dot_tiles("matmul", torch.device("cuda"), m=16, n=64, k=8)
    check_dot_tiles("matmul", torch.device("cpu"), m=1)
