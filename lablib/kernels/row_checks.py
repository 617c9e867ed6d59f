"""Row-wise kernels: checks of their arguments, number of programs, and warps per program.

A gradient summed over rows is reduced in two stages. First each of P programs adds the rows that it takes, in
registers, and writes one line of partial sums; then the P lines are added. P follows from the GPU, not from the rows:
a few programs for each multiprocessor. Each line is written once and read once.

Cost of the partial sums: 2 P D numbers of HBM traffic next to 3 T D of the gradient itself.
Source: Hsu et al., "Liger Kernel", 2024, arXiv 2410.10989, section 3.2 (one program per multiprocessor).
"""

from typing import Annotated

import torch
from torch import Tensor

from lablib.kernels.jit import cdiv
from lablib.signature import Range

TokensPerProgram = Annotated[int, Range(ge=1, example=16)]
LONGEST_ROW = 65_536  # numbers
PROGRAMS_PER_MULTIPROCESSOR = 4  # a choice, not timed on a GPU
# 8 per thread. Compiled for sm_90 the norms spill no registers up to 8,192 numbers (with 4 warps, backward spills 300
# bytes per thread there), and 1.4 KB per thread backward at 65,536.
NUMBERS_PER_WARP = 256


def partial_lines(rows: int, device: torch.device, columns: int = 1) -> int:
    """P, programs that share sums over `rows` (0 for none), with `columns` programs side by side; a CPU is one."""
    on_gpu = device.type == "cuda"
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
    return min(rows, cdiv(PROGRAMS_PER_MULTIPROCESSOR * multiprocessors, columns))


def row_warps(block: int) -> int:
    """Warps of a program that holds a row of `block` numbers, a power of two."""
    return min(max(block // NUMBERS_PER_WARP, 1), 32)


def check_rows(function: str, x: Tensor, **vectors: Tensor) -> None:
    """Raise ValueError for rows that no program can hold, or a vector without a number for each of a row."""
    if x.dim() == 0 or not 1 <= x.shape[-1] <= LONGEST_ROW:
        raise ValueError(f"{function}: a row of x must have 1 to {LONGEST_ROW:,} numbers: got shape {tuple(x.shape)}.")
    for name, one in vectors.items():
        if one.shape != x.shape[-1:]:
            raise ValueError(
                f"{function}: {name} must have {x.shape[-1]} numbers, as x's rows have: got shape {tuple(one.shape)}."
            )
