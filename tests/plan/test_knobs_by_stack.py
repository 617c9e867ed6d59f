"""Each knob of the planner on each stack: it changes the time, memory or traffic that it is about, or is refused.

Knobs are the arguments of `predict` and the fields of `Parallel`; those with a list of names are tried with every name.
A knob or a name without an expectation in EXPECTED fails, so that a new one is not forgotten.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from inspect import signature
from typing import Any

import pytest

from lablib.hardware import CLUSTERS
from lablib.models import TRANSFORMERS
from lablib.pipeline.closed_form import V_SHAPED, WITH_CLOSED_FORM
from lablib.plan import IDEAL, Parallel, Prediction, predict
from lablib.plan.arguments import OFFLOAD, PRECISIONS, TRAINABLE
from lablib.plan.gradient_compression import COMPRESSIONS
from lablib.plan.optimizers import OPTIMIZERS
from lablib.plan.parallel import SHARDING, ZERO_PLUS_PLUS
from lablib.plan.recompute import KINDS
from lablib.plan.rules import CHUNKED
from lablib.plan.stack import STACKS

GPT = replace(TRANSFORMERS["gpt3-1.3b"], num_layers=8)
MIXTURE = replace(TRANSFORMERS["mixtral-8x7b"], num_layers=4)
BASE: dict[str, Any] = {"model": GPT, "cluster": "dgx-a100", "parallel": Parallel(data=16), "batch": 64}
# Many activations with split states; a pipeline; experts.
LARGE: dict[str, Any] = {"parallel": Parallel(data=16, zero_stage=3), "micro_batch": 4}
PIPE: dict[str, Any] = {"parallel": Parallel(data=2, pipeline=4)}
EXPERTS: dict[str, Any] = {"model": MIXTURE, "parallel": Parallel(data=16)}

Signs = Mapping[str, int]  # quantity -> +1 more, -1 less, 0 another number
# (the question's changes, the knob's value, what changes)
Try = tuple[dict[str, Any], Any, Signs]


def _schedule(name: str) -> Try:
    """Next to another schedule of as many pieces."""
    is_cut = name in V_SHAPED or name in CHUNKED
    other = "1f1b" if not is_cut else "breadth-first" if name == "interleaved" else "interleaved"
    pipe = {"parallel": Parallel(data=2, pipeline=4, chunks=1 + is_cut), "schedule": other}
    return pipe, name, {"time|memory": 0}


def _compression(name: str) -> Try:
    return (
        {"parallel": Parallel(data=8)},
        name,
        {"data": -1} | ({"memory": 1} if COMPRESSIONS[name].has_error_feedback else {}),
    )


LESS_STATE = ("sgd", "sgd-momentum", "lion", "adafactor", "adam-8bit", "muon")
STATE = {name: {"optimizer state": -1} for name in LESS_STATE} | {"galore": {"optimizer state": -1, "optimizer": 1}}
STATE |= {"lamb": {"optimizer": 0}, "sophia": {"optimizer": 0}}
SAME = {"optimizer": ("adam", "adamw"), "compression": ("none",), "recompute": ("none",), "trainable": ("all",)}
SAME |= {"precision": ("bfloat16", "float16"), "schedule": ("1f1b",), "zero_stage": (0,)}
HOPPER, BLACKWELL = (
    {"cluster": "dgx-h100", "micro_batch": 4},
    {"cluster": "dgx-b200", "precision": "float8", "micro_batch": 16, "batch": 256},
)

TPU = {"cluster": "tpu-v5p-slice", "micro_batch": 16, "batch": 256}

EXPECTED: dict[str, list[Try]] = {
    "batch": [({}, 128, {"time": 1})],
    "micro_batch": [({"parallel": Parallel(data=16, zero_stage=3)}, 4, {"memory": 1})],
    "seq_len": [(LARGE | {"seq_len": 1024}, 2048, {"time": 1, "memory": 1})],
    "precision": [
        ({}, "float32", {"time": 1, "memory": 0}),
        ({"precision": "float32"}, "tfloat32", {"time": -1}),
        (HOPPER, "float8", {"time": -1}),
        (BLACKWELL, "float4", {"time": -1}),
        (TPU, "int8", {"time": -1}),
    ],
    "recompute": [
        (LARGE, "selective", {"time": 1}),
        (LARGE, "full", {"time": 1, "memory": -1}),
        (LARGE, "every 2", {"time": 1, "memory": -1}),
        (LARGE, "first 4", {"time": 1, "memory": -1}),
    ],
    "schedule": [_schedule(name) for name in WITH_CLOSED_FORM if name != "1f1b"],
    "optimizer": [({}, name, STATE.get(name, {"?": 0})) for name in OPTIMIZERS if name not in SAME["optimizer"]],
    "compression": [_compression(name) for name in COMPRESSIONS if name != "none"],
    "offload": [
        (LARGE, ("activations",), {"time": 1, "memory": -1, "host": 1}),
        (
            LARGE | {"parallel": Parallel(data=2, pipeline=2)},
            ("activations",),
            {"time": 1, "activation": -1, "host": 1},
        ),
        ({}, ("optimizer",), {"time": 1, "memory": -1, "optimizer state": -1}),
        (LARGE, ("optimizer",), {"time": 1, "memory": -1, "optimizer state": -1}),
        (
            LARGE | {"parallel": Parallel(data=16, zero_stage=3)},
            ("parameters",),
            {"time": 1, "memory": -1, "parameter": -1, "optimizer state": -1, "host": 1},
        ),
    ],
    "trainable": [
        ({}, "lora", {"time": -1, "memory": -1, "data": -1, "optimizer state": -1, "gradient": -1}),
        ({"trainable": "lora", "micro_batch": 4}, "qlora", {"time": 1, "memory": -1, "parameter": -1}),
    ],
    "derating": [({}, IDEAL, {"time": -1})],
    "host_link": [
        # of one GPU; those of a whole node wait for the host's memory
        ({"parallel": Parallel(), "offload": ("optimizer",)}, "pcie3", {"time": 1}),
        ({"offload": ("activations",)}, "pcie3", {"time": 1}),
    ],
    "order": [  # with one sequence an eager step takes as long as its host, wherever the ranks are
        (
            {"parallel": Parallel(data=4, tensor=8), "micro_batch": 4},
            ("tensor", "pipeline", "context", "data"),
            {"time": 1},
        )
    ],
    "data": [({"parallel": Parallel(data=8)}, 16, {"time": -1, "data": 1})],
    "tensor": [({}, 4, {"time": -1, "memory": -1, "tensor": 1})],
    "pipeline": [(PIPE | {"parallel": Parallel(data=2)}, 4, {"memory": -1, "pipeline": 1})],
    "context": [(LARGE | {"parallel": Parallel(data=4, zero_stage=3)}, 4, {"memory": -1, "context": 1})],
    "expert": [(EXPERTS, 8, {"memory": -1, "expert": 1})],
    "chunks": [({"parallel": Parallel(data=2, pipeline=4), "schedule": "interleaved"}, 2, {"time": 0, "pipeline": 1})],
    "sequence_parallel": [
        (
            {"parallel": Parallel(data=4, tensor=4, zero_stage=3, sequence_parallel=False)} | {"micro_batch": 4},
            True,
            {"memory": -1},
        )
    ],
    "zero_stage": [
        ({}, 1, {"memory": -1, "optimizer state": -1}),
        ({}, 2, {"memory": -1, "gradient": -1}),
        ({}, 3, {"memory": -1, "parameter": -1, "data": 1}),
    ],
    "reshard_after_forward": [(LARGE | {"micro_batch": 1}, False, {"data": -1, "memory": 1})],
    "zero_plus_plus": [
        (LARGE, ("qwZ",), {"data": -1}),
        (LARGE, ("hpZ",), {"data": -1, "memory": 1}),
        (LARGE, ("qgZ",), {"data": -1}),
    ],
    "replicas": [(LARGE | {"micro_batch": 1}, 2, {"memory": 1, "data": 0})],
    "expert_tensor": [(EXPERTS | {"parallel": Parallel(data=4, tensor=4, expert=4)}, 1, {"expert": 0})],
}
NAMES = {
    **{"precision": PRECISIONS, "recompute": KINDS, "schedule": WITH_CLOSED_FORM, "optimizer": tuple(OPTIMIZERS)},
    **{"compression": tuple(COMPRESSIONS), "offload": OFFLOAD, "trainable": TRAINABLE, "zero_stage": SHARDING},
    "zero_plus_plus": ZERO_PLUS_PLUS,
}
SPLIT = [one.name for one in fields(Parallel)]
ARGUMENTS = [name for name in signature(predict).parameters if name not in ("model", "cluster", "parallel", "stack")]
# Gradients of 16 bits, as of torch's own optimizers: there is nothing to compress to.
AS_WIDE = {("compression", "fp16"), ("compression", "bf16")}


def quantity(found: Prediction, name: str) -> Any:
    """A number of a prediction: of all, of the fullest stage, of an axis, or of a part of the step."""
    if "|" in name:
        return tuple(quantity(found, each) for each in name.split("|"))
    if name in found.communication:
        return found.communication[name][0]
    if name in found.parts:
        return found.parts[name]
    if name in found.memory[0]:
        return max(stage[name] for stage in found.memory)
    return {"time": found.step_time_s, "memory": found.peak_memory_bytes}[name]


TRIES = [(knob, *each) for knob, tries in EXPECTED.items() for each in tries]


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    ("knob", "base", "value", "signs"), TRIES, ids=[f"{knob}-{i}" for i, (knob, *_) in enumerate(TRIES)]
)
def test_a_knob_changes_what_it_is_about_or_is_refused(stack, knob, base, value, signs):
    question: dict[str, Any] = BASE | base | {"stack": stack}
    changed: dict[str, Any] = question | {knob: value}
    if knob in SPLIT:
        changed = question | {"parallel": replace(question["parallel"], **{knob: value})}
    try:
        before = predict(**question)
        after = predict(**changed)
    except ValueError as error:
        # Rule, value, remedy.
        assert "got" in str(error) and any(word in str(error) for word in ("try", "give", "leave")), error
        return
    if (knob, value) in AS_WIDE and (STACKS[stack].is_eager or STACKS[stack].gradient_bytes == 2):
        return
    for name, sign in signs.items():
        old, new = quantity(before, name), quantity(after, name)
        is_so = new != old if sign == 0 else (new - old) * sign > 0
        assert is_so, f"{knob}={value} on {stack}: {name} was {old} and is {new}"


def test_every_knob_and_every_name_has_an_expectation():
    assert set(EXPECTED) == {*SPLIT, *ARGUMENTS}
    for knob, names in NAMES.items():
        tried = {name for _, value, _ in EXPECTED[knob] for name in (value if isinstance(value, tuple) else (value,))}
        assert tried >= set(names) - set(SAME.get(knob, ())), knob


def test_few_knobs_are_refused_on_many_stacks():
    """A refusal is no way out: each knob works on at least one stack."""
    for knob, base, value, _ in TRIES:
        worked = 0
        for stack in STACKS:
            question: dict[str, Any] = BASE | base | {"stack": stack}
            changed: dict[str, Any] = (
                {"parallel": replace(question["parallel"], **{knob: value})} if knob in SPLIT else {knob: value}
            )
            try:
                worked += bool(predict(**(question | changed)))
            except ValueError:
                continue
        assert worked, (knob, value)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", [name for name, each in COMPRESSIONS.items() if each.has_error_feedback])
def test_error_feedback_takes_the_same_bytes_on_every_stack(stack, name):
    question: dict[str, Any] = BASE | {"stack": stack, "parallel": Parallel(data=8)}
    buffers = [predict(**question, compression=each).memory[0]["communication buffer"] for each in (name, "none")]
    params = 8 * 12 * GPT.d_model**2 + GPT.vocab_size * GPT.d_model
    expected = 4 * params * (1 + (COMPRESSIONS[name].exchange == "two_phase") / 8)
    assert buffers[0] - buffers[1] == pytest.approx(expected, rel=0.01)


def test_offloaded_activations_are_two_layers_on_eager_stacks_too():
    for stack in ("torch", "torch-megatron", "torch-compile"):
        question: dict[str, Any] = BASE | LARGE | {"stack": stack, "cluster": CLUSTERS["dgx-a100"]}
        for layers in (4, 8, 16):
            deep: dict[str, Any] = question | {"model": replace(GPT, num_layers=layers)}
            kept, moved = predict(**deep), predict(**deep, offload=("activations",))
            saved = kept.peak_memory_bytes - moved.peak_memory_bytes
            size = deep["micro_batch"] * GPT.max_seq_len * GPT.d_model * 2
            assert 15 < saved / (layers - 2) / size < 25, (stack, layers)  # a layer of a GPT keeps about 17 inputs
