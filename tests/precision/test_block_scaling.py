"""Recipes against a naive quantizer of one block at a time, their specifications, and what blocks are for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.precision.block_scaling import RECIPES, DelayedScale, Recipe, find_recipe, quantize
from lablib.precision.formats import E4M3, E8M0, FP32
from lablib.precision.rounding import round_by_table

BLOCKED = [recipe for recipe in RECIPES.values() if recipe.block]


def naive(x: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """What the specifications say, one block after another, in Python's numbers."""
    b_r, b_c = recipe.block or x.shape
    tensor_scale = float(x.abs().max()) / (6 * 448) or 1.0 if recipe.has_tensor_scale else 1.0
    result = torch.empty_like(x, dtype=torch.float64)
    for r in range(0, x.shape[0], b_r):
        for c in range(0, x.shape[1], b_c):
            block = x[r : r + b_r, c : c + b_c].double()
            max_abs = float(block.abs().max())
            if max_abs == 0:
                scale = 1.0
            elif recipe.scale_format is E8M0:
                scale = 2.0 ** (math.floor(math.log2(max_abs)) - math.floor(math.log2(recipe.format.largest)))
            elif recipe.scale_format is FP32:
                scale = max_abs / recipe.format.largest
            else:
                wanted = torch.tensor([max_abs / recipe.format.largest / tensor_scale], dtype=torch.float64)
                scale = float(round_by_table(wanted, E4M3)) or 1.0
            scale *= tensor_scale
            result[r : r + b_r, c : c + b_c] = round_by_table(block / scale, recipe.format) * scale
    return result


@given(
    recipe=st.sampled_from([recipe for recipe in RECIPES.values() if recipe.scale_format]),
    rows=st.integers(1, 2),
    columns=st.integers(1, 3),
    power=st.integers(-20, 20),
    seed=st.integers(0, 1000),
)
def test_equals_the_naive_quantizer(recipe, rows, columns, power, seed):
    b_r, b_c = recipe.block or (5, 7)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows * b_r, columns * b_c, generator=generator) * 2.0**power
    x = x * torch.exp(2 * torch.randn(x.shape, generator=generator))
    got, want = quantize(x, recipe).dequantize().double(), naive(x, recipe)
    # Scales in float32 against float64: where x / s lies on a border, one number of a thousand may fall elsewhere.
    off = (got - want).abs() > 1e-5 * want.abs()
    assert off.float().mean() <= 0.001


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_zeros_and_their_blocks_stay_zero(recipe):
    x = torch.zeros(128, 256)
    assert torch.equal(quantize(x, recipe).dequantize(), x)
    x[0, 0] = 3.0
    assert int((quantize(x, recipe).dequantize() != 0).sum()) == 1


@pytest.mark.parametrize(
    ("name", "bits"),
    [("tensor_e4m3", 8), ("deepseek_activation", 8.25), ("mxfp8", 8.25), ("mxfp4", 4.25), ("nvfp4", 4.5), ("bf16", 16)],
)
def test_bits_a_number_are_those_of_the_papers(name, bits):
    recipe = find_recipe(name)
    assert recipe.bits_per_number == bits
    whole_tensor_bytes = 4 if name in ("tensor_e4m3", "nvfp4") else 0
    assert quantize(torch.ones(128, 256), recipe).size_bytes == 128 * 256 * bits / 8 + whole_tensor_bytes


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_an_outlier_harms_its_block_alone(name):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 256, generator=generator)
    spoiled = x.clone()
    spoiled[0, 0] = 1000.0
    recipe = find_recipe(name)
    assert recipe.block is not None
    harmed = (quantize(x, recipe).dequantize() != quantize(spoiled, recipe).dequantize())[0].nonzero().flatten()
    if name == "mxfp4":  # its scales know nothing of the tensor
        assert int(harmed.max()) < recipe.block[1]
    per_tensor = quantize(spoiled, Recipe("tensor", recipe.format)).dequantize()
    assert int((per_tensor[1:] != 0).sum()) == 0  # all else is lost under one scale
    assert int((quantize(spoiled, recipe).dequantize()[1:, 128:] != 0).sum()) > 200


def test_smaller_blocks_have_smaller_errors_under_outliers():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1024, generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.002] *= 50
    errors = [
        float((quantize(x, Recipe("try", find_recipe("mxfp4").format, (1, b))).dequantize() - x).norm())
        for b in (1024, 256, 64, 16)
    ]
    assert errors == sorted(errors, reverse=True)


def test_stochastic_codes_are_right_in_the_mean():
    x = torch.randn(1, 16, generator=torch.Generator().manual_seed(0))
    recipe = find_recipe("nvfp4").stochastic()
    generator = torch.Generator().manual_seed(1)
    mean = sum(quantize(x, recipe, generator=generator).dequantize() for _ in range(4000)) / 4000
    # The largest is a code itself or saturates by the rounding of its scale; the rest is unbiased.
    inside = x.abs() < 0.9 * x.abs().max()
    assert float((mean - x)[inside].abs().max()) < 5 * float(x.abs().max()) / 6 / 4000**0.5


def test_blocks_that_do_not_divide_are_refused():
    with pytest.raises(
        ValueError, match=r"blocks of 1 x 32 must divide the matrix for mxfp8: got 4 x 40; pad it to 4 x 64"
    ):
        quantize(torch.ones(4, 40), find_recipe("mxfp8"))
    with pytest.raises(ValueError, match="scales blocks; leave it out"):
        quantize(torch.ones(4, 32), find_recipe("mxfp8"), scale=1.0)


def test_a_delayed_scale_is_the_largest_of_its_window():
    delayed = DelayedScale(E4M3, window=2)
    assert delayed.scale == 1.0
    for max_abs, expected in ((4.0, 4), (448.0, 448), (2.0, 448), (1.0, 2)):
        delayed.record(torch.tensor([-max_abs, 0.5]))
        assert delayed.scale == expected / 448


def test_what_outgrows_a_delayed_scale_saturates():
    quantized = quantize(torch.tensor([[1.0, 100.0]]), find_recipe("tensor_e4m3"), scale=2 / 448)
    assert quantized.dequantize().tolist() == [[1.0, 2.0]]
