"""The plan of a tiled matrix product: the tile of each program, and the numbers moved between memory and chip.

A program reads a row of tiles of a and a column of tiles of b. Each number of a is read once for each column of tiles:

    a   M K ceil(N / n)       b   K N ceil(M / m)       bias   N ceil(M / m)       c   M N
    in all about M N K (1 / n + 1 / m) + M N: twice the tile, half the numbers; room on chip is the limit

Programs run in the order of their number, some W of them at once, and share their reads through the cache.
Row by row of tiles, W programs need 1 row of tiles of a and W columns of b. In groups of g rows they need g rows and
W / g columns (`panels`): g + W / g, least for g = sqrt(W). With W = 64: 65 alone, 16 in groups of 8.

    row by row  0  1  2  3       groups of 2   0  2  4  6      the first 4 programs read
                4  5  6  7                     1  3  5  7      row by row: 1 + 4 panels; in groups: 2 + 2
                8  9 10 11                     8 10 12 14
               12 13 14 15                     9 11 13 15

Cost: O(tiles). Shapes: a [M K], b [K N], c [M N]; tiles of c m x n.
Source: Hong and Kung, "I/O Complexity: The Red-Blue Pebble Game", 1981, STOC: with room for S numbers every order moves
Omega(M N K / sqrt(S)); Triton's tutorial "Matrix Multiplication" (programs in groups).
Simplified: the cache holds the reads of W programs at once; real programs do not keep step, and a cache has lines and
sets.
"""

from dataclasses import dataclass
from typing import Annotated

from lablib.kernels.jit import TileSize, cdiv
from lablib.signature import Checked, Count, NonNegativeInt, checked


@dataclass(frozen=True, slots=True)
class MatmulTiles(Checked):
    """Numbers of a tile's sides, powers of two, and how many rows of tiles are a group in the order of programs."""

    m: TileSize = 64
    n: TileSize = 64
    k: TileSize = 32
    group: Annotated[Count, "1 is row by row"] = 8


@checked
def program_tiles(M: NonNegativeInt, N: NonNegativeInt, tiles: MatmulTiles) -> list[tuple[int, int]]:
    """(row, column) of the tile of c that each program makes, by the program's number."""
    num_m, num_n = cdiv(M, tiles.m), cdiv(N, tiles.n)
    groups = [range(at, min(at + tiles.group, num_m)) for at in range(0, num_m, tiles.group)]
    return [(row, column) for group in groups for column in range(num_n) for row in group]


@checked
def panels(M: NonNegativeInt, N: NonNegativeInt, tiles: MatmulTiles, at_once: Count) -> int:
    """Distinct rows of tiles of a and columns of tiles of b that the first `at_once` programs read."""
    first = program_tiles(M, N, tiles)[:at_once]
    return len({row for row, _ in first}) + len({column for _, column in first})
