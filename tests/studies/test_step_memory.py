"""The memory of a step on paper equals the memory tracker's of that step, torch's tracker, and the planner."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from lablib import launch
from lablib.memory.training_step import MasterWeights, checkpoint_layers, training_step
from lablib.models import GPT, GPTConfig
from lablib.models.published import find_transformer
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan.derating import IDEAL
from lablib.plan.parallel import Parallel
from lablib.plan.predict import predict
from lablib.studies.step_memory import CONTEXT_BYTES, OPTIMIZERS, PRECISIONS, StepMemory, memory_of_step

MARK = 12345  # bytes of a block that says where the second step begins and ends
STEPPED: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, foreach=True),
    "adamw, fused": lambda params: torch.optim.AdamW(params, fused=True),
    "sgd-momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, foreach=True),
}
CONFIG = GPTConfig(3, 32, 2, 100, 16)


def zeros(batch: int, seq_len: int) -> Tensor:
    return torch.zeros(batch, seq_len, dtype=torch.long)


def two_steps(
    config: GPTConfig, batch: int, seq_len: int, precision: str, optimizer: str, every: int, num_microbatches: int
) -> None:
    """The second step is the one that is looked at: the optimizer has its state by then."""
    width, has_master = PRECISIONS[precision]
    model = GPT(config, dtype=torch.float32 if width == 4 else torch.bfloat16)
    if every:
        checkpoint_layers(model, every)
    masters = MasterWeights(model.parameters()) if has_master else None
    stepped = STEPPED[optimizer](masters.masters if masters else model.parameters())
    tokens = [(zeros(batch, seq_len), zeros(batch, seq_len)) for _ in range(num_microbatches)]
    for _ in range(2):
        mark = torch.zeros(MARK, dtype=torch.uint8)
        del mark
        training_step(model, stepped, tokens, masters)
    mark = torch.zeros(MARK, dtype=torch.uint8)
    del mark


def highest_moments(*args: Any, fidelity: str) -> tuple[list[dict[str, int]], int]:
    """What the memory tracker held before each time that something was freed, by category; and the step's peak."""
    memory = launch(two_steps, *args, ranks=1, fidelity=fidelity).memory
    marks = [block for block in memory.allocations if block.size_bytes == MARK]
    _, held = memory.curve(0)
    begin, stop = marks[1].end_event, marks[2].start_event - 1
    rows = np.array([held[name][begin:stop] for name in held])
    total = rows.sum(0)
    is_top = np.append(np.diff(total) < 0, True) & np.append(True, np.diff(total) > 0)
    tops = [dict(zip(held, map(int, rows[:, i]), strict=True)) for i in np.flatnonzero(is_top)]
    return tops, int(total.max())


def on_paper(*args: Any) -> StepMemory:
    config, batch, seq_len, precision, optimizer, every, num_microbatches = args
    recompute = f"every {every}" if every else "none"
    choices = {"precision": precision, "optimizer": optimizer, "recompute": recompute}
    return memory_of_step(config, seq_len, batch, num_microbatches=num_microbatches, **choices)


def assert_equal(*args: Any, fidelity: str = "shapes") -> None:
    """The peak, and in order every moment at which the memory tracker held more than before and after, by category."""
    tops, peak = highest_moments(*args, fidelity=fidelity)
    step = on_paper(*args)
    assert step.peak_bytes == peak
    moments = [step.at(i) for i in range(len(step.ops))]
    # Adam's number of steps is raised by a tensor of 4 bytes, when nothing else is made: that is not on paper.
    counted = moments[0]["other"] + 4
    tops = [top for top in tops if top["other"] != counted]
    if PRECISIONS[args[3]][1]:
        # The memory tracker counts a master's gradient as the optimizer's state.
        tops, moments = ([_merged(one) for one in each] for each in (tops, moments))
    places = iter(moments)
    for top in tops:
        assert any(top == moment for moment in places), f"the memory tracker held {top}, and no moment on paper does"


def _merged(held: dict[str, int]) -> dict[str, int]:
    return held | {"gradient": 0, "optimizer state": held["optimizer state"] + held["gradient"]}


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adamw, fused"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_moment_of_a_step_equals_the_tracker_of_a_run_to_the_byte(precision, optimizer):
    assert_equal(CONFIG, 3, 8, precision, optimizer, 0, 1)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("num_microbatches", [1, 2, 3])
def test_so_it_does_with_checkpoints_and_with_summed_gradients(every, num_microbatches):
    step = on_paper(CONFIG, 2, 16, "16 bits", "sgd", every, num_microbatches)
    tops, peak = highest_moments(CONFIG, 2, 16, "16 bits", "sgd", every, num_microbatches, fidelity="shapes")
    data = 16 * 16 * 2 * (num_microbatches - min(num_microbatches, 2))
    # Tokens of the third micro-batch are there too.
    assert step.peak_bytes == peak - data
    if num_microbatches < 3:
        assert_equal(CONFIG, 2, 16, "16 bits", "sgd", every, num_microbatches)


