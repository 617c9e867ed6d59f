"""The lists of eager torch against the simulator's stream: the same operators, to the byte and the FLOP.

A layer's operators are those that a run with two layers has more than a run with one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import Run, launch
from lablib.hardware import CLUSTERS
from lablib.models import Experts, Transformer
from lablib.models.llama_sizes import LlamaConfig
from lablib.models.sizes import GPTConfig
from lablib.plan import IDEAL, STACKS
from lablib.plan.arguments import setup_of
from lablib.plan.eager.optimizer import step
from lablib.plan.layer import Cut, Op, Sizes, embedding, head, layer, work_of
from lablib.plan.layer.op import ACCUMULATE, ATTENTION, EXCHANGE, FORWARD, PRODUCT
from lablib.plan.machine import Machine
from lablib.plan.parameters_per_rank import parameters_per_rank
from tests.plan import gpt_step, tensor_step
from tests.plan.test_experts_agree_with_simulator import train as train_experts

WORDS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
Stream = Counter[tuple[str, float, float]]  # (pass, bytes, FLOPs) -> how often


def eager(model: Transformer, sizes: Sizes, stack: str, dtype: torch.dtype) -> Cut:
    machine = Machine(CLUSTERS["dgx-a100"], replace(STACKS[stack], has_master=False), IDEAL, WORDS[dtype])
    return Cut.of(machine, model, sizes)


def moved(cut: Cut, op: Op) -> tuple[float, float]:
    """Bytes and FLOPs of an operator."""
    width = cut.machine.width
    if op.kind == ATTENTION:
        batch, heads, queries, keys, d, is_back = op.shape
        # Queries, keys, values and output, in backward with their gradients; a number of 32 bits per row.
        numbers = heads * queries + heads / cut.model.num_heads * cut.model.kv_heads * keys
        tensors = 2 * batch * numbers * d * width * (2 if is_back else 1)
        return tensors + 4 * batch * heads * queries, 4 * batch * heads * queries * keys * d * (2.5 if is_back else 1)
    if op.kind == EXCHANGE:
        mixture, rows, row_bytes, *_ = op.shape
        return mixture.num_active * rows * row_bytes, 0.0
    if op.kind != PRODUCT:
        return op.size_bytes, 0.0
    m, n, k, count, *_ = op.shape
    has_bias = cut.model.has_bias and op.name not in ("router", "logits")
    bias = n * (op.phase == FORWARD and has_bias)  # the price leaves out that it is read
    return count * (m * k + k * n + m * n + bias) * width, 2.0 * count * m * n * k


def listed(cut: Cut, ops: list[Op], micro_batches: int) -> Stream:
    found = Stream()
    for op in ops:
        is_alone = op.axis and op.kind != EXCHANGE and op.shape[0] == 1
        times = op.times * (micro_batches - (op.phase == ACCUMULATE))
        if times and not is_alone:
            found["forward" if op.phase == FORWARD else "backward", *moved(cut, op)] += round(times)
    return found


def totals(stream: Stream) -> tuple[float, float]:
    return sum(n * size for (_, size, _), n in stream.items()), sum(n * flops for (*_, flops), n in stream.items())


def simulated(program: Callable[[int], Any], ranks: int) -> tuple[Stream, float]:
    """Operators of one layer, and its bytes kept from forward to backward."""
    few, many = (_run(program(layers), ranks) for layers in (1, 2))
    found = _stream(many)
    found.subtract(_stream(few))
    return Stream({each: times for each, times in found.items() if times}), _kept(many) - _kept(few)


def _run(program: Any, ranks: int) -> Run:
    # Rank 0 simulated alone equals rank 0 among all ranks, to the bit (tests/sim/test_phantoms.py).
    simulate = [0] if ranks > 2 else None
    return launch(program, ranks=ranks, cluster="dgx-a100", fidelity="shapes", simulate=simulate)


def _stream(run: Run) -> Stream:
    spans = run.timeline.without("setup").select(rank=0)
    return Stream((s.phase, s.size_bytes, s.flops) for s in spans if s.phase in ("forward", "backward"))


def _kept(run: Run) -> float:
    """A gathered input came over wires: communication to the memory tracker, if it is kept."""
    _, held = run.memory.curve(0)
    return float((held["activation"] + held["communication"]).max())


def kept(cut: Cut) -> float:
    """By the list, and the layer's own input; without cosines and sines, which are "other" to the memory tracker."""
    ops = [op for op in layer(cut) if op.name != "cosines, sines"]
    return work_of(cut.machine, ops).saved_bytes + cut.own_rows * cut.row_bytes


_DRAWN = {"family": st.sampled_from(["gpt", "llama"]), "batch": st.integers(1, 4), "micro_batches": st.integers(1, 3)}
_DRAWN |= {"dtype": st.sampled_from(list(WORDS))}


