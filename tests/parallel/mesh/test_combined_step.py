"""A whole step on a mesh of several axes: loss, raw gradients, norm and parameters of one device, in float64 by SGD."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import RankError, Run, launch
from lablib.models import GPT, GPTConfig, Llama, LlamaConfig, model_of, next_token_loss
from lablib.parallel import Combination, CombinedStep, Mesh, gathered_attention, ulysses_attention, with_experts
from lablib.parallel.experts.bytes import ExpertRanks, ExpertSizes, expert_sent_bytes, expert_weights
from lablib.precision.autocast import autocast
from lablib.precision.loss_scaling import LossScaler, ScaleRule

EXACT: Any = {"rtol": 1e-10, "atol": 1e-13}
SLOWER = pytest.mark.thorough
CONFIG = GPTConfig(4, 8, 4, vocab_size=12, max_seq_len=16, d_ff=12)
LLAMA = LlamaConfig(4, 8, 4, 12, 16, 12, num_kv_heads=2, head_dim=4, rope_base=50.0)
TIED = replace(LLAMA, tied_head=True)
MAX_NORM = 0.1  # below the norm of the first gradient, so that clipping bites: asserted below
Trained = tuple[float, float, dict[str, Tensor], dict[str, Tensor]]  # loss, norm, gradients, parameters later


def batch(config: GPTConfig | LlamaConfig, size: int, seq_len: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, config.vocab_size, (size, seq_len + 1), generator=torch.Generator().manual_seed(3))
    return drawn[:, :-1].clone(), drawn[:, 1:].clone()


def moved(config: GPTConfig | LlamaConfig | Combination, dtype: torch.dtype = torch.float64) -> GPT | Llama:
    """Biases and norms away from 0 and 1, so that none of them may be forgotten."""
    make = config.model if isinstance(config, Combination) else partial(model_of, config)
    model, generator = make(dtype=dtype, device="cpu"), torch.Generator().manual_seed(7)
    for param in model.parameters():
        param.data += 0.1 * torch.randn(param.shape, generator=generator, dtype=torch.float64).to(dtype)
    return model


def one_device(how: Combination, steps: int = 2) -> Trained:
    """The reference: no mesh, no micro-batches."""
    model = moved(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = batch(how.config, how.batch_size, how.seq_len)
    found: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), targets)
        loss.backward()
        grads = {name: param.grad.clone() for name, param in model.named_parameters() if param.grad is not None}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        found = found or [loss.item(), norm.item(), grads]
        optimizer.step()
    assert found[1] > 1.5 * MAX_NORM
    return (*found, {name: param.detach() for name, param in model.named_parameters()})  # pyright: ignore


def train(how: Combination, steps: int = 2) -> Trained:
    optimizer_fn = partial(torch.optim.SGD, lr=0.1)
    step = CombinedStep(how, optimizer_fn, max_norm=MAX_NORM, model=moved(how))
    tokens, targets = batch(how.config, how.batch_size, how.seq_len)
    loss, grads = step.backward(tokens, targets), step.full_gradients()
    norm, _ = step.update()
    for _ in range(steps - 1):
        step(tokens, targets)
    return loss.item(), norm.item(), grads, step.full_parameters()


def assert_is_one_device(how: Combination, values: list[Any], reference: Trained | None = None) -> None:
    loss, norm, grads, params = reference or one_device(how)
    for found_loss, found_norm, found_grads, found_params in values:
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert found_norm == pytest.approx(norm, rel=1e-11)
        torch.testing.assert_close(found_grads, grads, **EXACT)
        torch.testing.assert_close(found_params, params, **EXACT)


def run(how: Combination, **options: Any) -> list[Any]:
    return launch(train, how, ranks=how.mesh.num_ranks, trace=False, **options).values


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"data": 2, "pipeline": 2, "tensor": 2}, {"sequence_parallel": True}),
        ({"data": 2, "pipeline": 2, "tensor": 2}, {"schedule": "interleaved", "num_chunks": 2, "recompute": "full"}),
        ({"data": 2, "pipeline": 2, "tensor": 2}, {"schedule": "zb-v", "sequence_parallel": True, "recompute": "full"}),
        pytest.param({"data": 2, "pipeline": 4, "tensor": 2}, {"sequence_parallel": True}, marks=SLOWER),
        pytest.param({"data": 2, "pipeline": 2, "tensor": 4}, {"sequence_parallel": True}, marks=SLOWER),
        pytest.param({"data": 4, "pipeline": 2, "tensor": 2}, {}, marks=SLOWER),
        ({"data": 2, "pipeline": 2, "context": 2, "tensor": 2}, {"sequence_parallel": True}),
        pytest.param({"pipeline": 2, "context": 2, "tensor": 2}, {"attention": gathered_attention}, marks=SLOWER),
        ({"context": 2, "tensor": 2}, {"attention": ulysses_attention, "sequence_parallel": True}),
        ({"data": 2, "expert": 2, "tensor": 2}, {"num_experts": 4}),
        ({"expert": 2, "tensor": 2}, {"num_experts": 4, "sequence_parallel": True, "recompute": "selective"}),
        ({"pipeline": 2, "expert": 2, "context": 2}, {"num_experts": 4, "recompute": "full"}),
        pytest.param({"tensor": 2, "pipeline": 2, "expert": 2}, {"num_experts": 4, "schedule": "zb-h1"}, marks=SLOWER),
        ({"data": 2, "tensor": 2}, {"zero_stage": 2, "recompute": "full"}),
        ({"tensor": 2, "data": 2}, {"zero_stage": 3, "sequence_parallel": True, "recompute": "full"}),
        ({"data": 2, "context": 2, "tensor": 2}, {"zero_stage": 3}),
        ({"expert": 2, "tensor": 2, "data": 2}, {"zero_stage": 3, "num_experts": 4}),
        ({"expert": 2, "data": 2}, {"zero_stage": 2, "num_experts": 4, "recompute": "selective"}),
        ({"pipeline": 2, "tensor": 2}, {"schedule": "zb-h1", "sequence_parallel": True, "recompute": "selective"}),
        ({"data": 2, "pipeline": 2, "context": 2, "tensor": 2}, {"config": LLAMA, "sequence_parallel": True}),
        pytest.param({"pipeline": 2, "tensor": 2}, {"config": TIED, "schedule": "zb-v"}, marks=SLOWER),
        ({"context": 2}, {"config": TIED, "attention": ulysses_attention}),
        ({"expert": 2, "tensor": 2, "pipeline": 2}, {"config": LLAMA, "num_experts": 4, "sequence_parallel": True}),
        ({"expert": 2, "data": 2}, {"config": LLAMA, "num_experts": 4, "zero_stage": 3, "recompute": "full"}),
    ],
    ids=lambda chosen: (
        ", ".join(f"{key}={getattr(value, '__name__', str(value)[:11])}" for key, value in chosen.items()) or "plain"
    ),
)
def test_loss_gradients_norm_and_parameters_are_those_of_one_device(sizes: Any, options: Any):
    how = Combination(
        **{"config": CONFIG, **options}, mesh=Mesh(**sizes), batch_size=8, seq_len=16, num_micro_batches=2
    )
    assert_is_one_device(how, run(how))


@pytest.mark.parametrize("sizes", [{"data": 2, "pipeline": 2, "tensor": 2}, {"data": 2, "context": 2}])
def test_each_token_with_a_loss_counts_the_same_wherever_padding_is(sizes: Any):
    """Replicas, micro-batches and context ranks have different numbers of tokens with a loss, some of them none."""
    how = Combination(CONFIG, Mesh(**sizes), 8, 16, num_micro_batches=2)
    tokens, targets = batch(CONFIG, 8, 16)
    for row, length in enumerate([16, 3, 0, 0, 9, 1, 16, 12]):
        targets[row, length:] = -100

    def program() -> tuple[float, dict[str, Tensor]]:
        step = CombinedStep(how, partial(torch.optim.SGD, lr=0.1), model=moved(CONFIG), padded=True)
        return step.backward(tokens, targets).item(), step.full_gradients()

    model = moved(CONFIG)
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    for found_loss, found in launch(program, ranks=how.mesh.num_ranks, trace=False).values:
        assert found_loss == pytest.approx(loss.item(), rel=1e-12)
        torch.testing.assert_close(found, {name: p.grad for name, p in model.named_parameters()}, **EXACT)


@given(data=st.data())
@settings(max_examples=6)
def test_drawn_meshes_give_the_gradients_of_one_device(data: Any):
    """Uneven layers, heads, vocabularies and hidden widths; any axis may have one rank, or be left out."""
    size = st.sampled_from([1, 2, 3])
    axes = ["data", "expert", "context", "pipeline", "tensor"]
    sizes = {axis: data.draw(size) for axis in data.draw(st.permutations(axes))}
    num_experts = sizes["expert"] * data.draw(st.integers(0, 2))
    sizes["expert"] = sizes["expert"] if num_experts else 1
    while math.prod(sizes.values()) > 12:
        sizes[max(sizes, key=lambda axis: sizes[axis])] = 1
    context, tensor = sizes["context"], sizes["tensor"]
    config = data.draw(st.sampled_from([GPTConfig, LlamaConfig]))(
        num_layers=data.draw(st.integers(2, 4)),
        d_model=24,
        num_heads=tensor * data.draw(st.integers(1, 2)) if tensor < 3 else 3,
        vocab_size=data.draw(st.integers(3, 14)),
        max_seq_len=48,
        d_ff=data.draw(st.integers(1, 9)) * (tensor if num_experts else 1),
        tied_head=data.draw(st.booleans()),
    )
    num_micro_batches = data.draw(st.integers(1, 3))
    schedule = data.draw(st.sampled_from(["gpipe", "1f1b", "zb-h1"]))
    how = Combination(
        config,
        Mesh(**sizes),
        sizes["data"] * sizes["expert"] * num_micro_batches * data.draw(st.integers(1, 2)),
        2 * context * tensor,
        num_micro_batches=num_micro_batches,
        schedule=schedule,
        sequence_parallel=data.draw(st.booleans()),
        num_experts=num_experts,
        num_active=data.draw(st.integers(1, max(1, num_experts))),
        uneven_vocabulary=data.draw(st.sampled_from(["chunk", "pad"])),
        recompute=data.draw(
            st.sampled_from(["none", "selective", "full"] if context * tensor == 1 else ["none", "full"])
        ),
        zero_stage=data.draw(st.integers(1, 3)) if sizes["pipeline"] == 1 and schedule != "zb-h1" else 1,
    )
    assert_is_one_device(how, run(how))


def test_real_processes_give_what_the_simulator_gives_and_the_simulator_repeats_to_the_bit():
    how = Combination(CONFIG, Mesh(pipeline=2, tensor=2), 4, 8, num_micro_batches=2, sequence_parallel=True)
    first, again = run(how), run(how)
    for (loss, norm, *tensors), (loss_2, norm_2, *tensors_2) in zip(first, again, strict=True):
        assert (loss, norm) == (loss_2, norm_2)
        for one, other in zip(tensors, tensors_2, strict=True):
            assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert_is_one_device(how, launch(train, how, ranks=4, backend="gloo").values, first[0])


@SLOWER
def test_real_processes_share_data_and_tensors():
    how = Combination(CONFIG, Mesh(data=2, tensor=2), 4, 8, num_micro_batches=2, sequence_parallel=True, zero_stage=3)
    assert_is_one_device(how, launch(train, how, ranks=4, backend="gloo").values)


def test_the_optimizers_state_is_cut_over_data_and_context():
    how = Combination(CONFIG, Mesh(data=2, context=2, tensor=2), 4, 8)

    def program() -> tuple[int, int]:
        step = CombinedStep(how, partial(torch.optim.AdamW, lr=0.1), dtype=torch.float64)
        step(*batch(CONFIG, 4, 8))
        state = step.sharded.optimizer.state.values()
        return sum(each["exp_avg"].numel() for each in state), sum(p.numel() for p in step.part.parameters())

    for in_state, params in launch(program, ranks=8, trace=False).values:
        assert params / 4 <= in_state < params / 4 + 8  # padding of each buffer


def sent(how: Combination, model: Any, *axes: str) -> list[float]:
    """Bytes of a step from rank 0 in its group along each axis; a sum over two ranks counts as a ring's."""

    def program() -> None:
        CombinedStep(how, partial(torch.optim.SGD, lr=0.1), model=model)(*batch(how.config, 8, 16))

    transfers = launch(program, ranks=8).traffic.transfers
    sizes = [(one.ranks, one.tensor_bytes if one.name == "all_reduce" else one.sent_bytes[0]) for one in transfers]
    return [sum(size for ranks, size in sizes if ranks == how.mesh.group_of(0, axis)) for axis in axes]