def test_so_it_does_with_real_numbers_and_a_fused_optimizer():
    assert_equal(CONFIG, 2, 8, "float32", "adamw, fused", 0, 2, fidelity="values")


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_so_it_does_at_sizes_that_nobody_chose(data):
    draw = data.draw
    heads, d_head = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    seq_len = draw(st.integers(1, 12))
    config = GPTConfig(
        *(draw(st.integers(1, 4)), heads * d_head, heads, draw(st.integers(2, 300)), draw(st.integers(seq_len, 20))),
        d_ff=draw(st.none() | st.integers(1, 50)),
        tied_head=draw(st.booleans()),
    )
    precision, optimizer = draw(st.sampled_from(list(PRECISIONS))), draw(st.sampled_from(["adamw", "sgd-momentum"]))
    assert_equal(config, draw(st.integers(1, 4)), seq_len, precision, optimizer, draw(st.integers(0, 4)), 2)


# ---- torch's tracker, which knows nothing of the simulator ----


def make_fake(model: nn.Module, mode: FakeTensorMode) -> None:
    """Parameters of the same shapes without numbers, in place; a shared one stays shared."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, param in list(module._parameters.items()):
            if param is None:
                continue
            if id(param) not in made:
                made[id(param)] = nn.Parameter(mode.from_tensor(param.detach()))
            setattr(module, name, made[id(param)])


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize(
    ("config", "batch"),
    [(CONFIG, 1), (GPTConfig(4, 48, 4, 256, 64), 6)],
    ids=["peak in the optimizer", "peak in the loss"],
)
def test_under_fake_tensors_torchs_tracker_sees_the_same_peak(config, batch, every):
    # In float32: of 16 bits torch keeps a norm's statistics in 16 on a CPU, and in 32 on a GPU, as is on paper.
    model, mode, tracker = GPT(config), FakeTensorMode(), MemTracker()
    make_fake(model, mode)
    if every:
        checkpoint_layers(model, every)
    with mode:
        optimizer = STEPPED["adamw"](model.parameters())
        tokens = [(zeros(batch, config.max_seq_len), zeros(batch, config.max_seq_len))]
        training_step(model, optimizer, tokens)
        tracker.track_external(model, optimizer, *tokens[0])
        with tracker:  # it follows one iteration
            training_step(model, optimizer, tokens)
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    theirs = {getattr(name, "value", name): size for name, size in theirs.items()}
    step = on_paper(config, batch, config.max_seq_len, "float32", "adamw", every, 1)
    assert (step.peak_bytes, step.at_peak["parameter"]) == (theirs["Total"], theirs["Parameter"])


# ---- closed forms ----


@pytest.mark.parametrize("name", ["gpt2", "gpt3-13b", "megatron-22b", "llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize(("precision", "optimizer", "each"), [
    ("float32", "adamw", (4, 4, 8)),
    ("16 bits", "adamw", (2, 2, 4)),
    ("16 bits, float32 master", "adamw", (2, 2, 12)),
    ("16 bits, float32 master", "sgd-momentum", (2, 2, 8)),
    ("float32", "sgd", (4, 4, 0)),
])  # fmt: skip
def test_a_parameter_takes_16_bytes_with_adamw_of_which_its_state_takes_12_beside_a_master(
    name, precision, optimizer, each
):
    model = find_transformer(name)
    step = memory_of_step(model, 64, precision=precision, optimizer=optimizer)
    numbers = transformer_parameters(model).total
    counters = step.at(0)["optimizer state"] - each[2] * numbers
    assert step.at(0)["parameter"] == each[0] * numbers
    assert 0 <= counters <= 4 * 20 * (model.num_layers + 1) * (optimizer == "adamw")
    last = max(i for i, op in enumerate(step.ops) if op.phase == "backward")
    assert step.at(last)["gradient"] == each[1] * numbers


@settings(max_examples=20, deadline=None)
@given(
    layers=st.integers(2, 5), heads=st.integers(1, 3), seq_len=st.integers(1, 64), batch=st.integers(1, 5),
    width=st.sampled_from([2, 4]),
)  # fmt: skip
def test_a_layer_keeps_16_numbers_a_token_and_width_and_its_statistics(layers, heads, seq_len, batch, width):
    precision = "float32" if width == 4 else "16 bits"
    d = 8 * heads
    step = memory_of_step(GPTConfig(layers, d, heads, 50, seq_len), seq_len, batch, precision=precision)
    first = [next(i for i, op in enumerate(step.ops) if op.layer == layer) for layer in (0, 1)]
    kept = step.held["activation"][first[1]] - step.held["activation"][first[0]]
    assert kept == batch * seq_len * (16 * d * width + 4 * (4 + heads))


# ---- other models: the planner's ----


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-2-7b", "llama-3-70b", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("recompute", ["none", "full", "every 4"])
@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_a_published_model_peaks_where_the_planner_says(name, recompute, num_microbatches):
    batch, seq_len = 3, 1024
    for precision, theirs in (("16 bits, float32 master", "bfloat16"), ("float32", "float32")):
        said = {"recompute": recompute, "optimizer": "adamw", "seq_len": seq_len}
        step = memory_of_step(name, micro_batch=batch, num_microbatches=num_microbatches, precision=precision, **said)
        planned = predict(
            name, "dgx-h100", Parallel(), batch * num_microbatches, micro_batch=batch, precision=theirs,
            stack="torch", derating=IDEAL, **said,
        )  # fmt: skip
        data = 16 * batch * seq_len * num_microbatches  # tokens and targets, which the planner leaves out
        rtol = 0.01 if step.is_exact else 1e-9
        assert step.peak_bytes - data == pytest.approx(planned.peak_memory_bytes, rel=rtol, abs=20)


@settings(max_examples=30, deadline=None)
@given(
    model=st.sampled_from(["gpt2", "gpt3-1.3b", "llama-2-7b", "qwen3-30b-a3b"]),
    device=st.sampled_from(["V100-32GB-SXM2", "H100-80GB-SXM", "B300-SXM"]),
    recompute=st.sampled_from(["none", "full"]),
    optimizer=st.sampled_from(list(OPTIMIZERS)),
)
def test_the_largest_micro_batch_fits_and_one_more_does_not(model, device, recompute, optimizer):
    def step_of(micro_batch: int) -> StepMemory:
        return memory_of_step(model, 512, micro_batch, recompute=recompute, optimizer=optimizer, device=device)

    most = step_of(1).largest_micro_batch
    assert most == step_of(7).largest_micro_batch
    assert not step_of(most + 1).fits and step_of(most + 1).margin_bytes < 0
    if most:
        assert step_of(most).fits
        assert (
            step_of(most).margin_bytes == step_of(most).device.memory_bytes - CONTEXT_BYTES - step_of(most).peak_bytes
        )


# ---- time, words and errors ----


def test_backward_takes_twice_as_long_as_forward_where_products_count():
    step = memory_of_step("gpt3-13b", 2048, 8)
    times = np.append(step.start_s, step.end_s)
    taken = {phase: sum(times[i + 1] - times[i] for i, op in enumerate(step.ops) if op.phase == phase)
             for phase in ("forward", "backward")}  # fmt: skip
    assert 1.8 < taken["backward"] / taken["forward"] < 2.4
    assert step.ops[step.index_at(0.0)].name == "aten.arange"  # what is there before takes no time
    assert step.index_at(step.end_s) == len(step.ops) - 1


def test_a_moment_is_explained_by_its_operator_and_its_line():
    step = memory_of_step("gpt2", micro_batch=8)
    text = step.explain(step.peak_index)
    # 8 x 1,024 x 50,257 numbers in 32 bits
    assert "aten._log_softmax_backward_data, which allocates 1.65 GB" in text
    assert "training_step.py:" in text and "loss.backward()" in text and "return F.cross_entropy(" in text
    [first] = [i for i, op in enumerate(step.ops) if (op.name, op.phase, op.layer) == ("aten.gelu", "forward", 3)]
    assert "F.gelu(self.up(x_BTD)" in step.where(first) and "layer 3" in step.where(first)
    again = memory_of_step("gpt2", micro_batch=8, recompute="full")
    [first] = [i for i, op in enumerate(again.ops) if (op.name, op.phase, op.layer) == ("aten.gelu", "recompute", 3)]
    assert "once more gpt.py:" in again.where(first)
    assert memory_of_step("llama-2-7b").where(5).endswith("a moment of the planner, whose program is not here.")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "gpt5"}, "unknown model 'gpt5'"),
        ({"seq_len": 2048}, "gpt2 has 1,024 learned positions, .*: got 2,048; try 1,024"),
        ({"recompute": "selective"}, "flash attention keeps no scores"),
        ({"recompute": "first 2"}, 'got "first 2"; try "every 2"'),
        ({"recompute": "some"}, 'try "every 4"'),
        ({"device": "H100"}, "unknown device 'H100'"),
    ],
)
def test_bad_input_is_one_clear_error(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        memory_of_step(**wrong)


def test_a_step_in_a_notebook_is_a_line():
    found = repr(memory_of_step(GPTConfig(2, 32, 2, vocab_size=64, max_seq_len=16), seq_len=16, micro_batch=2))
    assert found.startswith("StepMemory(") and "peak" in found and len(found) < 120
