"""Seconds of a linear layer in a recipe: three products, faster in fewer bits, and quantization.

    products     forward [T, K] x [K, N], gradient of x [T, N] x [N, K], gradient of w [N, T] x [T, K]
    quantizing   x, w and dy each: read in 16 bits, written in both directions in the recipe's bits
                 one scale for a tensor needs its maximum first: read once more, but for delayed scales,
                 and for one scale above the blocks' (NVFP4)

    time = products + bytes / bandwidth + kernels * launch

The products of width D grow as T D^2 and the quantizing as T D: narrow layers get slower, wide ones faster.

Shapes: T tokens, K inputs, N outputs.
Source: the cost model of `lablib.cost`; passes: Micikevicius et al., 2022, arXiv 2209.05433, section 3.1 (delayed
scaling saves a pass); both directions written at once: NVIDIA Transformer Engine's documentation.
Simplified: one kernel reads an operand and writes both directions; the scales inside products, and the Hadamard
transform, cost nothing. DeepSeek's scales on an H100 do: its products sum on other cores (arXiv 2412.19437, 3.3.2).
"""

from lablib.cost.matmul import matmul_time_s
from lablib.cost.memory import memory_bound_time_s
from lablib.hardware import Device
from lablib.precision.best_format import PEAK_NAMES
from lablib.precision.product_speed import check_multiplies
from lablib.precision.quantized_linear import LinearRecipe
from lablib.signature import checked


@checked
def linear_step_time_s(
    device: Device, recipe: LinearRecipe, num_tokens: int, num_inputs: int, num_outputs: int
) -> float:
    """Seconds of forward and backward of a linear layer in a recipe. ValueError: the device lacks the format."""
    check_multiplies(device, recipe.activation.format)
    name, t, k, n = PEAK_NAMES[recipe.activation.format.name], num_tokens, num_inputs, num_outputs
    products_s = [
        matmul_time_s(t, n, k, name, device),
        matmul_time_s(t, k, n, name, device),
        matmul_time_s(n, k, t, name, device, rows=(n, k)),
    ]
    return float(sum(products_s)) + 3 * device.queued_s + quantizing_time_s(device, recipe, t, k, n)


@checked
def quantizing_time_s(
    device: Device, recipe: LinearRecipe, num_tokens: int, num_inputs: int, num_outputs: int
) -> float:
    """Seconds to quantize x, w and dy, each in both directions; 0 in BF16, their original format."""
    if recipe.activation.scale_format is None:
        return 0.0
    sizes = (num_tokens * num_inputs, num_inputs * num_outputs, num_tokens * num_outputs)
    operands = (recipe.activation, recipe.weight, recipe.gradient)
    needs_maximum = not recipe.is_delayed and any(one.block is None or one.has_tensor_scale for one in operands)
    time_s = 0.0
    for size, operand in zip(sizes, operands, strict=True):
        time_s += device.queued_s
        time_s += float(memory_bound_time_s(size * (2 + 2 * operand.bits_per_number / 8), device))
        if needs_maximum:
            time_s += device.queued_s + float(memory_bound_time_s(2 * size, device))
    return time_s