@pytest.mark.parametrize("cuts_sequence", [False, True], ids=["", "sequence"])
@pytest.mark.parametrize("config", [CONFIG, LLAMA], ids=["gpt", "llama"])
def test_the_bytes_sent_for_experts_are_the_closed_forms(config: Any, cuts_sequence: bool):
    """Rows and counts; gradients and parameters of experts over data; the choices' weights over tensor ranks."""
    ranks, has_gate = ExpertRanks(2, data=2, tensor=2, cuts_sequence=cuts_sequence), config is LLAMA
    sizes = ExpertSizes(32, 8, 12, 4, 2, element_bytes=8, has_gate=has_gate)
    dense = Combination(config, Mesh(data=4, tensor=2), 8, 16, sequence_parallel=cuts_sequence)
    how = replace(dense, mesh=Mesh(data=2, expert=2, tensor=2), num_experts=4)
    form, (of_mlps,), model = expert_sent_bytes(sizes, ranks), sent(dense, moved(dense), "tensor"), model_of(config)
    rows, experts, tensor = sent(how, with_experts(model.double(), 4, 2, balanced=True), "expert", "data", "tensor")
    assert rows == CONFIG.num_layers * (form["rows"] + form["counts"])
    assert experts == CONFIG.num_layers * expert_weights(sizes, ranks) * sizes.element_bytes
    # Without f and g of an MLP; with cut tokens also the gradient of its bias is summed.
    of_mlp = 2 * 32 * 8 * 8 + 8 * 8 * (cuts_sequence and not has_gate)
    assert tensor - of_mlps == CONFIG.num_layers * (form["tensor"] - of_mlp)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_bytes_held_and_sent_at_each_stage_are_the_closed_forms(stage: int):
    how = Combination(CONFIG, Mesh(data=2, tensor=2), 8, 16, num_micro_batches=2, zero_stage=stage)

    def program(num_steps: int) -> int:
        step = CombinedStep(how, partial(torch.optim.SGD, lr=0.1), dtype=torch.float64)
        for _ in range(num_steps):
            step(*batch(CONFIG, 8, 16))
        steps.append(step)  # alive, with what it holds, when the run ends
        return sum(one.param.nbytes for buffer in step.sharded.buffers for one in buffer.owned)

    steps: list[CombinedStep] = []
    runs = [launch(program, num_steps, ranks=4) for num_steps in (1, 2)]
    group, size, held = (
        how.mesh.group_of(0, "data"),
        runs[0].values[0],
        runs[0].memory.at(0, runs[0].timeline.makespan_s),
    )
    first, both = (sum(x.sent_bytes[0] for x in run.traffic.transfers if x.ranks == group) for run in runs)
    # Half of everything, at stage 3 three times in each of two micro-batches, less the root's second gather.
    root = 12 // 2 * 8 * 8 * CONFIG.tied_head
    assert both - first == {1: 2 * size, 2: 3 * size, 3: 2 * (3 * size - root)}[stage] / 2
    of_whole = [held[name] / size for name in ("parameter", "gradient")]
    assert of_whole == {1: [1, 1.5], 2: [1, 0.5], 3: [0.5, 0.5]}[stage]


