"""Choice of an optimizer by recorded loss and available memory, with ties.

    1. out      optimizers that need more bytes per parameter than the budget, or too long a step
    2. first    of the rest, the one with the least loss, and all that are as good: the 95% interval of the difference
                ends at most `margin` above it
    3. next     the same for the rest, until all have a place

Within a place the loss does not count: the one that needs fewer bytes comes first, then the faster one. A wide interval
is no tie, so that an optimizer does not gain by little evidence.

"As good" is not transitive: B may be as good as A, C as good as B, and C not as good as A. So all of a place are
compared with its first one.

Cost: none.
Source: studies/optimizers.py, with its limits: small models, short runs, a few seeds.
Simplified: the budget is for memory in addition to weights and gradients during the optimizer's step. Activations are
freed by then: where backward holds more than a step needs, only state counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from lablib.signature import Range, checked
from lablib.studies.optimizer_trial import kinds, make_optimizers
from lablib.studies.optimizers import MARGIN_NATS, OptimizerResult, difference


@dataclass(frozen=True)
class RankedOptimizer:
    """One optimizer in the order of preference.

    `place`: 1 for the first and all that are as good; None for one that is out.
    """

    name: str
    place: int | None
    reason: str


@checked
def choose(
    results: Mapping[str, OptimizerResult],
    budget_bytes_per_parameter: Annotated[float, Range(ge=0)],
    slowest_step: Annotated[float, Range(ge=0)] = math.inf,
    needed_bytes_per_parameter: Mapping[str, float] | None = None,
    margin: Annotated[float, Range(ge=0)] = MARGIN_NATS,
) -> list[RankedOptimizer]:
    """The optimizers in order of preference; those that are out last.

    Arguments:
        budget_bytes_per_parameter: bytes per parameter during a step, in addition to weights and gradients.
        slowest_step: the longest allowed step, relative to AdamW's.
        needed_bytes_per_parameter: name -> bytes of your model, state and all other memory of a step; None: as
            recorded.
        margin: nats that may be lost for fewer bytes.
    """
    need = needed_bytes_per_parameter or {name: one.needed_bytes_per_parameter for name, one in results.items()}
    limits = budget_bytes_per_parameter, slowest_step
    out = {name: _why_out(result, need[name], *limits) for name, result in results.items()}
    left = sorted((name for name in results if not out[name]), key=lambda name: results[name].loss)
    choices: list[RankedOptimizer] = []
    place = 1
    while left:
        first = left[0]
        tied = [name for name in left if difference(results[name].losses, results[first].losses).at_most <= margin]
        tied.sort(key=lambda name: (need[name], results[name].step_ratio))
        choices += [RankedOptimizer(name, place, _why_in(results, name, first, len(tied), need[name])) for name in tied]
        left = [name for name in left if name not in tied]
        place += len(tied)
    return choices + [RankedOptimizer(name, None, reason) for name, reason in out.items() if reason]


@checked
def state_of(model: nn.Module) -> dict[str, float]:
    """State bytes per parameter of each optimizer for a GPT, with the settings of the trials.

    A model on the device "meta" is enough: `GPT(model_config("gpt2"), device="meta")`. Nothing is trained or changed.
    """
    numel = sum(param.numel() for param in model.parameters())
    found = {}
    for name in kinds(1):
        optimizers = make_optimizers(name, model, 1e-3, 0.0)
        states = [
            optimizer.new_state(param.detach().to("meta"), group)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for param in group["params"]
        ]
        tensors = (value for state in states for value in state.values() if isinstance(value, Tensor))
        found[name] = sum(tensor.nbytes for tensor in tensors) / numel
    return found


def _why_out(result: OptimizerResult, needed: float, budget: float, slowest: float) -> str:
    if needed > budget:
        return f"needs {needed:.2f} bytes per parameter, and the budget is {budget:g}."
    if result.step_ratio > slowest:
        return f"a training step takes {result.step_ratio:.2f} of AdamW's, and {slowest:g} is allowed."
    return ""


def _why_in(results: Mapping[str, OptimizerResult], name: str, first: str, num_tied: int, needed: float) -> str:
    result = results[name]
    cost = f"needs {needed:.2f} bytes per parameter; a training step takes {result.step_ratio:.2f} of AdamW's time"
    if name == first:
        tie = f", and {num_tied - 1} more as good" if num_tied > 1 else ""
        return f"the least loss of the rest, {result.loss:.3f} nats{tie}; {cost}."
    apart = difference(result.losses, results[first].losses)
    return f"as good as {first}, at most {apart.at_most:.3f} nats more; {cost}."
