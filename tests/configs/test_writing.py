"""Plans written as configurations are read back as the same plans; choices that a tool does not have are refused."""

import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lablib.cli.plan_written import settings_of
from lablib.configs.deepspeed import parse_deepspeed
from lablib.configs.megatron import parse_megatron
from lablib.configs.torchtitan import parse_torchtitan
from lablib.configs.writing import DEFAULTS, TOOLS, write
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.plan import Parallel, predict, search

READ = {
    "deepspeed": lambda text, gpus: parse_deepspeed(json.loads(text)),
    "megatron": lambda text, gpus: parse_megatron(text),
    "torchtitan": lambda text, gpus: parse_torchtitan(tomllib.loads(text), gpus),
}
# The choices that a tool's file holds; the others are at their defaults.
STACKS = {"deepspeed": [None], "megatron": ["megatron-core"], "torchtitan": ["torch-compile", "torch-compile-2024"]}
MODELS = {
    "deepspeed": ["gpt2"],
    "megatron": ["megatron-1.7b", "llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite"],
    "torchtitan": ["llama-3-8b", "qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"],
}
CHOICES: dict[str, dict[str, list[Any]]] = {
    "deepspeed": {
        "precision": ["bfloat16", "float16", "float32"],
        "optimizer": ["adamw", "adam", "lamb", "lion", "sgd", "muon"],
        "zero_stage": [0, 1, 2, 3],
        "zero_plus_plus": [(), ("qwZ",), ("qwZ", "hpZ"), ("hpZ", "qgZ")],
        "offload": [(), ("optimizer",), ("optimizer", "activations"), ("activations",), ("optimizer", "parameters")],
    },
    "megatron": {
        **{"tensor": [1, 2, 4], "pipeline": [1, 2, 3], "context": [1, 2], "chunks": [1, 2], "expert": [1, 2]},
        **{"replicas": [1, 2], "expert_tensor": [None, 1], "sequence_parallel": [None, False]},
        "precision": ["bfloat16", "float16", "float32", "float8", "float4"],
        "optimizer": ["adamw", "sgd-momentum", "muon"],
        "zero_stage": [0, 1, 2, 3],
        "offload": [(), ("optimizer",)],
        "recompute": ["none", "selective", "full", "every 2", "first 3"],
    },
    "torchtitan": {
        **{"tensor": [1, 2, 4], "pipeline": [1, 2, 3], "context": [1, 2], "chunks": [1, 2], "expert": [1, 2]},
        **{
            "replicas": [1, 2],
            "expert_tensor": [None, 1],
            "zero_stage": [0, 3],
            "reshard_after_forward": [True, False],
        },
        "precision": ["bfloat16", "float32", "float8"],
        "optimizer": ["adamw", "adam"],
        "offload": [(), (), ("parameters",)],
        "recompute": ["none", "selective", "full", "first 4"],
        "schedule": ["1f1b", "gpipe", "interleaved", "breadth-first", "zb-v", "dualpipe-v"],
    },
}


def is_same(model: Transformer, other: Transformer) -> bool:
    """Up to names and defaults."""
    sizes = [
        replace(each, name="", source="", d_ff=each.hidden_size, num_kv_heads=each.kv_heads, d_head=each.head_size)
        for each in (model, other)
    ]
    return sizes[0] == sizes[1]


