"""Tiles by dtype and width: compiled for sm_90 they spill nothing, and their shared memory is by the formula."""

# pyright: reportPrivateUsage=false
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.kernels import tile_choice
from lablib.kernels.attention_plan import AttentionTiles, equal_lengths
from lablib.kernels.flash_backward import dk_dv_kernel, dq_kernel
from lablib.kernels.flash_forward import forward_kernel
from lablib.kernels.jit import FLOATS, Kernel
from lablib.kernels.matmul import matmul_kernel
from lablib.kernels.matmul_plan import MatmulTiles

triton = pytest.importorskip("triton")
CUDA = torch.device("cuda")
H100_ROOM = 227 * 1024  # bytes of shared memory that one program may have: CUDA's guide, compute capability 9.0
NAMES = {2: ("bf16", "fp32"), 4: ("fp32", "fp32"), 8: ("fp64", "fp64")}  # of a number, and of a sum
SPILLS = {(4, 256, "dk_dv"): 1024}  # the smallest tile there is
KERNELS: dict[str, Any] = {"forward": forward_kernel, "dq": dq_kernel, "dk_dv": dk_dv_kernel}


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    of_h100 = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=H100_ROOM)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: of_h100)


def resources(kernel: Kernel, itemsize: int, constants: dict[str, Any], options: dict[str, int]) -> tuple[int, int]:
    """Bytes spilled per thread and bytes of shared memory, compiled for an H100."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    number, total = NAMES[itemsize]
    pointers = {"lse_ptr": f"*{total}", "d_ptr": f"*{total}", "starts_q_ptr": "*i64", "starts_k_ptr": "*i64"}
    names = kernel.arg_names
    kinds = {name: pointers.get(name, f"*{number}" if name.endswith("_ptr") else "i32") for name in names}
    kinds |= dict.fromkeys(constants, "constexpr")
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name not in constants}
    made = triton.compile(ASTSource(kernel, kinds, values, aligned), target=GPUTarget("cuda", 90, 32), options=options)
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    cubin = Path(made.metadata_group[f"{made.metadata.name}.cubin"])
    said = subprocess.run([str(path), "-res-usage", str(cubin)], capture_output=True, text=True, check=True).stdout
    stack, local = (int(re.search(rf"{word}:(\d+)", said)[1]) for word in ("STACK", "LOCAL"))  # pyright: ignore
    return stack + local, made.metadata.shared


def attention_resources(
    kernel: tile_choice.AttentionKernel, itemsize: int, width: int
) -> tuple[AttentionTiles, int, int, int]:
    """Tiles, stages, spilled bytes and shared memory of a kernel with the table's tiles."""
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[itemsize]
    tiles = tile_choice.attention_tiles(dtype, width, CUDA)[kernel != "forward"]
    options = tile_choice.attention_options(kernel, tiles, width, dtype, CUDA)
    constants = {
        "SCALE": 0.125, "IS_CAUSAL": True, "ACC": triton.language.float64 if itemsize == 8 else triton.language.float32,
        "BLOCK_Q": tiles.queries, "BLOCK_K": tiles.keys, "BLOCK_W": width,
    }  # fmt: skip
    return tiles, options["num_stages"], *resources(KERNELS[kernel], itemsize, constants, options)


ROWS = [
    pytest.param(*row, kernel, marks=[] if row == (2, 128) else pytest.mark.thorough)
    for row in tile_choice.ATTENTION_TILES
    for kernel in KERNELS
]


