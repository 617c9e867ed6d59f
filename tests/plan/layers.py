"""A layer's list of operators and its price, for tests."""

from lablib.models.transformer import Transformer
from lablib.plan.layer import Cut, Sizes, Work, layer, work_of
from lablib.plan.machine import Machine


def layer_work(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """The price of an average layer."""
    return work_of(machine, layer(Cut.of(machine, model, sizes)))
