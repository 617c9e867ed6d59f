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


class _Rank(NamedTuple):
    """A rank of the ring, and the prices of its operators."""

    machine: Machine
    model: Transformer
    sizes: Sizes

    @property
    def tensors(self) -> tuple[Numbers, Numbers, Numbers, float]:
        """Bytes, in 32 bits, of its queries, of its keys and values together, and of a number per token and head; n."""
        sizes, kv_heads = self.sizes, maximum(self.model.kv_heads / self.sizes.tensor, 1)
        heads, numbers = self.model.num_heads / sizes.tensor, 4 * sizes.rows * self.model.head_size
        return heads * numbers, 2 * kv_heads * numbers, 4 * sizes.rows * heads, self.machine.width / 4

    def cast(self, size_bytes: Numbers) -> list[Numbers]:
        """Bytes moved by a cast to 32 bits or back; none if numbers have 32 bits."""
        return [size_bytes * (1 + self.machine.width / 4)] if self.machine.width < 4 else []

    def kernels(self, *sizes_bytes: Numbers) -> PassTime:
        """Streaming operators, one after another."""
        moved = [self.machine.stream_s(size_bytes) for size_bytes in sizes_bytes]
        return PassTime(memory_s=sum(moved), kernels=len(moved))

    def block(self, is_back: bool, queries: float, keys: float, *sizes_bytes: Numbers) -> PassTime:
        """One attention kernel on parts of a rank's queries and of another's keys, and streaming operators.

        It is causal if both are whole: then they are the rank's own.
        """
        heads, tokens = self.model.num_heads / self.sizes.tensor, self.sizes.tokens
        kernel = (self.sizes.micro_batch, heads, tokens * queries, tokens * keys, self.model.head_size)
        attention_s = self.machine.attention_s(*kernel, is_back, is_causal=queries * keys == 1)
        return self.kernels(*sizes_bytes).plus(PassTime(attention_s=attention_s, kernels=3 if is_back else 1))

    def device_s(self, work: PassTime) -> Numbers:
        """Seconds of kernels, behind which wires hide."""
        return work.compute_s + work.kernels * self.machine.device.queued_s

    @property
    def gather_s(self) -> Numbers:
        """Seconds to gather the keys and values of all ranks."""
        _, kv, _, narrow = self.tensors
        ranks = self.sizes.context
        return self.machine.collective_s("all_gather", ranks * kv * narrow, ranks, self.sizes.tensor)


def ring(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Attention between its products, on H / t heads and T / c queries, of c > 1 ranks."""
    rank = _Rank(machine, model, sizes)
    forward, backward = (_slower(machine, of(rank, False), of(rank, True)) for of in (_forward, _backward))
    q, _, row, narrow = rank.tensors
    # The output is kept as it was merged, and copied for the product that follows.
    saved = 2 * q * narrow + row
    return Work(forward, backward, PassTime(), forward, saved_bytes=saved, attention_bytes=saved)


def held_in_backward(machine: Machine, model: Transformer, sizes: Sizes) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Bytes as the second round's backward begins, the peak of a rank.

    Returns:
        saved: queries, keys, values and output with its rows' numbers, from forward.
        wires: keys and values of all ranks, and the sent ones; gradients of both on their way out and in.
        made: the gradient of the output; sums in 32 bits, the first round's gradients, keys and values copied twice.
        later: the change of these once the second round's gradients are computed.
    """
    q, kv, row, narrow = _Rank(machine, model, sizes).tensors
    own, others = q * narrow, kv * narrow
    saved = 2 * own + others + row
    wires = sizes.context * others + others + 2 * kv
    made = own + q + kv + (own + others) + others + others * (sizes.context > 2)
    return saved, wires, made, own / 2 + row / 2 - others * (sizes.context > 2)


def _forward(rank: _Rank, has_half: bool) -> PassTime:
    """Forward of a rank that has only rounds of half the queries, or only of half the keys."""
    q, kv, row, narrow = rank.tensors
    part = 0.5 if has_half else 1.0
    merge = [part * size for size in (3 * row, 2 * row, 3 * q, 2 * q + row, 3 * q, 3 * row, 3 * row, 3 * row)]
    halves, joined = ((2 * row, 2 * q), (2 * q * narrow,)) if has_half else ((), ())
    own = rank.block(False, 1.0, 1.0, *rank.cast(q))
    other = rank.block(False, part, 1.5 - part, *rank.cast(part * q), *merge, 2 * kv * narrow, *halves)
    ends = rank.kernels(kv * narrow, kv * narrow, *rank.cast(q), *joined)
    exposed_s = maximum(rank.gather_s - rank.device_s(own), 0.0)
    wires = PassTime(context_s=exposed_s, hidden_context_s=rank.gather_s - exposed_s)
    return own.plus(other.times(rank.sizes.context - 1)).plus(ends).plus(wires)


def _backward(rank: _Rank, has_half: bool) -> PassTime:
    """The same for the gradients: of queries, and of keys and values, which travel on with each round."""
    q, kv, row, narrow = rank.tensors
    others, added = rank.sizes.context - 1, 2 + narrow
    start = rank.kernels(q, kv / 2, kv / 2, kv * narrow, kv * narrow)
    own = rank.block(True, 1.0, 1.0, kv / 2 * added, kv / 2 * added, kv, kv, 2 * kv)
    first = query = rank.kernels(q * added)
    if has_half:
        gathered = rank.block(True, 0.5, 1.0, 2 * kv * narrow, row)
        sums, query = rank.kernels(kv / 2 * added, kv / 2 * added, 2 * kv), rank.kernels(q / 2 * added, 2 * q)
    else:
        gathered = rank.block(True, 1.0, 0.5, 2 * kv * narrow)
        sums = rank.kernels(kv / 4 * added, kv, kv / 4 * added, kv, 2 * kv)
    last = rank.kernels(*rank.cast(q))
    end = rank.kernels(*rank.cast(kv), kv * narrow, kv * narrow, *((2 * q * narrow,) if has_half else ()))
    # An all-to-all that sends everything to the next rank.
    send_s = rank.machine.groups.time_s("send", 1.0 * kv, rank.sizes.context, rank.sizes.tensor)
    exposed_s = others * maximum(send_s - rank.device_s(query.plus(gathered)), 0.0)
    exposed_s = exposed_s + maximum(send_s - rank.device_s(query.plus(last)), 0.0)
    exposed_s = exposed_s + maximum(rank.gather_s - rank.device_s(own.plus(first)), 0.0)
    hidden_s = rank.sizes.context * send_s + rank.gather_s - exposed_s
    wires = PassTime(context_s=exposed_s, hidden_context_s=hidden_s)
    rounds = gathered.plus(sums).plus(query).times(others)
    return start.plus(own).plus(first).plus(rounds).plus(last).plus(end).plus(wires)


def _slower(machine: Machine, a: PassTime, b: PassTime) -> PassTime:
    """The slower pass, element by element, for the device or for the host that starts its kernels."""
    is_second = 1.0 * (machine.time_s(b) > machine.time_s(a))
    return a.times(1 - is_second).plus(b.times(is_second))
