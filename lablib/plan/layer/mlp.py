"""The MLP on one rank: norm, up, activation, down, residual.

    products    [R, D] x [D, F / t] (twice if gated), [R, F / t] x [F / t, D]

Legend, source, simplifications: `__init__.py`.
"""

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Transformer
from lablib.plan.layer.parts import linear, norm, passes, residual, tensor_exchange
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine


def mlp(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Norm, the MLP, residual."""
    outside = sizes.rows * model.d_model / sizes.sequence_shards
    work = norm(machine, model, outside)
    work = work.plus(
        inner_mlp(machine, model, sizes, sizes.rows, model.hidden_size / sizes.tensor, sizes.sequence_shards)
    )
    return work.plus(tensor_exchange(machine, model, sizes)).plus(residual(machine, outside))


def inner_mlp(
    machine: Machine,
    model: Transformer,
    sizes: Sizes,
    rows: Numbers,
    hidden: Numbers,
    shards: Numbers,
    matrices: Numbers = 1,
) -> Work:
    """Up, activation, down; or of `matrices` experts, each with its share of the rows."""
    gated = model.activation == "swiglu"
    up = linear(machine, rows, model.d_model, hidden * (2 if gated else 1), matrices=matrices)
    forward, backward = machine.stack.passes_activation
    # A gated activation reads two tensors instead of one, and its gradient writes two.
    extra = 1 if gated else 0
    act = passes(
        machine, rows * hidden, forward + extra, backward + 2 * extra, rows * hidden * machine.width * (1 + extra)
    )
    down = linear(machine, rows, hidden, model.d_model, matrices=matrices)
    work = up._replace(saved_bytes=up.saved_bytes / shards).plus(act).plus(down)
    # In backward: the gradients of the activation and of its inputs; the input and its gradient, whole again.
    whole = (shards > 1) * 2 * rows * model.d_model
    return work._replace(peak_bytes=(rows * hidden * (2 + extra) + whole) * machine.width)
