"""Adam with 8-bit state: AdamW with means stored in a byte each, and computed in 32 bits.

At each step, tensor by tensor, the means are dequantized, updated, used and quantized again (blockwise.py):

    m = q1[code_m] scale_m           m = beta1 m + (1 - beta1) g              code_m, scale_m = quantize(m)     signed
    v = q2[code_v] scale_v           v = beta2 v + (1 - beta2) g^2            code_v, scale_v = quantize(v)     unsigned
    w = w - lr lambda w - lr m^ / (sqrt(v^) + eps)           with m and v of this step, before quantizing

Tensors of fewer than `min_8bit_size` numbers (norms, biases) keep 32 bits, as they save little. Embeddings should do
the same, in a separate group with a large `min_8bit_size`: their gradients are the most uneven.

Cost: 2 + 8 / B bytes of state per parameter, 2.03 for B = 256; 18 during the step, for each number of the largest
tensor.
Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, arXiv 2110.02861, section 2.
Conventions: blocks of 256 and 4,096 as bitsandbytes has now, 2,048 in the paper. bitsandbytes decays after the step,
which differs by lr^2 lambda. Tensor by tensor on purpose: a batch would need all means in 32 bits at once.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim.adamw import AdamW
from lablib.optim.base import Betas, Settings, State, split
from lablib.optim.blockwise import BlockCoding, blocks, dequantize, num_blocks, quantize
from lablib.signature import Count, NonNegative, NonNegativeInt, checked


class Adam8bit(AdamW):
    """AdamW with block-wise 8-bit means.

    Arguments:
        lr, betas, eps, weight_decay, check_finite: as for AdamW.
        block_size: numbers that share a scale.
        min_8bit_size: smaller tensors keep means in their own dtype.
    """

    is_element_wise = False

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: NonNegative = 1e-8,
        weight_decay: NonNegative = 1e-2,
        *,
        block_size: Count = 256,
        min_8bit_size: NonNegativeInt = 4096,
        check_finite: bool = False,
    ):
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "check_finite": check_finite}
        super(AdamW, self).__init__(params, **settings, block_size=block_size, min_8bit_size=min_8bit_size)

    def new_state(self, param: Tensor, group: Settings) -> State:
        if param.numel() < group["min_8bit_size"]:
            return super().new_state(param, group)
        return {"step": 0} | new_mean("exp_avg", param, group) | new_mean("exp_avg_sq", param, group)

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        numel = math.prod(shape)
        if numel < group["min_8bit_size"]:
            return super().bytes_of(shape, itemsize, group)
        return bytes_of_means(numel, group)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        is_coded = ["exp_avg_scale" in state for state in states]
        coded, small = split(is_coded, params, grads, states)
        if small[0]:
            super().update(*small, group)
        signed, unsigned = (blocks(is_signed, group["block_size"], params[0].device) for is_signed in (True, False))
        for param, grad, state in zip(*coded, strict=True):
            m, denominator, correction = update_means_8bit(grad, state, group, signed, unsigned)
            param.mul_(1 - group["lr"] * group["weight_decay"])
            param.addcdiv_(m, denominator, value=-group["lr"] / correction)
            del m, denominator  # before the next ones are allocated


def new_mean(key: str, param: Tensor, group: Settings) -> State:
    """Codes and scales of zeros in the shape of a tensor. (Scales of zero make zeros of any code.)"""
    num_scales = num_blocks(param.numel(), group["block_size"])
    scales = torch.zeros(num_scales, dtype=torch.float32, device=param.device)
    return {key: torch.zeros_like(param, dtype=torch.uint8), f"{key}_scale": scales}


def bytes_of_means(numel: int, group: Settings) -> int:
    """Bytes of two means of `numel` numbers: a byte each, and a scale of 4 bytes for each block."""
    return 2 * (numel + 4 * num_blocks(numel, group["block_size"]))


def update_means_8bit(
    grad: Tensor, state: State, group: Settings, signed: BlockCoding, unsigned: BlockCoding
) -> tuple[Tensor, Tensor, float]:
    """Count the step, update both means; returns m, sqrt(v^) + eps (new, at least in float32), 1 - beta1^t."""
    beta1, beta2 = group["betas"]
    state["step"] += 1
    wide = torch.promote_types(grad.dtype, torch.float32)
    grad = grad.to(wide)
    # m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
    m = dequantize(state["exp_avg"], state["exp_avg_scale"], signed).to(wide).lerp_(grad, 1 - beta1)
    state["exp_avg"], state["exp_avg_scale"] = quantize(m, signed)
    v = dequantize(state["exp_avg_sq"], state["exp_avg_sq_scale"], unsigned).to(wide)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    state["exp_avg_sq"], state["exp_avg_sq_scale"] = quantize(v, unsigned)
    denominator = v.sqrt_().div_(math.sqrt(1 - beta2 ** state["step"])).add_(group["eps"])
    return m, denominator, 1 - beta1 ** state["step"]