# ---- what takes time and memory ----

WIDE = GPTConfig(4, 64, 4, vocab_size=64, max_seq_len=64)


def shapes(mesh: Mesh, simulate: Any = None) -> Run:
    options: Any = {"schedule": "interleaved", "num_chunks": 2, "sequence_parallel": True, "autocast": torch.bfloat16}
    how = Combination(WIDE, mesh, 4 * mesh.sizes["data"], 64, num_micro_batches=2, **options)

    def program() -> None:
        tokens = torch.zeros(how.batch_size, 64, dtype=torch.int64)
        CombinedStep(how, partial(torch.optim.AdamW, lr=0.1), max_norm=1.0)(tokens, tokens)

    return launch(program, ranks=mesh.num_ranks, fidelity="shapes", simulate=simulate)


def test_phantom_replicas_change_neither_time_nor_memory():
    mesh = Mesh(data=3, pipeline=2, tensor=2)
    every, one_replica = shapes(mesh), shapes(mesh, range(4))
    assert one_replica.timeline.makespan_s == every.timeline.makespan_s
    for rank in range(4):
        assert one_replica.memory.peak_bytes(rank) == every.memory.peak_bytes(rank)


def test_gradients_of_a_piece_travel_beside_the_backward_of_another():
    """The last stage is done with piece 3 before piece 1: its gradients leave then, the tied embedding's at the end."""
    spans = shapes(Mesh(data=2, pipeline=2, tensor=2)).timeline.select(rank=2)
    last_backward_s = max(span.start_s for span in spans if span.phase.startswith("backward 1B"))
    starts = [span.start_s for span in spans if span.phase == "reduce" and span.stream.startswith("comm")]
    assert len(starts) == 3
    assert starts[0] < last_backward_s < starts[1]


