"""Memory of a training step of any published Transformer: the planner's moments in order.

Only the plain GPT has a list of all operators (`memory/step_script.py`). For other models (gated MLPs, fewer heads of
keys, experts, latents) the planner has closed forms of the bytes kept for backward, and the moments at which an eager
program peaks (`plan/eager/memory.py`). Here they are in the order of the program:

    each layer forward | loss | head backward | each layer backward, 3 to 5 moments | embedding | optimizer

All are affine in the micro-batch, so two of them, 1 and 2, give both numbers of `StepTrace`.

Source: lablib/plan/eager/memory.py, with the same peak. Simplified: as there; FLOPs are shared out evenly over layers.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lablib.memory.step_trace import Op, StepOptions, StepTrace
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import forward_flops
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan.arguments import setup_of
from lablib.plan.derating import IDEAL
from lablib.plan.eager.memory import Moment, Stage, stage_of
from lablib.plan.parallel import Parallel
from lablib.plan.stack import find_stack
from lablib.plan.step import step_of
from lablib.record.allocations import CATEGORIES


def outline(model: Transformer, seq_len: int, kind: StepOptions) -> StepTrace:
    """One step of the model, its moments as operators."""
    first, second = (_moments(model, _stage(model, seq_len, kind, micro_batch), kind) for micro_batch in (1, 2))
    one, two = (np.array([_by_category(moment) for _, moment in moments]) for moments in (first, second))
    per_sequence, fixed = np.rint(two - one).astype(np.int64), np.rint(2 * one - two).astype(np.int64)
    # Tokens and targets are there all the time.
    per_sequence[:, CATEGORIES.index("other")] += 16 * seq_len * kind.num_microbatches
    ops = tuple(op for op, _ in first)
    return StepTrace(ops, fixed, per_sequence, _work(ops, model, seq_len, kind))


def _stage(model: Transformer, seq_len: int, kind: StepOptions, micro_batch: int) -> Stage:
    """The planner's only stage: one device, one micro-batch in flight."""
    stack = replace(find_stack("torch"), has_master=kind.has_master)
    policy = f"every {min(kind.every, model.num_layers)}" if kind.every else "none"
    precision, batch = "bfloat16" if kind.width == 2 else "float32", micro_batch * kind.num_microbatches
    one_rank = (model, "dgx-h100", Parallel(), batch, micro_batch, seq_len)
    setup = setup_of(*one_rank, precision=precision, recompute=policy, stack=stack, derating=IDEAL)
    return stage_of(setup, step_of(setup), 0, model.num_layers)


def _moments(model: Transformer, stage: Stage, kind: StepOptions) -> list[tuple[Op, Moment]]:
    """Every moment of the step, in order, after the state before the step."""
    numbers, layers = float(stage.gradient) / kind.width, model.num_layers
    states = numbers * (kind.num_moments * kind.state_width + 4 * kind.has_master)
    found = [(Op("weights, state and data", "before the step", ""), Moment())]
    for number in range(kind.num_microbatches):
        summed = Moment(gradient=stage.gradient) if number else Moment()
        moments = [*_forward(stage, layers), *_backward(stage, layers, is_later=number > 0)]
        found += [(op, summed.plus(moment)) for op, moment in moments]
    widened = numbers * (4 if kind.has_master else kind.width)
    temporary = numbers * kind.state_width * kind.temporary_share
    found.append((Op("optimizer step", "optimizer", ""), Moment(gradient=widened, other=temporary)))
    own = Moment(parameter=numbers * kind.width, communication=states)  # one device has no communication: see below
    return [(op, own.plus(moment)) for op, moment in found]


def _by_category(moment: Moment) -> list[float]:
    """In the order of CATEGORIES. On one device nothing is communicated: that field carries the optimizer's state."""
    sizes = {"parameter": moment.parameter, "gradient": moment.gradient, "optimizer state": moment.communication}
    sizes |= {"activation": moment.activation, "communication": 0.0, "other": moment.other}
    return [float(sizes[name]) for name in CATEGORIES]


def _forward(stage: Stage, layers: int) -> Iterator[tuple[Op, Moment]]:
    for layer in range(layers):
        kept = stage.entering + stage.tokens + (layer + 1) * stage.saved
        yield Op("layer, forward", "forward", "", layer), Moment(activation=kept, other=stage.passing)


def _backward(stage: Stage, layers: int, is_later: bool) -> Iterator[tuple[Op, Moment]]:
    """One micro-batch, from the loss on. From the second on, the caller counts the gradient sums."""
    held = stage.holds(1)
    yield Op("loss and its gradient", "backward", ""), held.plus(stage.at_head())
    yield Op("head, backward", "backward", ""), held.plus(stage.at_head_weight(is_later))
    held = held.plus(Moment(0.0 if is_later else stage.head_gradient, other=stage.tied))
    for above in range(layers):
        left = Moment(0.0 if is_later else above * stage.layer_gradient, -above * stage.saved)
        for moment in stage.at_layer(is_top=above == 0, is_later=is_later):
            yield Op("layer, backward", "backward", "", layers - 1 - above), held.plus(left).plus(moment)
    summed = Moment(gradient=0.0 if is_later else stage.gradient)
    yield Op("embedding, backward", "backward", ""), summed.plus(stage.at_embedding(is_later))


def _work(ops: tuple[Op, ...], model: Transformer, seq_len: int, kind: StepOptions) -> np.ndarray:
    """FLOPs a sequence: of each layer the mean, backward twice forward; the optimizer moves its numbers."""
    flops = {name: seq_len * part for name, part in forward_flops(model, seq_len, causal=True).items()}
    layer = (sum(flops.values()) - flops["head"]) / model.num_layers
    times = Counter((op.name, op.layer) for op in ops)
    whole = {"layer, forward": layer, "layer, backward": (3 if kind.every else 2) * layer}
    whole |= {"loss and its gradient": flops["head"], "head, backward": 2 * flops["head"]}
    rows = [[kind.num_microbatches * whole.get(op.name, 0.0) / times[op.name, op.layer], *[0.0] * 4] for op in ops]
    numbers = transformer_parameters(model).total
    rows[-1][1] = 2.0 * numbers * (kind.num_moments + 1) * kind.state_width
    return np.array(rows)
