"""A mixture of experts as eager torch runs it: route, sort, exchange, one batched product a matrix, exchange, sum.

    operator                        forward                     backward
    router, softmax, top k          product, 2 E, E + k         its two products, 3 E, 2 E + 3 k
    places: sort, invert, divide    of 64-bit integers          -
    rows to send                    2 k                         rows zeroed and added: 3 k + 3
    exchange                        all-to-all                  all-to-all
    in order of experts, and back   2 k x, twice                2 k x, twice
    up, GELU, down                  products, 2 F               their two products, 3 F, sums over rows for biases
    rows to their tokens            2 k                         zeroed and added: 6 k
    times weight, summed            3 k + 1                     4 k + 2
    input of router and experts     -                           3: two gradients are added

in tensors of R D numbers (k, 1), R E (E) and the experts' R k F (F). Kept: the router's input and scores, weights, two
places and the choice of each row; tokens that arrived in order of experts, both sides of the activation, tokens that
came back. Backward has two more tensors as large as the latter: their gradients, then gradients of their weights and
zeros to add to.

Legend: R tokens of this rank, D width, E experts, k of them for a token, F their hidden width over x ranks each.

Source: the operators that torch 2.13 dispatches for such a layer (index_select, all_to_all_single, baddbmm), as a
timeline of the simulator lists them.
Simplified: ranks that share an expert gather the tokens that arrived and scatter the sums, as in the other stacks.
"""

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Experts, Transformer
from lablib.plan import layer
from lablib.plan.eager.layer import exchange, linear, norm, residual
from lablib.plan.eager.operators import gelu, kernel, kernels, sum_over_rows
from lablib.plan.layer import Sizes, Work, dispatch
from lablib.plan.machine import Machine, PassTime

_INTEGER = 8


def experts(machine: Machine, model: Transformer, mixture: Experts, sizes: Sizes) -> Work:
    """Norm, router, experts, shared experts, residual."""
    rows, width = sizes.rows / sizes.sequence_shards, machine.width
    size = rows * model.d_model * width
    is_own = 1.0 * (sizes.sequence_shards == sizes.tensor)
    work = norm(machine, model, rows).plus(_router(machine, model, mixture, rows))
    work = work.plus(_sent_and_summed(machine, model, mixture, sizes, rows, is_own))
    work = work.plus(_batched(machine, model, mixture, sizes, rows * mixture.num_active * _gathered(sizes, is_own)))
    if mixture.num_shared:
        shared = layer.inner_mlp(
            machine, model, sizes, sizes.rows, mixture.num_shared * mixture.d_ff / sizes.tensor, sizes.sequence_shards
        )
        work = work.plus(shared)
    summed = 1.0 if mixture.num_shared else 1 - is_own
    work = work.plus(exchange(machine, model, sizes).times(summed))
    last = residual(machine, size)._replace(saved_bytes=0.0)
    # Recomputation stops before the sum over a token's experts.
    summing = kernel(machine, (mixture.num_active + 1) * size)
    return work.plus(last)._replace(skipped=last.forward.plus(summing))


def sent_bytes(machine: Machine, model: Transformer, sizes: Sizes) -> Numbers:
    """Bytes that a rank sends to experts; 0 for a dense model."""
    active = model.experts.num_active if model.experts else 0
    return active * sizes.rows / sizes.sequence_shards * model.d_model * machine.width


def _gathered(sizes: Sizes, is_own: Numbers) -> Numbers:
    return 1 + is_own * (sizes.expert_tensor - 1)


