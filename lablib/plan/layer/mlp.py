"""The MLP on one rank: norm, up, activation, down, residual.

    products    [R, D] x [D, F / t] (twice if gated), [R, F / t] x [F / t, D]

Legend, source and what is simplified: the package's own (`__init__.py`).
"""

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Transformer
from lablib.plan.layer.parts import linear, passes, residual, tensor_exchange
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine


def mlp(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Norm, the MLP, residual."""
    width, stack = on.width, on.stack
    outside = at.rows * model.d_model / at.sequence_shards
    work = passes(on, outside, *stack.passes_norm, saved_bytes=outside * width)
    work = work.plus(inner_mlp(on, model, at, at.rows, model.hidden_size / at.tensor, at.sequence_shards))
    return work.plus(tensor_exchange(on, model, at)).plus(residual(on, outside))


def inner_mlp(
    on: Machine,
    model: Transformer,
    at: Sizes,
    rows: Numbers,
    hidden: Numbers,
    shards: Numbers,
    matrices: Numbers = 1,
) -> Work:
    """Up, activation, down; of `matrices` experts the same, each with its share of the rows."""
    gated = model.activation == "swiglu"
    up = linear(on, rows, model.d_model, hidden * (2 if gated else 1), matrices=matrices)
    forward, backward = on.stack.passes_activation
    # A gated activation reads two tensors for one, and its gradient writes two.
    extra = 1 if gated else 0
    act = passes(on, rows * hidden, forward + extra, backward + 2 * extra, rows * hidden * on.width * (1 + extra))
    down = linear(on, rows, hidden, model.d_model, matrices=matrices)
    work = up._replace(saved_bytes=up.saved_bytes / shards).plus(act).plus(down)
    # In backward: the gradients of the activation and of what it read; the input and its gradient, whole again.
    whole = (shards > 1) * 2 * rows * model.d_model
    return work._replace(peak_bytes=(rows * hidden * (2 + extra) + whole) * on.width)