def searched(gpus: int, model: Transformer, record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the one plan that a reader's record describes."""
    given: dict[str, Any] = {"recompute": "none", "schedule": "1f1b", "expert_tensor": None, "micro_batch": 1}
    given |= {"pipeline": 1, "tensor": 1, "context": 1, **record}
    found = search(given.pop("model", model), "dgx-h100", gpus=gpus, **given)
    assert len(found.plans) == 1, found
    return settings_of(found.plans.arguments(0))


@pytest.mark.parametrize("tool", TOOLS)
@given(data=st.data())
def test_a_plan_that_a_tool_can_express_is_read_back(tool, data):
    draw = data.draw
    model = find_transformer(draw(st.sampled_from(MODELS[tool])))
    plan = {name: draw(st.sampled_from(values)) for name, values in CHOICES[tool].items()}
    plan |= {"data": draw(st.sampled_from([2, 4, 8])), "micro_batch": draw(st.integers(1, 3)), "model": model}
    plan |= {"seq_len": draw(st.sampled_from([2048, model.max_seq_len])), "stack": draw(st.sampled_from(STACKS[tool]))}
    plan = {**DEFAULTS, **plan}
    plan["batch"] = plan["data"] * plan["micro_batch"] * plan["pipeline"] * draw(st.integers(1, 4))
    if tool == "megatron":
        plan["schedule"] = "interleaved" if plan["chunks"] > 1 else "1f1b"
    if plan["pipeline"] == 1:
        plan |= {"chunks": 1, "schedule": "1f1b"}
    if not model.experts:
        plan |= {"expert": 1, "expert_tensor": None}
    # One way to write the same plan.
    if plan["tensor"] == 1 or tool == "torchtitan" and plan["expert"] == 1:
        plan["expert_tensor"] = None
    plan["sequence_parallel"] = None if plan["tensor"] == 1 else plan["sequence_parallel"]
    if plan["zero_stage"] == 0:
        plan["replicas"] = 1
    if plan["zero_stage"] != 3:
        plan |= {"reshard_after_forward": True, "zero_plus_plus": ()}
    gpus = plan["data"] * plan["tensor"] * plan["pipeline"] * plan["context"]
    try:
        written = write(plan, tool, gpus_per_node=8)
        first = searched(gpus, model, plan)
    except (ValueError, AssertionError):  # a plan that the tool or the planner does not have
        assume(False)
        raise
    reading = READ[tool](written.text, gpus)
    assert reading.unknown == ()
    if tool == "deepspeed":
        assert reading.omissions == ()
        reading.record["seq_len"] = plan["seq_len"]  # a remark says so
    else:
        assert (
            written.remarks == () or "pads the vocabulary" in str(written.remarks) or "32-bit" in str(written.remarks)
        )
        assert is_same(reading.record["model"], model) or "pads the vocabulary" in str(written.remarks)
    assert searched(gpus, model, reading.record | {"model": model}) == first


PLAN = {"model": find_transformer("llama-3-8b"), "data": 8, "batch": 64, "zero_stage": 3}


@pytest.mark.parametrize(
    ("tool", "change", "message"),
    [
        ("deepspeed", {"precision": "float8", "optimizer": "galore"},
         "deepspeed cannot express precision 'float8' .*; optimizer 'galore' .*: choose another plan"),
        ("deepspeed", {"pipeline": 2}, "zero_stage 3 with pipeline 2"),
        ("deepspeed", {"zero_stage": 0, "offload": ("optimizer",)}, "offload of the optimizer with zero_stage 0"),
        ("deepspeed", {"zero_plus_plus": ("hpZ",)}, "hpZ without the number of GPUs"),
        ("megatron", {"schedule": "zb-v", "offload": ("activations",)}, "schedule 'zb-v' .*; offload"),
        ("megatron", {"compression": "int8", "trainable": "lora"}, "compression int8, trainable lora"),
        ("megatron", {"model": find_transformer("bloom-176b")}, "positions 'alibi'"),
        ("megatron", {"optimizer": "muon"}, "muon with zero_stage 3"),
        ("torchtitan", {"model": find_transformer("gpt2")}, "the model gpt2 .it has llama3 debugmodel"),
        ("torchtitan", {"zero_stage": 2}, "zero_stage 2 .it has 0 and 3"),
        ("torchtitan", {"zero_stage": 0, "tensor": 2}, "zero_stage 0 with other axes than data"),
        ("torchtitan", {"tensor": 2, "sequence_parallel": False}, "tensor ranks without sequence_parallel"),
        ("torchtitan", {"recompute": "every 4"}, "recompute 'every 4' .it has every n-th layer"),
        ("torchtitan", {"recompute": "first 31"}, "recompute 'first 31'"),
        ("torchtitan", {"pipeline": 2, "schedule": "zb-h1"}, "schedule 'zb-h1'"),
        ("nemo", {}, "unknown tool 'nemo'"),
        ("megatron", {"tensr": 2}, "unknown setting 'tensr': did you mean 'tensor'"),
        ("megatron", {"model": None}, "megatron needs the sizes of the model"),
    ],
)  # fmt: skip
def test_a_choice_that_a_tool_does_not_have_is_refused(tool, change, message):
    with pytest.raises(ValueError, match=message):
        write(PLAN | change, tool)


@pytest.mark.parametrize(
    ("tool", "change", "remark"),
    [
        ("deepspeed", {"tensor": 2, "recompute": "full"}, "the program chooses it: tensor 2, recompute full"),
        ("megatron", {"tensor": 8, "model": find_transformer("gpt2")}, "pads the vocabulary of 50,257 by 7"),
        ("megatron", {"stack": "torch"}, "priced with torch; Megatron-LM today is megatron-core"),
        ("torchtitan", {"stack": "megatron-core"}, "priced with megatron-core; torchtitan is torch-compile"),
        ("torchtitan", {"zero_stage": 0, "data": 1, "batch": 8, "tensor": 8}, "without 32-bit copies"),
    ],
)
def test_a_choice_outside_of_the_file_is_a_remark(tool, change, remark):
    assert any(remark in each for each in write(PLAN | change, tool).remarks)


def test_defaults_are_those_of_the_planner():
    of_predict = {name: each.default for name, each in inspect.signature(predict).parameters.items()}
    for name, value in DEFAULTS.items():
        if name not in ("model", "batch"):
            assert value == (getattr(Parallel(), name) if hasattr(Parallel(), name) else of_predict[name]), name
    assert write(PLAN, "torchtitan") == write(dict(DEFAULTS) | PLAN, "torchtitan")
