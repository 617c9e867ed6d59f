"""The three products of a quantized layer, by hand; exact where nothing is rounded, unbiased where it is."""

from typing import Any

import pytest
import torch
from torch import nn

from lablib.models import GPT, GPTConfig
from lablib.precision.block_scaling import Recipe, quantize
from lablib.precision.formats import FP32
from lablib.precision.int4_training import Int4Linear, RoundToStep, sampling_probabilities, split_bits
from lablib.precision.quantized_linear import (
    LINEAR_RECIPES,
    LinearRecipe,
    QuantizedLinear,
    find_linear_recipe,
    quantize_linears,
)


def gradients(layer: Any, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output and the gradients of input and weight."""
    x = x.clone().requires_grad_()
    y = layer(x)
    dx, dw = torch.autograd.grad(y, (x, layer.weight), dy)
    return y.detach(), dx, dw


def example(seed: int = 0) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(128, 256)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(linear.weight.shape, generator=generator) / 10)
        assert linear.bias is not None
        linear.bias.copy_(torch.randn(256, generator=generator))
    return linear, torch.randn(2, 64, 128, generator=generator), torch.randn(2, 64, 256, generator=generator)


def test_without_rounding_it_is_the_linear_layer():
    exact = Recipe("fp32", FP32, scale_format=None)
    linear, x, dy = example()
    layer = QuantizedLinear(linear, LinearRecipe("exact", exact, exact, exact, hadamard=16))
    for got, want in zip(gradients(layer, x, dy), gradients(linear, x, dy), strict=True):
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["fp8_current", "fp8_deepseek", "mxfp8", "mxfp4"])
def test_each_operand_is_rounded_along_the_dimension_that_is_summed(name):
    linear, x, dy = example()
    recipe = find_linear_recipe(name)
    y, dx, dw = gradients(QuantizedLinear(linear, recipe), x, dy)
    x_TK, dy_TN, w_NK = x.flatten(0, 1), dy.flatten(0, 1), linear.weight.detach()

    def rounded(matrix: torch.Tensor, recipe: Recipe) -> torch.Tensor:
        return quantize(matrix.contiguous(), recipe).dequantize()

    a, w, g = recipe.activation, recipe.weight, recipe.gradient
    assert linear.bias is not None
    assert torch.allclose(y.flatten(0, 1), rounded(x_TK, a) @ rounded(w_NK, w).T + linear.bias, atol=1e-5)
    assert torch.allclose(dx.flatten(0, 1), rounded(dy_TN, g) @ rounded(w_NK.T, w).T, atol=1e-4)
    assert torch.allclose(dw, rounded(dy_TN.T, g) @ rounded(x_TK.T, a).T, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "at_most"),
    [("bf16", 0.004), ("fp8_current", 0.06), ("fp8_deepseek", 0.06), ("mxfp8", 0.06), ("nvfp4", 0.25)],
)
def test_the_error_is_that_of_the_mantissa(name, at_most):
    """Half a unit of the last place is 2^-8 in BF16, 2^-4 in E4M3, 2^-3 in E5M2 (gradients), 2^-2 in E2M1."""
    linear, x, dy = example()
    for got, want in zip(
        gradients(QuantizedLinear(linear, find_linear_recipe(name)), x, dy), gradients(linear, x, dy), strict=True
    ):
        assert float((got - want).norm() / want.norm()) < at_most


@pytest.mark.parametrize("name", ["fp8_current", "fp8_delayed"])
def test_torchs_scaled_product_gives_the_same(name):
    """Codes are the same, so that only the order of float32 sums may differ, which backward does not see."""
    linear, x, dy = example()
    recipe = find_linear_recipe(name)
    emulated, real = QuantizedLinear(linear, recipe), QuantizedLinear(linear, recipe, uses_scaled_mm=True)
    for _ in range(2):  # the second time with the scales of the first
        (y, *emulated_gradients), (real_y, *real_gradients) = (gradients(one, x, dy) for one in (emulated, real))
        assert torch.allclose(real_y, y, rtol=1e-4, atol=1e-4)
        assert all(map(torch.equal, real_gradients, emulated_gradients))


@pytest.mark.parametrize("name", ["bf16", "mxfp8", "fp8_deepseek"])
def test_torchs_scaled_product_is_refused_for_other_recipes(name):
    with pytest.raises(ValueError, match=f"one scale for each tensor here: got {name}; try fp8_current"):
        QuantizedLinear(nn.Linear(128, 128), find_linear_recipe(name), uses_scaled_mm=True)


@pytest.mark.parametrize(
    ("inputs", "tokens", "message"),
    [
        (
            100,
            128,
            "blocks of 1 x 128 must divide the matrix for deepseek_activation: got 128 x 100; pad it to 128 x 128",
        ),
        (
            128,
            100,
            "blocks of 1 x 128 must divide the matrix for deepseek_activation: got 128 x 100; pad it to 128 x 128",
        ),
    ],
)
def test_blocks_that_do_not_divide_are_one_error(inputs, tokens, message):
    """Along the inputs in forward; along the tokens, which only the gradient of the weight sums over, in backward."""
    layer = QuantizedLinear(nn.Linear(inputs, 128), find_linear_recipe("fp8_deepseek"))
    with pytest.raises(ValueError, match=message):
        layer(torch.randn(tokens, inputs)).sum().backward()


def test_delayed_scales_are_those_of_the_step_before():
    linear, x, dy = example()
    layer = QuantizedLinear(linear, find_linear_recipe("fp8_delayed"))
    current = QuantizedLinear(linear, find_linear_recipe("fp8_current"))
    gradients(layer, x, dy)  # by scales of 1
    for got, want in zip(gradients(layer, x, dy), gradients(current, x, dy), strict=True):
        assert torch.equal(got, want)  # the same data again: yesterday's scales are today's


def test_recipes_replace_all_but_the_head_on_the_same_parameters():
    model = GPT(GPTConfig(2, 32, 2, vocab_size=64, max_seq_len=32))
    before = dict(model.named_parameters())
    quantize_linears(model, find_linear_recipe("mxfp8"))
    kinds = {name: type(module) for name, module in model.named_modules()}
    assert kinds["head"] is nn.Linear
    assert sum(kind is QuantizedLinear for kind in kinds.values()) == 2 * 6
    assert all(param is before[name] for name, param in model.named_parameters())
    with pytest.raises(ValueError, match="no nn.Linear is left"):
        quantize_linears(nn.Sequential(nn.ReLU()), find_linear_recipe("bf16"))


@pytest.mark.parametrize("name", LINEAR_RECIPES)
def test_a_model_learns_in_every_recipe(name):
    model = quantize_linears(GPT(GPTConfig(1, 128, 2, vocab_size=16, max_seq_len=32)), find_linear_recipe(name))
    tokens = torch.arange(32 * 8).remainder(16).reshape(8, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1


# ---- 4-bit integers ----


def test_split_bits_are_4_bit_integers_and_right_in_the_mean():
    dy = torch.randn(32, 16, generator=torch.Generator().manual_seed(0)) ** 3
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros_like(dy)
    for _ in range(2000):
        high, low, scale = split_bits(dy, generator)
        for part in (high, low):
            assert torch.equal(part, part.round()) and -8 <= float(part.min()) and float(part.max()) <= 7
        assert float(((16 * high + low) * scale - dy).abs().max()) <= scale * 1.001
        total += (16 * high + low) * scale
    assert float((total / 2000 - dy).abs().max()) < 5 * scale / 2 / 2000**0.5


def test_chances_sum_to_the_rows_kept_and_favour_the_large():
    scores = torch.tensor([100.0, 3.0, 2.0, 1.0, 0.0])
    chances = sampling_probabilities(scores, 3)
    assert chances.tolist() == pytest.approx([1.0, 1.0, 2 / 3, 1 / 3, 0.0])
    assert sampling_probabilities(scores, 4).tolist() == [1, 1, 1, 1, 0]


def test_int4_gradients_are_right_in_the_mean():
    """Given the rounded operands of forward, backward's sampling and splitting are unbiased."""
    linear, x, dy = example()
    x, dy = x[:, :8], dy[:, :8]
    layer = Int4Linear(linear, generator=torch.Generator().manual_seed(0))
    layer(x)
    draws = [gradients(layer, x, dy) for _ in range(600)]
    rounded = layer_without_sampling(layer, x, dy)
    for place in (1, 2):
        mean = torch.stack([draw[place] for draw in draws]).mean(0)
        spread = torch.stack([draw[place] for draw in draws]).std(0)
        off = (mean - rounded[place]).abs() / (spread / 600**0.5 + 1e-6)
        assert float((off > 4).float().mean()) < 0.002  # 4 standard errors: one in 16,000 by chance


def layer_without_sampling(layer: Int4Linear, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same layer with plain products."""

    class Plain(nn.Module):
        weight = layer.weight

        def forward(self, x):
            from lablib.precision.hadamard import hadamard_transform

            a = RoundToStep.apply(hadamard_transform(x, layer.block), layer.input_step)
            w = RoundToStep.apply(hadamard_transform(layer.weight, layer.block), layer.weight_step)
            return a @ w.T + layer.bias

    return gradients(Plain(), x, dy)


def test_the_steps_gradient_is_lsqs():
    """Equation 3: round(v) - v within, +-Q outside, times dy, scaled by 1 / sqrt(Q N)."""
    x = torch.tensor([0.2, -0.9, 3.0, -50.0])
    step = torch.tensor([0.5], requires_grad=True)
    dy = torch.tensor([1.0, 2.0, 3.0, 4.0])
    (got,) = torch.autograd.grad(RoundToStep.apply(x, step), step, dy)
    v = [0.4, -1.8, 6.0, -100.0]
    by_hand = [0 - v[0], -2 - v[1], 6 - v[2], -7.0]
    assert float(got) == pytest.approx(sum(d * b for d, b in zip(dy.tolist(), by_hand, strict=True)) / (7 * 4) ** 0.5)


def test_int4_layers_learn():
    generator = torch.Generator().manual_seed(0)
    layer = Int4Linear(nn.Linear(32, 16), generator=generator)
    target = torch.randn(16, 32, generator=generator) / 6
    x = torch.randn(256, 32, generator=generator)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(150):
        loss = ((layer(x) - x @ target.T) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