def config(family: str, layers: int, heads: int, group: int = 1, d_head: int = 64, **more: Any) -> Any:
    """Heads of a Llama may have another width than D / H."""
    if family == "gpt":
        return GPTConfig(layers, d_head * heads, heads, **more)
    return LlamaConfig(layers, 64 * heads, heads, num_kv_heads=heads // gcd(group, heads), head_dim=d_head, **more)


@settings(deadline=None, max_examples=24, derandomize=True)
@given(
    heads=st.integers(1, 12),
    group=st.integers(1, 6),
    d_head=st.sampled_from([16, 64, 96]),
    d_ff=st.sampled_from([None, 96, 1000]),
    tokens=st.integers(3, 300),
    **_DRAWN,
)
def test_a_layer_of_torch_on_one_rank(family, heads, group, d_head, d_ff, tokens, batch, micro_batches, dtype):
    def sized(layers: int) -> Any:
        return config(family, layers, heads, group, d_head, d_ff=d_ff, vocab_size=512, max_seq_len=tokens)

    def program(layers: int) -> Any:
        return partial(gpt_step.train, gpt_step.Job(sized(layers), "one", 1, batch, micro_batches, dtype=dtype))

    cut = eager(Transformer.of(sized(2)), Sizes(batch, tokens, 1, 1, 1, 1), "torch", dtype)
    stream, kept_bytes = simulated(program, 1)
    assert stream == listed(cut, layer(cut), micro_batches)
    assert kept_bytes == pytest.approx(kept(cut), rel=1e-3)


@settings(deadline=None, max_examples=8, derandomize=True)
@given(
    tensor=st.sampled_from([2, 4, 8]),
    width=st.integers(1, 3),
    rows=st.integers(1, 20),
    batch=st.integers(1, 3),
    sequence_parallel=st.booleans(),
)
def test_a_layer_of_megatron_over_tensor_ranks(tensor, width, rows, batch, sequence_parallel):
    heads, tokens = tensor * width, 8 * rows

    def program(layers: int) -> Any:
        sizes = (layers, 64 * heads, heads, 512, tokens, tensor, batch, 2)
        return partial(tensor_step.train, tensor_step.TensorJob(*sizes, sequence_parallel=sequence_parallel))

    model = Transformer("gpt", 2, 64 * heads, heads, 512, tokens)
    sizes = Sizes(batch, tokens, tensor, 1, 1, tensor if sequence_parallel else 1)
    cut = eager(model, sizes, "torch-megatron", torch.bfloat16)
    stream, kept_bytes = simulated(program, tensor)
    assert stream == listed(cut, layer(cut), 2)
    assert kept_bytes == pytest.approx(kept(cut), rel=1e-3)


@pytest.mark.parametrize(("num_experts", "active", "d_ff"), [(8, 2, 768), (4, 1, 512), (32, 4, 96)])
def test_a_layer_with_experts_moves_its_bytes_in_as_many_operators(num_experts, active, d_ff):
    """Bytes to two thousandths: a token's weights and places are counted roughly, next to its row."""
    mixture = Experts(num_experts, active, d_ff)

    def config(layers: int) -> GPTConfig:
        return GPTConfig(layers, 512, 8, 512, 256, d_ff=1)

    def program(layers: int) -> Any:
        return partial(train_experts, config(layers), mixture, torch.float32, 2, 2, False)

    cut = eager(replace(Transformer.of(config(2)), experts=mixture), Sizes(2, 256, 1, 1, 1, 1), "torch", torch.float32)
    (found, kept_bytes), expected = simulated(program, 1), listed(cut, layer(cut), 2)
    assert found.total() == expected.total()
    (size, flops), (listed_size, listed_flops) = totals(found), totals(expected)
    assert flops == listed_flops
    assert size == pytest.approx(listed_size, rel=2e-3)
    assert kept_bytes == pytest.approx(kept(cut), rel=2e-3)


@settings(deadline=None, max_examples=16, derandomize=True)
@given(
    heads=st.integers(4, 12),
    tokens=st.integers(64, 2000),
    vocabulary=st.integers(1000, 51000),
    tied_head=st.booleans(),
    **_DRAWN,
)
def test_embedding_and_head_of_torch(family, heads, tokens, vocabulary, tied_head, batch, micro_batches, dtype):
    """Bytes to a thousandth: the list leaves out operators of a number per token, and their bytes."""
    sizes = config(family, 1, heads, vocab_size=vocabulary, max_seq_len=tokens, tied_head=tied_head)
    run = _run(partial(gpt_step.train, gpt_step.Job(sizes, "one", 1, batch, micro_batches, dtype=dtype)), 1)
    cut = eager(Transformer.of(sizes), Sizes(batch, tokens, 1, 1, 1, 1), "torch", dtype)
    expected = totals(listed(cut, [*embedding(cut), *layer(cut), *head(cut)], micro_batches))
    found = totals(_stream(run))
    assert found[1] == expected[1]
    assert found[0] == pytest.approx(expected[0], rel=1e-3)


@pytest.mark.parametrize("optimizer", sorted(gpt_step.OPTIMIZERS))
def test_the_optimizers_list_is_torchs(optimizer):
    config = GPTConfig(1, 256, 4, 1000, 64, tied_head=False)
    run = _run(partial(gpt_step.train, gpt_step.Job(config, "one", 1, 1, 1, optimizer)), 1)
    stack, sizes = replace(STACKS["torch"], has_master=False), {"batch": 1, "precision": "float32"}
    setup = setup_of(Transformer.of(config), "dgx-a100", **sizes, optimizer=optimizer, stack=stack)
    expected = Counter(op.size_bytes for op in step(setup, parameters_per_rank(setup.model, 1, 1)) if op.size_bytes)
    spans = run.timeline.without("setup").select(rank=0)
    # The counters of steps, a number per tensor, are left out.
    assert expected == Counter(s.size_bytes for s in spans if s.phase == "optimizer" and s.size_bytes > 1000)
