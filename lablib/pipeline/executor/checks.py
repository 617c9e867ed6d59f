"""Checks of the arguments of a pipeline, before any communication."""

from collections.abc import Sequence
from math import isfinite

from torch import Tensor, nn

from lablib.pipeline.plan import Plan
from lablib.signature import shown
from lablib.text.units import plural


def check_ranks(plan: Plan, num_ranks: int) -> None:
    """Raises ValueError unless there are as many ranks as the plan has."""
    if num_ranks != plan.num_stages:
        raise ValueError(
            f"{plan.name}: the plan is for {plural(plan.num_stages, 'ranks')}, and the group has {num_ranks}: launch "
            f"{plan.num_stages}, or make the plan for {num_ranks}."
        )


def check_pieces(plan: Plan, pieces: Sequence[nn.Module]) -> None:
    """Raises ValueError unless there are as many pieces as the plan has, each with a layer."""
    if len(pieces) != plan.num_pieces:
        raise ValueError(
            f"{plan.name}: the plan has {plural(plan.num_pieces, 'pieces')}: got {len(pieces)}; "
            f"try cut(model, {plan.num_pieces})."
        )
    for number, piece in enumerate(pieces):
        if isinstance(piece, (nn.Sequential, nn.ModuleList)) and not len(piece):
            raise ValueError(f"every piece needs a layer: piece {number} has none; cut the model into fewer.")


def check_micro_batches(
    plan: Plan, inputs: Sequence[Tensor], targets: Sequence[Tensor], weights: Sequence[float] | None
) -> Sequence[float]:
    """The weights of the micro-batches' losses. Raises ValueError if anything does not match the plan."""
    m = plan.num_microbatches
    for name, given in (("inputs", inputs), ("targets", targets), ("weights", weights)):
        if given is not None and len(given) != m:
            raise ValueError(
                f"{plan.name}: the plan has {plural(m, 'micro-batches')}: got {len(given)} {name}; cut the batch into "
                f"{m}, or make the plan for {len(given)}."
            )
    if weights is not None:
        if not all(isfinite(weight) for weight in weights):
            raise ValueError(f"weights must be finite: got {shown(list(weights))}; try token_weights(targets).")
        return weights
    for name, tensors in (("inputs", inputs), ("targets", targets)):
        if len(shapes := sorted({tuple(x.shape) for x in tensors})) > 1:
            raise ValueError(
                f"the mean losses of micro-batches of unequal size weigh unequally: {name} have shapes {shapes[0]} and "
                f"{shapes[-1]}; pass weights, such as token_weights(targets)."
            )
    return [1 / m] * m


def token_weights(targets: Sequence[Tensor], ignored: int = -100) -> list[float]:
    """Each micro-batch's share of the tokens with a loss (target not `ignored`). ValueError: one without any."""
    counts = [int((target != ignored).sum()) for target in targets]
    if not all(counts):
        raise ValueError(
            f"each micro-batch needs a token with a loss: number {counts.index(0)} has none; leave it out of the batch."
        )
    return [count / sum(counts) for count in counts]
