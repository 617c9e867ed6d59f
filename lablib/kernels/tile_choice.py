"""Tile sizes, warps and pipeline stages of the attention and matmul kernels, by dtype and head width.

A larger tile moves fewer bytes; the chip is its limit. Sums and scores are in registers, at most 255 per thread, and
numbers beyond them are spilled to memory. Tiles of the inputs are in shared memory; a loop loads some stages ahead.
With 64 by 64 tiles and 4 warps, good for bfloat16 at width 64, float32 spills 9,808 bytes per thread.

The tables hold the largest tiles tried that Triton 3.7 compiles for sm_90 (H100, H200) without a spill, with their
registers per thread (tests/kernels/test_tile_choice.py compiles them again). 8 warps share a tile of attention: with 4,
the forward tile of bfloat16 at width 128 spills 360 bytes per thread.

Cost: shared memory in bytes, with s stages, b bytes per number, a head padded to W:
    forward    (queries + 2 s keys) W b        queries stay, keys and values stream
    matmul     s (m + n) k b                   both stream
Source: Dao, "FlashAttention-2", 2023, arXiv 2307.08691, section 3.3 (tile sizes by hand, for each width).
Simplified: chosen by the compiler's figures, not by time on a GPU; the backward kernels share one size.
"""

from collections.abc import Callable
from typing import Literal

import torch

from lablib.kernels.attention_plan import AttentionTiles
from lablib.kernels.flash_parts import tile_width
from lablib.kernels.jit import SMALLEST_DOT, cdiv
from lablib.kernels.matmul_plan import MatmulTiles

AttentionKernel = Literal["forward", "dq", "dk_dv"]
STAGES = 3  # of a loop's loads, where they fit
ATTENTION_WARPS = 8
SMALL_TILE = 64 * 64  # sums of a matrix product that 4 warps hold without a spill

# (bytes per number, padded width): (queries, keys) forward and backward.
ATTENTION_TILES = {
    (2, 64): ((128, 64), (64, 64)),  # 127 registers, 250 backward
    (2, 128): ((128, 64), (32, 64)),  # 221, 240
    (2, 256): ((128, 32), (16, 32)),  # 250, 218
    (4, 64): ((64, 32), (32, 32)),  # 110, 242
    (4, 128): ((32, 32), (16, 16)),  # 128, 248
    (4, 256): ((16, 16), (16, 16)),  # backward spills 632 bytes per thread: matrix units take no smaller tile
    (8, 64): ((32, 32), (16, 16)),  # 196, 172
    (8, 128): ((16, 16), (16, 16)),  # 148, 176
}

# bytes per number: tiles of a matrix product, largest first. A later one is for c with too few tiles for the GPU.
MATMUL_TILES = {
    2: (MatmulTiles(128, 256, 64), MatmulTiles(128, 128, 64), MatmulTiles(64, 64, 64)),  # 188, 118 and 72 registers
    4: (MatmulTiles(128, 64, 16), MatmulTiles(64, 64, 16)),  # 128 and 96
    8: (MatmulTiles(64, 64, 16),),  # 158
}


def attention_tiles(dtype: torch.dtype, width: int, device: torch.device) -> tuple[AttentionTiles, AttentionTiles]:
    """Tiles of the forward and backward kernels. A CPU interprets them, which has no limit: 64 by 64."""
    if device.type != "cuda":
        return AttentionTiles(), AttentionTiles()
    widths = [listed for itemsize, listed in ATTENTION_TILES if itemsize == dtype.itemsize and listed >= width]
    smallest = (SMALLEST_DOT, SMALLEST_DOT)  # of a width beyond the table
    forward, backward = ATTENTION_TILES[dtype.itemsize, min(widths)] if widths else (smallest, smallest)
    return AttentionTiles(*forward), AttentionTiles(*backward)


def matmul_tiles(dtype: torch.dtype, M: int, N: int, device: torch.device) -> MatmulTiles:
    """Tiles of c [M, N]: the largest of the dtype that give each multiprocessor one, or the smallest."""
    if device.type != "cuda":
        return MatmulTiles()
    choices = MATMUL_TILES[dtype.itemsize]
    enough = torch.cuda.get_device_properties(device).multi_processor_count
    return next((one for one in choices if cdiv(M, one.m) * cdiv(N, one.n) >= enough), choices[-1])


def attention_shared_bytes(kernel: AttentionKernel, tiles: AttentionTiles, width: int, itemsize: int, s: int) -> int:
    """Shared memory of the tiles of q, k, v and do, with s stages of the rows that a program streams."""
    stays, streams = (tiles.keys, tiles.queries) if kernel == "dk_dv" else (tiles.queries, tiles.keys)
    return ((1 if kernel == "forward" else 2) * stays + 2 * s * streams) * tile_width(width) * itemsize


def matmul_shared_bytes(tiles: MatmulTiles, itemsize: int, s: int) -> int:
    """Shared memory of s stages of the tiles of a and b."""
    return s * (tiles.m + tiles.n) * tiles.k * itemsize


def attention_options(
    kernel: AttentionKernel, tiles: AttentionTiles, width: int, dtype: torch.dtype, device: torch.device
) -> dict[str, int]:
    """The compiler's options for a launch: warps and stages. Raises ValueError where the tiles do not fit."""
    if device.type != "cuda":
        return {}
    stages = stages_that_fit(
        f"flash_attention ({kernel})",
        f"AttentionTiles({tiles.queries}, {tiles.keys}) of width {width} in {dtype}",
        lambda s: attention_shared_bytes(kernel, tiles, width, dtype.itemsize, s),
        shared_room(device),
    )
    return {"num_warps": ATTENTION_WARPS, "num_stages": stages}


def matmul_options(tiles: MatmulTiles, dtype: torch.dtype, device: torch.device) -> dict[str, int]:
    """The same for a matrix product."""
    if device.type != "cuda":
        return {}
    stages = stages_that_fit(
        "matmul",
        f"MatmulTiles({tiles.m}, {tiles.n}, {tiles.k}) in {dtype}",
        lambda s: matmul_shared_bytes(tiles, dtype.itemsize, s),
        shared_room(device),
    )
    return {"num_warps": 4 if tiles.m * tiles.n <= SMALL_TILE else 8, "num_stages": stages}


def stages_that_fit(function: str, tiles: str, shared_bytes: Callable[[int], int], room_bytes: int) -> int:
    """The most stages, of at most 3, with tiles that fit into shared memory. ValueError: not even one stage fits."""
    fitting = [stages for stages in range(1, STAGES + 1) if shared_bytes(stages) <= room_bytes]
    if not fitting:
        raise ValueError(
            f"{function}: tiles must fit into a program's shared memory, {room_bytes:,} bytes on this GPU: "
            f"got {tiles}, which need {shared_bytes(1):,}; take smaller tiles, or numbers of fewer bytes."
        )
    return fitting[-1]


def shared_room(device: torch.device) -> int:
    """Bytes of shared memory that one program of a GPU may have."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
