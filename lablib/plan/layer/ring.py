"""Attention of c ranks that share every sequence, as torch's own ring runs it: operator by operator.

A rank has two of 2c chunks of each sequence, one from the head and one from the tail. It attends to its own keys and
values (causal), then to the keys of the c - 1 others: of ranks before it to their first chunk, with all its queries; of
ranks after it to both chunks, with its second half of queries. Either is half a square, so all have equal work.

    operator                forward                             backward
    keys and values         copied, 2 n kv; put together,       the same; sums zeroed, q + kv
                            2 n kv, in all rounds but the last
    kernel, a round         1, output to 32 bits, (1 + n) q     3; gradients added to the sums, (2 + n) (q + kv)
    merging, a round        8 kernels, 8 q and some rows        sums put together to travel, 2 kv
      half of the queries   half of it, halves joined, 2 q      halves of the query's gradient joined, 2 q
      half of the keys      all of it                           half as much of kv added, halves joined, 2 kv
    at the end              to 16 bits, copied                  to 16 bits, copied

Forward and backward each gather all keys and values once, which hides behind the first round. The sums of their
gradients go round the whole ring in 32 bits: c exchanges, each behind the next round's kernel, the last behind little.
The slower kind of round counts: the first rank has only rounds of half its queries, the last one only of half the keys,
and all wait for each other.

Memory peaks in backward, as the second round begins: see `held_in_backward`.

Legend: q and kv bytes in 32 bits of a rank's queries, and of its keys and values together; n bytes per number / 4; c
context ranks.

Source: Liu et al., "Ring Attention", 2023, arXiv 2310.01889; torch/distributed/tensor/experimental/_context_parallel/
_attention.py (`_templated_ring_attention`, `_SDPAMerger`; balanced, merged in 32 bits and rotated by all-gather, its
defaults), torch 2.13; operators and lifetimes as in the simulator's timeline and memory tracker.
Simplified: the first rank, which keeps a copy of the output unlike the last one, represents all.
"""

from typing import NamedTuple

from lablib.cost.arrays import Numbers, maximum
from lablib.models.transformer import Transformer
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine, PassTime


class _Shard(NamedTuple):
    """Tensors of a rank, in bytes of 32 bits per number.

    Attributes:
        query, keys_values: its queries, and its keys and values together.
        row: a number for each token and head.
        narrow: a number's own bytes, of four.
    """

    query: Numbers
    keys_values: Numbers
    row: Numbers
    narrow: float

    def cast(self, machine: Machine, size_bytes: Numbers) -> PassTime:
        """To 32 bits or back, if numbers are narrower."""
        return kernels(machine, size_bytes * (1 + self.narrow)) if self.narrow < 1 else PassTime()


def kernels(machine: Machine, *sizes_bytes: Numbers) -> PassTime:
    """Streaming operators, one after another."""
    moved = [machine.stream_s(size_bytes) for size_bytes in sizes_bytes]
    return PassTime(memory_s=sum(moved), kernels=len(moved))


