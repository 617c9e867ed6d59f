"""Experts instead of the MLP: router, tokens to their experts and back, one grouped product, shared experts.

R k / t tokens of this rank (with sequence parallelism; otherwise R k) go to e ranks and back, gathered by the x ranks
that share an expert: E / e products in one kernel, over R k x / t rows together, of F / x hidden width. The exchange
is in `dispatch.py`.

Legend, source, simplifications: `__init__.py`.
"""

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Experts, Transformer
from lablib.plan.layer import dispatch
from lablib.plan.layer.mlp import inner_mlp
from lablib.plan.layer.parts import linear, norm, residual, tensor_exchange
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine, PassTime


def experts(machine: Machine, model: Transformer, mixture: Experts, sizes: Sizes) -> Work:
    """Norm, router, tokens to their experts and back (two all-to-alls a pass), shared experts, residual."""
    width, d_model = machine.width, model.d_model
    # With sequence parallelism each tensor rank routes and sends its own tokens; otherwise each handles all tokens.
    rows, is_own = sizes.rows / sizes.sequence_shards, 1.0 * (sizes.sequence_shards == sizes.tensor)
    work = norm(machine, model, rows * d_model)
    work = work.plus(linear(machine, rows, d_model, mixture.num_experts, machine.plain))
    local, sent = mixture.num_experts / sizes.expert, rows * mixture.num_active
    # All expert ranks together send as many tokens as this rank sends; ranks that share an expert gather theirs.
    arrived = sent * (1 + is_own * (sizes.expert_tensor - 1))
    work = work.plus(_dispatch(machine, model, mixture, sizes, sent, arrived, is_own))
    routed = inner_mlp(machine, model, sizes, arrived, mixture.d_ff / sizes.expert_tensor, 1, local)
    # Also the gradients of the experts' inputs and outputs.
    work = work.plus(routed._replace(peak_bytes=routed.peak_bytes + 2 * arrived * d_model * width))
    if mixture.num_shared:
        hidden = mixture.num_shared * mixture.d_ff / sizes.tensor
        shared = inner_mlp(machine, model, sizes, sizes.rows, hidden, sizes.sequence_shards)
        # The router has kept their input, though not in 8 bits.
        gathered = 0.0 if machine.is_narrow else rows * d_model * width
        work = work.plus(shared._replace(saved_bytes=shared.saved_bytes - gathered))
    summed = 1.0 if mixture.num_shared else 1 - is_own
    return work.plus(tensor_exchange(machine, model, sizes).times(summed)).plus(residual(machine, rows * d_model))


def _dispatch(
    machine: Machine,
    model: Transformer,
    mixture: Experts,
    sizes: Sizes,
    sent: Numbers,
    arrived: Numbers,
    is_own: Numbers,
) -> Work:
    """Tokens to experts and back: copied k times in order of ranks, exchanged, gathered, sorted by experts."""
    row_bytes = model.d_model * machine.width
    tokens = sent / mixture.num_active
    exchange_s = 2 * dispatch.exchange_s(machine, mixture, tokens, row_bytes, sizes.expert, sizes.expert_tensor)
    gather_s = is_own * 2 * machine.collective_s("all_gather", arrived * row_bytes, sizes.expert_tensor)
    is_sorted = 1.0 * (mixture.num_experts > sizes.expert)  # more than one expert on a rank
    copied = 2 * sent * (1 + 1 / mixture.num_active) + 4 * arrived * is_sorted
    once = PassTime(
        memory_s=machine.stream_s(copied * row_bytes),
        tensor_s=gather_s,
        expert_s=exchange_s,
        kernels=4 + 2 * is_sorted + 2 * is_own * (sizes.expert_tensor > 1),
    )
    return Work(once, once, PassTime())