# ---- mixed precision ----


def test_bf16_is_that_of_one_device_under_the_same_autocast():
    """BF16 has 8 bits: products of shards, rounded apart and then summed, differ in the last of them.

    So loss and gradients agree to a few times 2^-8, where one device's own distance to float32 is as large.
    """
    mesh = Mesh(data=2, pipeline=2, tensor=2)
    how = Combination(CONFIG, mesh, 8, 16, num_micro_batches=2, sequence_parallel=True, autocast=torch.bfloat16)
    tokens, targets = batch(CONFIG, 8, 16)
    model = moved(CONFIG, torch.float32)
    with autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    loss = next_token_loss(logits, targets)
    loss.backward()
    wanted = torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None])

    def program() -> tuple[float, Tensor]:
        step = CombinedStep(how, partial(torch.optim.SGD, lr=0.1), model=moved(CONFIG, torch.float32))
        found = step.backward(tokens, targets)
        grads = step.full_gradients()
        return found.item(), torch.cat([grads[name].flatten() for name, _ in model.named_parameters()])

    for found, grads in launch(program, ranks=8, trace=False).values:
        assert found == pytest.approx(loss.item(), rel=2**-8)
        assert grads.dtype == torch.float32
        assert (grads - wanted).norm() < 2**-6 * wanted.norm()


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    """FP16 with a scale that is too large at first: halved on all ranks until a step is taken, then as one device."""
    mesh = Mesh(data=2, pipeline=2, tensor=2)
    how = Combination(CONFIG, mesh, 4, 8, num_micro_batches=2, autocast=torch.float16)
    tokens, targets = batch(CONFIG, 4, 8)

    def program() -> tuple[list[bool], float, bool, float]:
        scaler = LossScaler(ScaleRule(2.0**20))
        step = CombinedStep(how, partial(torch.optim.SGD, lr=0.1), scaler=scaler, model=moved(CONFIG, torch.float32))
        skipped, is_same = [], True
        while not skipped or skipped[-1]:
            before = step.full_parameters()
            _, norm, was_skipped = step(tokens, targets)
            skipped.append(was_skipped)
            after = step.full_parameters()
            is_same &= all(torch.equal(after[name], before[name]) for name in before) == was_skipped
        return skipped, scaler.loss_scale, is_same, norm.item()

    model = moved(CONFIG, torch.float32)
    next_token_loss(model(tokens), targets).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf).item()
    values = launch(program, ranks=8, trace=False).values
    skipped, scale, _, _ = values[0]
    assert len(skipped) > 2 and scale == 2.0 ** (20 - len(skipped) + 1)
    for found in values:
        assert found[:3] == (skipped, scale, True)
        assert found[3] == pytest.approx(norm, rel=0.02)  # unscaled: FP16 has 11 bits, and a norm sums many roundings