def ring(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Attention between its products, on H / t heads and T / c queries, of c > 1 ranks."""
    shard = _shard(machine, model, sizes)
    forward = _slower(machine, *(_forward(machine, model, sizes, shard, is_half) for is_half in (False, True)))
    backward = _slower(machine, *(_backward(machine, model, sizes, shard, is_half) for is_half in (False, True)))
    # The output is kept as it was merged, and copied for the product that follows.
    saved = 2 * shard.query * shard.narrow + shard.row
    return Work(forward, backward, PassTime(), forward, saved_bytes=saved, attention_bytes=saved)


def held_in_backward(machine: Machine, model: Transformer, sizes: Sizes) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Bytes as the second round's backward begins, the peak of a rank.

    Returns:
        saved: queries, keys, values and output with its rows' numbers, from forward.
        wires: keys and values of all ranks, and the sent ones; gradients of both on their way out and in.
        made: the gradient of the output; sums in 32 bits, the first round's gradients, keys and values copied twice.
        later: the change of these once the second round's gradients are computed.
    """
    q, kv, row, narrow = _shard(machine, model, sizes)
    own, others = q * narrow, kv * narrow
    saved = 2 * own + others + row
    wires = sizes.context * others + others + 2 * kv
    made = own + q + kv + (own + others) + others + others * (sizes.context > 2)
    return saved, wires, made, own / 2 + row / 2 - others * (sizes.context > 2)


def _shard(machine: Machine, model: Transformer, sizes: Sizes) -> _Shard:
    heads, kv_heads = model.num_heads / sizes.tensor, maximum(model.kv_heads / sizes.tensor, 1)
    numbers = 4 * sizes.rows * model.head_size
    return _Shard(heads * numbers, 2 * kv_heads * numbers, 4 * sizes.rows * heads, machine.width / 4)


def _forward(machine: Machine, model: Transformer, sizes: Sizes, shard: _Shard, has_half: bool) -> PassTime:
    """Forward of a rank that has only rounds of half the queries, or only of half the keys."""
    q, kv, row, narrow = shard
    own = _block(machine, model, sizes, False, 1.0, 1.0).plus(shard.cast(machine, q))
    part = 0.5 if has_half else 1.0
    merge = [part * size for size in (3 * row, 2 * row, 3 * q, 2 * q + row, 3 * q, 3 * row, 3 * row, 3 * row)]
    other = (
        _block(machine, model, sizes, False, part, 1.5 - part)
        .plus(shard.cast(machine, part * q))
        .plus(kernels(machine, *merge))
    )
    other = other.plus(kernels(machine, 2 * kv * narrow))
    ends = kernels(machine, kv * narrow, kv * narrow).plus(shard.cast(machine, q))
    if has_half:
        other = other.plus(kernels(machine, 2 * row, 2 * q))
        ends = ends.plus(kernels(machine, 2 * q * narrow))
    gather_s = _gather_s(machine, sizes, shard)
    exposed_s = maximum(gather_s - _device_s(machine, own), 0.0)
    wires = PassTime(context_s=exposed_s, hidden_context_s=gather_s - exposed_s)
    return own.plus(other.times(sizes.context - 1)).plus(ends).plus(wires)


def _backward(machine: Machine, model: Transformer, sizes: Sizes, shard: _Shard, has_half: bool) -> PassTime:
    """The same for the gradients: of queries, and of keys and values, which travel on with each round."""
    q, kv, row, narrow = shard
    added = 2 + narrow
    own = _block(machine, model, sizes, True, 1.0, 1.0).plus(
        kernels(machine, kv / 2 * added, kv / 2 * added, kv, kv, 2 * kv)
    )
    query = kernels(machine, q * added)
    gathered = _block(machine, model, sizes, True, *((0.5, 1.0) if has_half else (1.0, 0.5))).plus(
        kernels(machine, 2 * kv * narrow)
    )
    if has_half:
        gathered = gathered.plus(kernels(machine, row))
        sums, query_part = (
            kernels(machine, kv / 2 * added, kv / 2 * added, 2 * kv),
            kernels(machine, q / 2 * added, 2 * q),
        )
    else:
        sums, query_part = kernels(machine, kv / 4 * added, kv, kv / 4 * added, kv, 2 * kv), query
    start = kernels(machine, q, kv / 2, kv / 2, kv * narrow, kv * narrow)
    last = shard.cast(machine, q)
    end = shard.cast(machine, kv).plus(kernels(machine, kv * narrow, kv * narrow))
    if has_half:
        end = end.plus(kernels(machine, 2 * q * narrow))
    # An all-to-all that sends everything to the next rank.
    send_s = machine.groups.time_s("send", 1.0 * kv, sizes.context, sizes.tensor)
    hidden_s, last_s = _device_s(machine, query_part.plus(gathered)), _device_s(machine, query_part.plus(last))
    exposed_s = (sizes.context - 1) * maximum(send_s - hidden_s, 0.0) + maximum(send_s - last_s, 0.0)
    gather_s = _gather_s(machine, sizes, shard)
    exposed_s = exposed_s + maximum(gather_s - _device_s(machine, own.plus(query)), 0.0)
    wires = PassTime(context_s=exposed_s, hidden_context_s=sizes.context * send_s + gather_s - exposed_s)
    rounds = gathered.plus(sums).plus(query_part).times(sizes.context - 1)
    return start.plus(own).plus(query).plus(rounds).plus(last).plus(end).plus(wires)


def _block(machine: Machine, model: Transformer, sizes: Sizes, backward: bool, queries: float, keys: float) -> PassTime:
    """One kernel on parts of a rank's queries and of another's keys; causal if both are whole, its own."""
    is_causal = queries * keys == 1
    heads, tokens = model.num_heads / sizes.tensor, sizes.tokens
    kernel = (sizes.micro_batch, heads, tokens * queries, tokens * keys, model.head_size)
    return PassTime(attention_s=machine.attention_block_s(*kernel, backward, is_causal), kernels=3 if backward else 1)


def _gather_s(machine: Machine, sizes: Sizes, shard: _Shard) -> Numbers:
    """Seconds to gather the keys and values of all ranks."""
    return machine.collective_s(
        "all_gather", sizes.context * shard.keys_values * shard.narrow, sizes.context, sizes.tensor
    )


def _device_s(machine: Machine, work: PassTime) -> Numbers:
    return work.compute_s + work.kernels * machine.device.queued_s


def _slower(machine: Machine, a: PassTime, b: PassTime) -> PassTime:
    """The slower pass, element by element, for the device or for the host that starts its kernels."""
    is_second = 1.0 * (machine.time_s(b) > machine.time_s(a))
    return a.times(1 - is_second).plus(b.times(is_second))
