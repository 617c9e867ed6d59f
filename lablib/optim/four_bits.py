"""Numbers in 4 bits, two in a byte: 16 even steps from the minimum to the maximum of each group of 256 neighbours.

    step = (max - min) / 15          code = round((x - min) / step), 0 to 15          x ~ min + code step

The error of each number is at most half a step.

Cost: 1/2 byte per number and 8 bytes per group: 0.53 bytes per number.
Shapes: any; groups are neighbours in memory, the last one may be shorter. Codes lie two in a byte, the first in the
lower half.
Source: Zhang et al., "Q-GaLore", 2024, arXiv 2407.08296, section 3.3 (asymmetric, groups of 256).
Conventions: the authors' code keeps a whole number as zero point, between 0 and 15; here it is the minimum itself.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from lablib.signature import checked

GROUP = 256  # numbers that share a range


@checked
def quantize_4bit(x: Float[Tensor, "..."]) -> tuple[UInt8[Tensor, " pairs"], Float32[Tensor, "groups 2"]]:
    """Two codes in a byte, and the minimum and the step of each group of 256 neighbours, in float32."""
    flat = x.detach().flatten().float()
    rows = F.pad(flat[None], (0, -len(flat) % GROUP), mode="replicate")[0].view(-1, GROUP)  # ranges do not change
    low, high = rows.aminmax(dim=1, keepdim=True)
    step = (high - low) / 15
    codes = ((rows - low) / torch.where(step > 0, step, 1.0)).round_().to(torch.uint8).flatten()
    packed = codes[0::2] | codes[1::2] << 4
    return packed[: (len(flat) + 1) // 2].clone(), torch.cat([low, step], dim=1)


@checked
def dequantize_4bit(
    packed: UInt8[Tensor, " pairs"], ranges: Float32[Tensor, "groups 2"], shape: torch.Size
) -> Float32[Tensor, "..."]:
    """The numbers of codes and ranges, in float32."""
    codes = torch.stack([packed & 15, packed >> 4], dim=1).flatten()[: shape.numel()]
    low, step = ranges.repeat_interleave(GROUP, dim=0)[: shape.numel()].unbind(1)
    return (low + codes * step).view(shape)