def _router(machine: Machine, model: Transformer, mixture: Experts, rows: Numbers) -> Work:
    chosen = rows * mixture.num_active
    scores, weights, places = rows * mixture.num_experts * machine.width, chosen * machine.width, chosen * _INTEGER
    gate = linear(machine, model, rows, model.d_model, mixture.num_experts, has_bias=False)
    forward = kernels(machine, 2 * scores, scores + weights + places)
    # Sorted with their indices, numbered, put in their places, divided by k.
    forward = forward.plus(kernels(machine, 3 * places, places, 4 * places, 2 * places))
    backward = kernels(machine, scores, scores + 3 * weights + places, 3 * scores)
    kept = scores + weights + 3 * places
    return gate.plus(Work(forward, backward, PassTime(), saved_bytes=kept))


def _sent_and_summed(
    machine: Machine, model: Transformer, mixture: Experts, sizes: Sizes, rows: Numbers, is_own: Numbers
) -> Work:
    size = rows * model.d_model * machine.width
    sent = mixture.num_active * size
    arrived = sent * _gathered(sizes, is_own)
    exchange_s = 2 * dispatch.exchange_s(
        machine, mixture, rows, model.d_model * machine.width, sizes.expert, sizes.expert_tensor
    )
    gather_s = is_own * 2 * machine.collective_s("all_gather", arrived, sizes.expert_tensor)
    wires = PassTime(expert_s=exchange_s, tensor_s=gather_s)
    places = rows * mixture.num_active * _INTEGER
    picked = 2 * sent + places
    # Rows of one expert, or from one rank, are in order already.
    ordered = kernels(machine, 2 * arrived, 2 * arrived).times(
        1.0 * ((mixture.num_experts > sizes.expert) & (sizes.expert > 1))
    )
    forward = wires.plus(ordered).plus(kernels(machine, picked, picked, 2 * sent, sent + size))
    backward = wires.plus(ordered).plus(
        kernels(machine, 2 * sent + size, sent + size, sent)
    )  # of weights, of rows, its sum
    backward = backward.plus(kernels(machine, sent, 5 * sent, size, 3 * sent + 2 * size, 3 * size))
    return Work(forward, backward, PassTime(), saved_bytes=arrived + sent)


def _batched(machine: Machine, model: Transformer, mixture: Experts, sizes: Sizes, rows: Numbers) -> Work:
    """The experts of a rank, with equally many rows each: up (and gate), activation, down."""
    local, hidden, d_model = mixture.num_experts / sizes.expert, mixture.d_ff / sizes.expert_tensor, model.d_model
    inner = rows * hidden * machine.width
    up = _product(machine, model, rows, local, d_model, hidden)
    work = up.plus(_product(machine, model, rows, local, hidden, d_model))
    if model.activation == "swiglu":
        # Two gradients of what arrived are added.
        summed = Work(PassTime(), kernel(machine, 3 * rows * d_model * machine.width), PassTime())
        gate = Work(
            kernels(machine, 2 * inner, 3 * inner), kernels(machine, 3 * inner, 3 * inner, 3 * inner), PassTime()
        )
        return work.plus(up).plus(summed).plus(gate._replace(saved_bytes=4 * inner, peak_bytes=inner))
    activation = Work(*gelu(machine, inner), PassTime(), saved_bytes=2 * inner, peak_bytes=inner)
    return work.plus(activation)


def _product(machine: Machine, model: Transformer, rows: Numbers, matrices: Numbers, k: Numbers, n: Numbers) -> Work:
    """Batched products [rows / matrices, k] x [k, n] in one operator, with their biases."""
    each, width = rows / matrices, machine.width
    weight = PassTime(product_s=machine.product_s(k, n, each, matrices, is_over_tokens=True), kernels=1)
    accumulate = kernel(machine, 3 * matrices * k * n * width)
    if model.has_bias:
        weight = weight.plus(sum_over_rows(machine, rows * n * width))
        accumulate = accumulate.plus(kernel(machine, 3 * matrices * n * width))
    return Work(
        PassTime(product_s=machine.product_s(each, n, k, matrices), kernels=1),
        PassTime(product_s=machine.product_s(each, k, n, matrices), kernels=1),
        weight,
        accumulate=accumulate,
    )