# ---- what is refused ----


def of(mesh: Mesh | None = None, batch_size: Any = 8, seq_len: Any = 16, **options: Any) -> Combination:
    config = options.pop("config", CONFIG)
    return Combination(config, mesh or Mesh(data=2, pipeline=2, tensor=2), batch_size, seq_len, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: of(Mesh(data=2, tensr=2)), "axis.*tensr.*tensor"),
        (
            lambda: of(batch_size=6, num_micro_batches=2),
            "multiple of data \\* num_micro_batches: got 6 for 2 \\* 2; try 8",
        ),
        (lambda: of(seq_len=17), "at most max_seq_len=16 tokens: got 17"),
        (lambda: of(Mesh(context=4, tensor=2), seq_len=7), "a token for each piece of its order: got 7"),
        (
            lambda: of(Mesh(context=2), seq_len=9),
            "all ranks must have the same number of tokens of a sequence: got 9 tokens for context 2; pad to 12",
        ),
        (lambda: of(Mesh(context=2, tensor=2), seq_len=12, sequence_parallel=True, config=CONFIG), None),
        (
            lambda: of(Mesh(context=2, tensor=4), seq_len=12, sequence_parallel=True),
            "got 12 tokens for context 2 and tensor 4 with sequence parallelism; pad to 16",
        ),
        (lambda: of(Mesh(tensor=3)), "num_heads must be a multiple of the ranks: got 4 .* on 3 ranks; try 2"),
        (
            lambda: of(Mesh(tensor=4), config=GPTConfig(4, 8, 4, vocab_size=13, max_seq_len=16)),
            "vocabulary must be a mul",
        ),
        (lambda: of(Mesh(context=4, tensor=2), attention=ulysses_attention), "heads"),
        (
            lambda: of(Mesh(pipeline=8)),
            "got 8 pieces for 4 layers, an embedding and a head; try 6 layers, or pipeline=6",
        ),
        (lambda: of(schedule="interleaved", num_chunks=2, num_micro_batches=1), "num_microbatches"),
        (
            lambda: of(schedule="zb-h1", num_micro_batches=1, autocast=torch.bfloat16),
            "deferred weight gradients do not work with autocast",
        ),
        (
            lambda: of(Mesh(data=2), schedule="zb-h1", zero_stage=2),
            "do not work with zero_stage: got zero_stage=2 with zb-h1",
        ),
        (lambda: of(mesh=(2, 2)), "Combination: mesh must be"),  # pyright: ignore
        (
            lambda: of(zero_stage=3),
            "zero_stage must be 1 with pipeline ranks, .* got 3 with 2 stages; try zero_stage=1",
        ),
        (lambda: of(Mesh(expert=2)), "got 2 ranks and num_experts=0; try num_experts=2, or data=2 without the axis"),
        (lambda: of(Mesh(expert=2), num_experts=3), "got 3 experts on 2 ranks; try 1 rank, or 4 experts"),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_any_starts(call: Any, message: str | None):
    if message is None:
        call()
        return
    with pytest.raises(ValueError, match=message):
        call()


