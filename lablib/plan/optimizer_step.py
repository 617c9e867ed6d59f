"""The optimizer's step on one rank: so little is computed that it takes the time of the bytes it moves.

    time = own parameters * (bytes the optimizer moves for one + 12) / bandwidth        12: clipping reads a gradient in
                                                                                        32 bits, unscaling reads and
                                                                                        writes it
    own  = P / s + E / n                  with ZeRO-1 and more; P + E without

With the states in the host's memory what counts is its link: gradients go there and parameters come back,

    time = own parameters * (g + w) / bandwidth of the link

Legend: P parameters on a rank but for experts, s ranks that share their states; E of its experts, n ranks that have the
same ones; g and w bytes of a gradient and of a parameter.

Source: Micikevicius et al., 2017, arXiv 1710.03740 (master weights); Rajbhandari et al., 2019, arXiv 1910.02054; Ren et
al., "ZeRO-Offload", 2021, arXiv 2101.06840 (the host's memory). The optimizers' own sources stand in optimizers.py.
Simplified: the host's own work is taken to be faster than its link; all parameters are in matrices of D rows and
columns, so for Adafactor and GaLore vectors are not told apart; an eager stack's passes stand in eager/optimizer.py.
"""

from lablib.cost.arrays import Numbers
from lablib.plan.eager import optimizer as eager_optimizer
from lablib.plan.held import Held
from lablib.plan.setup import Choices, Split, has_both_ends

_CLIPPING_BYTES = 12


def optimizer_step_s(choices: Choices, split: Split, held: Held, layers: Numbers) -> Numbers:
    """Seconds of one update of a stage's parameters; 0 where only adapters are trained.

    Arguments:
        held: parameters of a layer and of the ends, on one rank.
        layers: of a stage, in the mean.
    """
    on = choices.machine
    if choices.trainable != "all":
        return 0.0 * layers
    if on.stack.is_eager and choices.optimizer.name in eager_optimizer.PASSES:
        return eager_optimizer.step_s(choices, split, held, layers)
    own = _own_parameters(choices, split, held, layers)
    if "optimizer" in choices.offload:
        return own * (on.gradient_bytes + on.width) / choices.host_link.bandwidth_bytes_per_s
    width = choices.model.d_model
    step_bytes = choices.optimizer.moved_bytes(
        1.0, rows=width, columns=width, has_master=on.has_master, param_bytes=on.width, grad_bytes=4
    )
    return on.stream_s(own * (step_bytes + _CLIPPING_BYTES))


def _own_parameters(choices: Choices, split: Split, held: Held, layers: Numbers) -> Numbers:
    """Parameters that this rank updates: all it has, or with ZeRO its share."""
    outside = held.embedding + has_both_ends(choices, split) * held.head
    shards = split.shards if choices.zero_stage else split.shards * 0 + 1
    expert_shards = split.expert_copies if choices.zero_stage else 1
    return (layers * held.layer + outside) / shards + layers * held.expert_layer / expert_shards
