"""Recorded training losses of one model with every precision recipe of linear layers, on real text.

The model, its initial weights, the text and its order are the same; only the linear layers' products differ. So
differences in loss come from rounding. An emulated step takes a quarter of a second, so the losses of 200 steps are
kept as data (`recorded_recipe_runs`); `benchmarks/recipe_runs.py` makes them again. The learning rate is the best of
several in FP32: at too large a rate, a coarse format can seem better than FP32.

Cost: a run of 200 steps takes about 50 seconds of one core; in FP32, without emulation, 5.
Shapes: B T tokens per step, V losses.
Source: recipes and their sources: lablib/precision/quantized_linear.py, lablib/precision/int4_training.py.
Simplified: a model of 0.4 million parameters, one seed. At the end all are within 0.02 nats of BF16, and early on MXFP4
and INT4 even lose less: so small a run cannot distinguish recipes, and does not support 4 bits. Published runs find
differences at a thousand times the size, where outliers are larger (arXiv 2509.25149, section 4).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from lablib.data import batches, load_corpus, train_val_split
from lablib.errors import unknown_name
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.models.drawing import generator_beside
from lablib.precision.int4_training import Int4Linear
from lablib.precision.quantized_linear import LINEAR_RECIPES, find_linear_recipe, quantize_linears
from lablib.signature import OneOf, checked
from lablib.text.files import parse_json, read_text

RECIPE_NAMES = ("fp32", *LINEAR_RECIPES, "int4")
RECORDED = Path(__file__).with_name("precision.json")
CONFIG = GPTConfig(2, 128, 4, vocab_size=256, max_seq_len=64)


@dataclass(frozen=True, slots=True)
class RecipeRuns:
    """Losses of the same run in several recipes."""

    about: dict[str, Any]  # command, date, versions and machine
    losses: dict[str, list[float]]  # recipe -> loss of each step in nats per byte, before the step


@checked
def recipe_losses(recipe: str, num_steps: int = 200, seed: int = 0) -> Iterator[float]:
    """The loss of each step of a small GPT on real text, with linear layers in a recipe.

    `recipe`: one of `RECIPE_NAMES`; the head stays in FP32 in all of them. Raises ValueError: an unknown recipe.
    """
    model = model_in(recipe, seed)
    return _train(model, num_steps, seed)


def _train(model: nn.Module, num_steps: int, seed: int) -> Iterator[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train, _ = train_val_split(load_corpus())
    for inputs_BT, targets_BT in islice(batches(train, 8, CONFIG.max_seq_len, seed), num_steps):
        loss = next_token_loss(model(inputs_BT), targets_BT)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@checked
def model_in(recipe: Annotated[str, OneOf(RECIPE_NAMES)], seed: int = 0) -> nn.Module:
    """The model, with the linear layers of a recipe."""
    model = GPT(CONFIG, seed=seed)
    if recipe == "fp32":
        return model
    if recipe != "int4":
        return quantize_linears(model, find_linear_recipe(recipe), seed=seed)
    generator = generator_beside(model, seed)
    for name, child in list(model.blocks.named_modules()):
        if isinstance(child, nn.Linear):
            model.blocks.set_submodule(name, Int4Linear(child, generator=generator))
    return model


@checked
def recorded_recipe_runs(path: Path = RECORDED) -> RecipeRuns:
    """The recorded runs. Raises OSError, ValueError: no such file, or a file of another kind."""
    saved = parse_json(read_text(path))
    if not isinstance(saved, dict) or saved.keys() != {"about", "losses"}:
        raise ValueError(f"{path} must hold about and losses, as benchmarks/recipe_runs.py writes them.")
    return RecipeRuns(saved["about"], saved["losses"])


@checked
def excess_losses(
    losses: Mapping[str, Sequence[float]], reference: str = "bf16", window: int = 20
) -> tuple[list[int], dict[str, list[float]]]:
    """Loss of each run minus the reference's, as means over windows of steps: last steps of the windows, series.

    Both use the same text in the same steps, so most of their scatter cancels. Raises ValueError: the reference is not
    among the runs, or a window below 1 or longer than the shortest run.
    """
    if reference not in losses:
        raise unknown_name("reference", reference, list(losses))
    num_steps = min(map(len, losses.values()))
    if not 1 <= window <= num_steps:
        raise ValueError(f"window must be from 1 to the {num_steps} steps of the runs: got {window}.")
    ends = list(range(window, num_steps + 1, window))
    means = {name: [sum(run[end - window : end]) / window for end in ends] for name, run in losses.items()}
    excess = {
        name: [a - b for a, b in zip(run, means[reference], strict=True)]
        for name, run in means.items()
        if name != reference
    }
    return ends, excess