def test_what_does_not_fit_the_combination_is_refused_on_the_rank():
    how = of(Mesh(pipeline=2), 2, 4)
    with pytest.raises(RankError, match="pipeline 2 = 2 for 3; try pipeline=3"):
        launch(lambda: CombinedStep(how, partial(torch.optim.SGD, lr=0.1)), ranks=3)

    def program() -> None:
        CombinedStep(how, partial(torch.optim.SGD, lr=0.1))(*batch(CONFIG, 2, 8))

    with pytest.raises(RankError, match="batch_size x seq_len = \\[2, 4\\] .* got tokens \\[2, 8\\]"):
        launch(program, ranks=2)
    with pytest.raises(RankError, match="max_norm must be a number, above 0: got 0; try 1.0, or math.inf"):
        launch(lambda: CombinedStep(how, partial(torch.optim.SGD, lr=0.1), max_norm=0), ranks=2)
    other, frozen = GPT(GPTConfig(4, 8, 2, vocab_size=12, max_seq_len=16)), GPT(CONFIG)
    frozen.blocks[1].requires_grad_(False)
    for model, message in (
        (other, "the model must be as in the combination"),
        (frozen, "blocks.1.* no gradient; call"),
    ):
        with pytest.raises(RankError, match=message):
            launch(lambda model: CombinedStep(how, partial(torch.optim.SGD, lr=0.1), model=model), model, ranks=2)

    def freezes_later() -> None:
        step = CombinedStep(how, partial(torch.optim.AdamW, lr=0.1))
        step.part.blocks.requires_grad_(False)  # weight decay would change it
        step(*batch(CONFIG, 2, 4))

    with pytest.raises(RankError, match="must stay as when it was sharded: blocks.* has False instead of True; set"):
        launch(freezes_later, ranks=2)


def test_the_model_that_is_given_is_left_as_it_is():
    how = of(Mesh(pipeline=2, tensor=2), 2, 4)
    model = moved(CONFIG)
    before = {name: param.clone() for name, param in model.named_parameters()}

    def program() -> None:
        step = CombinedStep(how, partial(torch.optim.SGD, lr=0.1), model=model)
        step(*batch(CONFIG, 2, 4))
        assert not dist.get_rank() or all(p.grad is not None for p in step.part.parameters())

    launch(program, ranks=4, trace=False)
    for name, param in model.named_parameters():
        assert torch.equal(param, before[name]) and param.grad is None
