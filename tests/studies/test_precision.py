"""What was recorded is what the program gives; a layer's time in a recipe is its products' and its passes'."""

import pytest
from torch import nn

from lablib.cost.matmul import matmul_time_s
from lablib.data import load_corpus
from lablib.hardware import DEVICES
from lablib.precision.equal_loss import speed_claim
from lablib.precision.int4_training import Int4Linear
from lablib.precision.quantized_linear import LINEAR_RECIPES, QuantizedLinear, find_linear_recipe
from lablib.precision.recipe_speed import linear_step_time_s, quantizing_time_s
from lablib.studies.precision import RECIPE_NAMES, excess_losses, model_in, recipe_losses, recorded_recipe_runs

H100, B200, V100 = (DEVICES[name] for name in ("H100-80GB-SXM", "B200-SXM", "V100-32GB-SXM2"))


def test_every_recipe_is_recorded_with_what_it_ran_on():
    runs = recorded_recipe_runs()
    assert tuple(runs.losses) == RECIPE_NAMES and {len(losses) for losses in runs.losses.values()} == {200}
    assert {"command", "date", "torch", "python", "machine", "corpus_sha256"} <= set(runs.about)


def test_another_file_is_refused(tmp_path):
    for text in ("[1]", '{"losses": {}}', "{"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError):
            recorded_recipe_runs(tmp_path / "x.json")


@pytest.mark.parametrize("recipe", ["fp32", "fp8_delayed", "int4"])
def test_the_first_steps_repeat(recipe):
    runs = recorded_recipe_runs()
    if load_corpus().sha256 != runs.about["corpus_sha256"]:
        pytest.skip("the corpus is Python's own text: another version's differs")
    first, *others = recipe_losses(recipe, 3)
    assert first == pytest.approx(runs.losses[recipe][0], abs=2e-3)
    # Another number of threads, or another CPU, adds in another order. In 4 bits that moves some codes by a whole step,
    # and the sampling of gradients with them: 0.003 nats between one thread and two.
    assert others == pytest.approx(runs.losses[recipe][1:3], abs=2e-2 if recipe == "int4" else 2e-3)


def test_recipes_stay_near_bf16_in_this_small_run():
    """Within 0.02 nats at the end, better or worse: a small model has no outliers to speak of."""
    _, excess = excess_losses(recorded_recipe_runs().losses)
    for name, series in excess.items():
        assert abs(series[-1]) < 0.02, name
    losses = recorded_recipe_runs().losses
    claim = speed_claim(losses["fp8_current"], 1.0, losses["bf16"], 1.5, target=2.7, window=20)
    assert claim.throughput == 1.5 and 1.2 < claim.to_equal_loss < 1.8


def test_excess_by_hand():
    losses = {"bf16": [4.0, 2.0, 1.0, 1.0, 9.0], "mxfp4": [5.0, 3.0, 1.0, 4.0]}
    assert excess_losses(losses, window=2) == ([2, 4], {"mxfp4": [1.0, 1.5]})
    with pytest.raises(ValueError, match="reference"):
        excess_losses(losses, "fp8")
    for window in (0, 5):
        with pytest.raises(ValueError, match="window must be from 1 to the 4 steps"):
            excess_losses(losses, window=window)


def test_models_differ_in_their_linear_layers_alone():
    kinds = {"fp32": nn.Linear, "mxfp8": QuantizedLinear, "int4": Int4Linear}
    for recipe, kind in kinds.items():
        model = model_in(recipe)
        assert type(model.head) is nn.Linear
        linears = [one for name, one in model.named_modules() if name.endswith(("query", "up", "down"))]
        assert len(linears) == 6 and {type(one) for one in linears} == {kind}
    with pytest.raises(ValueError, match="recipe"):
        recipe_losses("fp7")


# ---- the time of a layer ----


def test_in_bf16_it_is_three_products():
    sizes = (4096, 1024, 2048)
    t, k, n = sizes
    products_s = [matmul_time_s(*mnk, "bfloat16", H100) for mnk in ((t, n, k), (t, k, n))]
    products_s.append(matmul_time_s(n, k, t, "bfloat16", H100, rows=(n, k)))
    expected_s = float(sum(products_s)) + 3 * H100.queued_s
    assert linear_step_time_s(H100, find_linear_recipe("bf16"), *sizes) == pytest.approx(expected_s, rel=1e-12)
    assert quantizing_time_s(H100, find_linear_recipe("bf16"), *sizes) == 0


def test_passes_are_counted_by_hand():
    """Sizes beyond the cache: 2 bytes are read, 1 and 1 written; without delay 2 more are read, in one more kernel."""
    t, k, n = 2**18, 2**14, 2**13
    numbers = t * k + k * n + t * n
    rate = B200.memory_bandwidth_bytes_per_s * B200.memory_efficiency
    delayed_s = 3 * B200.queued_s + 4 * numbers / rate
    current_s = 6 * B200.queued_s + 6 * numbers / rate
    nvfp4_s = 6 * B200.queued_s + (2 + 2 * 4.5 / 8 + 2) * numbers / rate
    for name, expected_s in (("fp8_delayed", delayed_s), ("fp8_current", current_s), ("nvfp4", nvfp4_s)):
        assert quantizing_time_s(B200, find_linear_recipe(name), t, k, n) == pytest.approx(expected_s, rel=1e-9), name


@pytest.mark.parametrize("name", [name for name in LINEAR_RECIPES if name != "bf16"])
def test_wide_layers_gain_more_than_narrow_ones_and_less_than_peaks(name):
    def gain(width: int) -> float:
        sizes = (8192, width, 4 * width)
        return linear_step_time_s(B200, find_linear_recipe("bf16"), *sizes) / linear_step_time_s(
            B200, find_linear_recipe(name), *sizes
        )

    assert gain(256) < gain(1024) < gain(8192) < (4 if "fp4" in name else 2)


def test_a_recipe_that_the_device_lacks_is_refused():
    for device, name in ((V100, "mxfp8"), (H100, "nvfp4")):
        with pytest.raises(ValueError, match=f"{device.name} does not multiply e.*: choose one of .*fp16"):
            linear_step_time_s(device, find_linear_recipe(name), 128, 128, 128)
