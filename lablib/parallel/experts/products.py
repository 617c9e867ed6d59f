"""Grouped products: the rows of each expert times its matrix, with uneven groups.

    loop      one product per expert: exact in every dtype, one launch each
    padded    all groups padded to the longest, one batched product: padding is discarded
    grouped   one kernel that takes the ends of the groups (torch's grouped_mm)

    counts 3 1 2 0    loop: 3 products of 3, 1, 2 rows and one of 0    padded: 4 x 3 rows    grouped: 6 rows, one kernel

All three have the same arguments and results, up to the order of sums in a product.

Cost for M rows in E groups, the longest of C rows:
    FLOPs       2 M D F forward, twice that backward; padded 2 E C D F: max / mean of the counts times as much
    launches    loop 3 E, padded 3 and copies of rows, grouped 3
    peak bytes  padded: E C (D + F) w in addition to M (D + F) w
Shapes: M rows, E groups (experts), D width in, F width out.
Source: Gale et al., "MegaBlocks", 2022, arXiv 2211.15841, section 3 (cost of padding) and section 5 (block-sparse
products); torch.nn.functional.grouped_mm (torch 2.13, documentation).
Simplified: `grouped_product` has the kernel's limits: float32 and 16 bits, rows of a multiple of 16 bytes; under
fidelity="shapes" torch supports only bfloat16.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Product = Callable[[Tensor, Tensor, Sequence[int]], Tensor]  # (x_MD, w_EDF, counts) -> [M, F]


def loop_product(
    x_MD: Float[Tensor, "M D"], w_EDF: Float[Tensor, "E D F"], counts: Sequence[int]
) -> Float[Tensor, "M F"]:
    """One product for each group: rows x_MD sorted by group, a matrix of w_EDF each, `counts` of rows that sum to M."""
    _require_groups(x_MD, w_EDF, counts)
    # unbind, not w[e]: its backward stacks E gradients; each w[e] would allocate zeros as large as w.
    pairs = zip(x_MD.split(list(counts)), w_EDF.unbind(), strict=True)
    return torch.cat([x_mD @ w_DF for x_mD, w_DF in pairs])


def padded_product(
    x_MD: Float[Tensor, "M D"], w_EDF: Float[Tensor, "E D F"], counts: Sequence[int]
) -> Float[Tensor, "M F"]:
    """One batched product of groups padded with zeros. Arguments and Raises as `loop_product`."""
    _require_groups(x_MD, w_EDF, counts)
    longest, groups = max(counts), len(counts)
    if not longest:
        return loop_product(x_MD, w_EDF, counts)  # of no rows
    if longest * groups == len(x_MD):  # all equal: no padding
        return (x_MD.view(groups, longest, -1) @ w_EDF).flatten(0, 1)
    # Row m of group e is at e C + its index in the group: m shifted by the padding of earlier groups.
    moved = [group * longest - start for group, start in enumerate([0, *accumulate(counts)][:-1])]
    by_group = torch.tensor([moved, list(counts)], device=x_MD.device)
    places_M = torch.arange(len(x_MD), device=x_MD.device)
    places_M = places_M + by_group[0].repeat_interleave(by_group[1], output_size=len(x_MD))
    padded = x_MD.new_zeros(groups * longest, x_MD.shape[1]).index_copy(0, places_M, x_MD)
    return (padded.view(groups, longest, -1) @ w_EDF).flatten(0, 1).index_select(0, places_M)


def grouped_product(
    x_MD: Float[Tensor, "M D"], w_EDF: Float[Tensor, "E D F"], counts: Sequence[int]
) -> Float[Tensor, "M F"]:
    """One kernel for all groups, as `loop_product`. ValueError also: float64, or rows not a multiple of 16 bytes."""
    _require_groups(x_MD, w_EDF, counts)
    if x_MD.dtype not in (torch.float32, torch.bfloat16, torch.float16) or x_MD.dtype != w_EDF.dtype:
        raise ValueError(
            f"grouped_mm takes float32, bfloat16 or float16, both the same: got {x_MD.dtype} and {w_EDF.dtype}; "
            "use loop_product."
        )
    if any(size * x_MD.element_size() % 16 for size in w_EDF.shape[1:]):
        raise ValueError(
            f"grouped_mm takes rows of a multiple of 16 bytes: got {w_EDF.shape[1]} and {w_EDF.shape[2]} numbers of "
            f"{x_MD.element_size()} bytes; use loop_product, or widths that are a multiple of "
            f"{16 // x_MD.element_size()}."
        )
    if not len(x_MD):
        return loop_product(x_MD, w_EDF, counts)  # the kernel takes no empty rows
    ends_E = torch.tensor(list(accumulate(counts)), dtype=torch.int32, device=x_MD.device)
    y_MF = F.grouped_mm(x_MD.contiguous(), w_EDF, offs=ends_E)
    if y_MF.requires_grad:
        y_MF.register_hook(torch.Tensor.contiguous)  # the kernel refuses strides of 0, as in the gradient of a sum
    return y_MF


def _require_groups(x_MD: Tensor, w_EDF: Tensor, counts: Sequence[int]) -> None:
    if len(counts) != len(w_EDF) or sum(counts) != len(x_MD):
        raise ValueError(
            f"counts must be of {len(w_EDF)} groups and sum to {len(x_MD)} rows: got {len(counts)} groups of "
            f"{sum(counts)} rows."
        )
