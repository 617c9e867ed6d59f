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
places and the choice of each row; what arrived in order of experts, both sides of the activation, what came back. In
backward two tensors of what came back are there besides: gradients of it, of its weights, zeros to add to.

Legend: R tokens of this rank, D width, E experts, k of them for a token, F their hidden width over x ranks each.

Source: the operators that torch 2.13 dispatches for such a layer (index_select, all_to_all_single, baddbmm), as a
timeline of the simulator lists them.
Simplified: where ranks share an expert they gather what arrived and scatter its sums, as the other stacks do.
"""

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Experts, Transformer
from lablib.plan import layer
from lablib.plan.eager.layer import exchange, linear, norm, residual
from lablib.plan.eager.operators import gelu, kernel, kernels, sum_over_rows
from lablib.plan.layer import Sizes, Work, dispatch
from lablib.plan.machine import Machine, Pass

_INTEGER = 8


def experts(on: Machine, model: Transformer, mixture: Experts, at: Sizes) -> Work:
    """Norm, router, experts, shared experts, residual."""
    rows, width = at.rows / at.sequence_shards, on.width
    size = rows * model.d_model * width
    is_own = 1.0 * (at.sequence_shards == at.tensor)
    work = norm(on, model, rows).plus(_router(on, model, mixture, rows))
    work = work.plus(_sent_and_summed(on, model, mixture, at, rows, is_own))
    work = work.plus(_batched(on, model, mixture, at, rows * mixture.num_active * _gathered(at, is_own)))
    if mixture.num_shared:
        shared = layer.inner_mlp(
            on, model, at, at.rows, mixture.num_shared * mixture.d_ff / at.tensor, at.sequence_shards
        )
        work = work.plus(shared)
    summed = 1.0 if mixture.num_shared else 1 - is_own
    work = work.plus(exchange(on, model, at).times(summed))
    last = residual(on, size)._replace(saved_bytes=0.0)
    # Recomputation stops before the sum over a token's experts.
    summing = kernel(on, (mixture.num_active + 1) * size)
    return work.plus(last)._replace(skipped=last.forward.plus(summing))


def sent_bytes(on: Machine, model: Transformer, at: Sizes) -> Numbers:
    """What a rank sends to experts; 0 for a dense model."""
    active = model.experts.num_active if model.experts else 0
    return active * at.rows / at.sequence_shards * model.d_model * on.width


def _gathered(at: Sizes, is_own: Numbers) -> Numbers:
    return 1 + is_own * (at.expert_tensor - 1)


def _router(on: Machine, model: Transformer, mixture: Experts, rows: Numbers) -> Work:
    chosen = rows * mixture.num_active
    scores, weights, places = rows * mixture.num_experts * on.width, chosen * on.width, chosen * _INTEGER
    gate = linear(on, model, rows, model.d_model, mixture.num_experts, has_bias=False)
    forward = kernels(on, 2 * scores, scores + weights + places)
    # Sorted with their indices, numbered, put in their places, divided by k.
    forward = forward.plus(kernels(on, 3 * places, places, 4 * places, 2 * places))
    backward = kernels(on, scores, scores + 3 * weights + places, 3 * scores)
    kept = scores + weights + 3 * places
    return gate.plus(Work(forward, backward, Pass(), saved_bytes=kept))


def _sent_and_summed(
    on: Machine, model: Transformer, mixture: Experts, at: Sizes, rows: Numbers, is_own: Numbers
) -> Work:
    size = rows * model.d_model * on.width
    sent = mixture.num_active * size
    arrived = sent * _gathered(at, is_own)
    exchange_s = 2 * dispatch.exchange_s(on, mixture, rows, model.d_model * on.width, at.expert, at.expert_tensor)
    gather_s = is_own * 2 * on.collective_s("all_gather", arrived, at.expert_tensor)
    wires = Pass(expert_s=exchange_s, tensor_s=gather_s)
    places = rows * mixture.num_active * _INTEGER
    picked = 2 * sent + places
    # Rows of one expert, or from one rank, are in order already.
    ordered = kernels(on, 2 * arrived, 2 * arrived).times(1.0 * ((mixture.num_experts > at.expert) & (at.expert > 1)))
    forward = wires.plus(ordered).plus(kernels(on, picked, picked, 2 * sent, sent + size))
    backward = wires.plus(ordered).plus(kernels(on, 2 * sent + size, sent + size, sent))  # of weights, of rows, its sum
    backward = backward.plus(kernels(on, sent, 5 * sent, size, 3 * sent + 2 * size, 3 * size))
    return Work(forward, backward, Pass(), saved_bytes=arrived + sent)


def _batched(on: Machine, model: Transformer, mixture: Experts, at: Sizes, rows: Numbers) -> Work:
    """The experts of a rank, as many rows for each: up (and gate), activation, down."""
    local, hidden, d_model = mixture.num_experts / at.expert, mixture.d_ff / at.expert_tensor, model.d_model
    inner = rows * hidden * on.width
    up = _product(on, model, rows, local, d_model, hidden)
    work = up.plus(_product(on, model, rows, local, hidden, d_model))
    if model.activation == "swiglu":
        # Two gradients of what arrived are added.
        summed = Work(Pass(), kernel(on, 3 * rows * d_model * on.width), Pass())
        gate = Work(kernels(on, 2 * inner, 3 * inner), kernels(on, 3 * inner, 3 * inner, 3 * inner), Pass())
        return work.plus(up).plus(summed).plus(gate._replace(saved_bytes=4 * inner, peak_bytes=inner))
    activation = Work(*gelu(on, inner), Pass(), saved_bytes=2 * inner, peak_bytes=inner)
    return work.plus(activation)


def _product(on: Machine, model: Transformer, rows: Numbers, matrices: Numbers, k: Numbers, n: Numbers) -> Work:
    """So many [rows / matrices, k] x [k, n] in one operator, with their biases."""
    each, width = rows / matrices, on.width
    weight = Pass(product_s=on.product_s(k, n, each, matrices, is_over_tokens=True), kernels=1)
    accumulate = kernel(on, 3 * matrices * k * n * width)
    if model.has_bias:
        weight = weight.plus(sum_over_rows(on, rows * n * width))
        accumulate = accumulate.plus(kernel(on, 3 * matrices * n * width))
    return Work(
        Pass(product_s=on.product_s(each, n, k, matrices), kernels=1),
        Pass(product_s=on.product_s(each, k, n, matrices), kernels=1),
        weight,
        accumulate=accumulate,
    )