@pytest.mark.parametrize(("itemsize", "width", "kernel"), ROWS)
def test_attention_with_the_tables_tiles_spills_nothing(itemsize, width, kernel, h100, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tiles, stages, spilled, shared = attention_resources(kernel, itemsize, width)
    assert spilled <= SPILLS.get((itemsize, width, kernel), 0)
    formula = tile_choice.attention_shared_bytes(kernel, tiles, width, itemsize, stages)
    assert shared <= H100_ROOM
    if kernel == "forward" and itemsize == 2:
        assert shared == formula
    assert tile_choice.attention_shared_bytes(kernel, tiles, width, itemsize, 1) <= shared


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("itemsize", "tiles"), [(size, tiles) for size, each in tile_choice.MATMUL_TILES.items() for tiles in each]
)
def test_matmul_with_the_tables_tiles_spills_nothing(itemsize, tiles, h100, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[itemsize]
    constants = {
        "bias_ptr": None, "a_column": 1, "b_column": 1, "ACTIVATION": "none", "GROUP": 8,
        "ACC": triton.language.float64 if itemsize == 8 else triton.language.float32,
        "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k,
    }  # fmt: skip
    options = tile_choice.matmul_options(tiles, dtype, CUDA)
    spilled, shared = resources(matmul_kernel, itemsize, constants, options)
    assert spilled == 0
    assert shared <= tile_choice.matmul_shared_bytes(tiles, itemsize, options["num_stages"]) <= H100_ROOM


powers = st.sampled_from([16, 32, 64, 128, 256, 512])


@given(
    queries=powers,
    keys=powers,
    width=st.integers(1, 512),
    dtype=st.sampled_from(FLOATS),
    room=st.integers(10**4, 10**6),
)
def test_stages_are_as_many_as_fit_and_none_is_an_error(queries, keys, width, dtype, room):
    tiles = AttentionTiles(queries, keys)

    def need(stages: int) -> int:
        return tile_choice.attention_shared_bytes("dk_dv", tiles, width, dtype.itemsize, stages)

    if need(1) > room:
        with pytest.raises(ValueError, match=rf"{room:,} bytes on this GPU: got these, which need {need(1):,}"):
            tile_choice.stages_that_fit("attention", "these", need, room)
    else:
        stages = tile_choice.stages_that_fit("attention", "these", need, room)
        assert need(stages) <= room
        assert stages == 3 or need(stages + 1) > room


@given(width=st.integers(1, 2048), dtype=st.sampled_from(FLOATS))
def test_every_width_has_tiles(width, dtype):
    for tiles in tile_choice.attention_tiles(dtype, width, CUDA):
        assert min(tiles.queries, tiles.keys) >= 16
    assert tile_choice.attention_tiles(dtype, width, torch.device("cpu")) == (AttentionTiles(), AttentionTiles())


def test_tiles_that_do_not_fit_are_refused_before_they_are_compiled(h100):
    with pytest.raises(ValueError, match=r"got AttentionTiles\(512, 64\) of width 256 in torch.float32, which need"):
        tile_choice.attention_options("forward", AttentionTiles(512, 64), 256, torch.float32, CUDA)
    with pytest.raises(
        ValueError, match=r"matmul: tiles must fit .* got MatmulTiles\(256, 256, 128\) in torch.float64"
    ):
        tile_choice.matmul_options(MatmulTiles(256, 256, 128), torch.float64, CUDA)


def test_a_small_product_has_small_tiles_so_that_no_multiprocessor_is_idle(h100):
    assert tile_choice.matmul_tiles(torch.bfloat16, 4096, 4096, CUDA) == MatmulTiles(128, 256, 64)
    assert tile_choice.matmul_tiles(torch.bfloat16, 2048, 2048, CUDA) == MatmulTiles(128, 128, 64)
    assert tile_choice.matmul_tiles(torch.bfloat16, 1024, 1024, CUDA) == MatmulTiles(64, 64, 64)
    assert tile_choice.matmul_tiles(torch.bfloat16, 1, 1, CUDA) == MatmulTiles(64, 64, 64)
    assert tile_choice.matmul_tiles(torch.float32, 8192, 8192, CUDA) == MatmulTiles(128, 64, 16)
    assert tile_choice.matmul_tiles(torch.float32, 8192, 8192, torch.device("cpu")) == MatmulTiles()


def test_the_backward_plan_has_tiles_of_its_own():
    plan = equal_lengths(1, 300, 300, tiles=AttentionTiles(128, 64))
    assert plan.for_backward() is plan
    of_backward = AttentionTiles(32, 64)
    assert replace(plan, backward_tiles=of_backward).for_backward() == equal_lengths(1, 300, 300, tiles=of_backward)
