"""Many plans at once: each as if it had been asked for alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.pipeline.closed_form import V_SHAPED, WITH_CLOSED_FORM
from lablib.plan import IDEAL, Predictions, predict, predict_many
from lablib.plan.prediction import AXES
from lablib.plan.predictions import PlanColumn
from lablib.plan.rules import CHUNKED, RULES

NUMBERS = {
    "data": [1, 2, 4, 8, 64],
    "tensor": [1, 2, 4, 8, 3],
    "pipeline": [1, 2, 3, 4, 7, 8, 16],
    "context": [1, 1, 2, 4],
    "replicas": [1, 1, 2],
    "micro_batch": [1, 2, 4],
    "batch": [64, 512, 1536],
    "seq_len": [1000, 2048, 4096],
    "zero_stage": [0, 1, 2, 3],
}


@st.composite
def plans(draw):
    schedule = draw(st.sampled_from(WITH_CLOSED_FORM))
    chunks = 2 if schedule in V_SHAPED else draw(st.sampled_from([1, 2, 3])) if schedule in CHUNKED else 1
    row = {name: draw(st.sampled_from(values)) for name, values in NUMBERS.items()}
    recompute = draw(st.sampled_from(["none", "selective", "full", "every 4", "first 2"]))
    return row | {"schedule": schedule, "chunks": chunks, "recompute": recompute}


CASES = [
    ("gpt3-175b", "dgx-a100", {}),
    ("bloom-176b", "dgx-v100", {"precision": "float16", "stack": "megatron-deepspeed"}),  # 70 layers
    ("bloom-176b", "dgx-a100", {"stack": "torch", "sequence_parallel": False}),
    ("llama-3-405b", "dgx-h100", {"derating": IDEAL, "offload": ("activations",)}),  # 126 layers
    ("mixtral-8x7b", "dgx-h100", {"expert": [1, 2, 8], "precision": "float8"}),
    ("deepseek-v3", "gb200-nvl72", {"expert": [1, 8, 64], "stack": "torch-compile"}),
    ("llama-3-70b", "tpu-v4", {"stack": "torch-megatron"}),  # a torus: no rank beyond its last node
    ("gpt2", "pcie-a100", {"compression": "int8", "stack": "fsdp-flash", "sequence_parallel": True}),
]


def same(found: Predictions, i: int) -> None:
    """Plan i of many, and the same plan alone."""
    try:
        alone = found[i]
    except ValueError as error:
        assert found.obstacle[i] >= 0 and found.reason(i) == str(error)
        assert np.isnan(found.step_time_s[i]) and not found.fits[i]
        return
    assert found.obstacle[i] < 0 and found.reason(i) == ""
    for name in ("step_time_s", "tokens_per_s", "mfu", "hfu", "peak_memory_bytes", "bubble_fraction"):
        assert getattr(found, name)[i] == pytest.approx(getattr(alone, name), rel=1e-9, abs=1e-12), name
    for axis in AXES:
        assert found.exposed_s[axis][i] == pytest.approx(alone.communication[axis][1], rel=1e-9, abs=1e-15), axis
    assert found.fits[i] == alone.fits and found.num_gpus[i] == alone.num_gpus


@given(case=st.sampled_from(CASES), rows=st.lists(plans(), min_size=1, max_size=6), experts=st.integers(0, 2))
def test_each_of_many_plans_is_predicted_as_if_it_were_alone(case, rows, experts):
    model, cluster, others = case
    others = {name: each[experts] if name == "expert" else each for name, each in others.items()}
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if "compression" in others:  # of gradients that are summed, which ZeRO-3 never does
        columns["zero_stage"] = [min(stage, 2) for stage in columns["zero_stage"]]
    found = predict_many(model, cluster, **columns, **others)
    assert len(found) == len(rows)
    for i in range(len(found)):
        same(found, i)


@pytest.mark.parametrize("stack", ["megatron-core", "torch"])
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_no_stage_keeps_more_than_those_that_are_looked_at(schedule, rounds, stack):
    # predict() looks at every stage; 70 layers divide by few of these.
    pipeline = np.arange(1, 36)
    chunks = np.where(pipeline > 1, 2, 1) if schedule == "interleaved" else 1
    given = {"pipeline": pipeline, "batch": 2 * rounds * pipeline, "chunks": chunks, "schedule": schedule}
    for recompute in ("none", "full", "first 1"):
        found = predict_many("bloom-176b", "dgx-h100", **given, stack=stack, recompute=recompute, zero_stage=1, data=2)
        assert found.is_possible.all()
        for i in range(len(found)):
            assert found.peak_memory_bytes[i] == pytest.approx(max(found[i].stage_bytes), rel=1e-9)


def test_many_cuts_of_a_layer_are_as_exact_as_few():
    # More distinct cuts than are remembered one by one.
    found = predict_many("gpt2", "dgx-a100", micro_batch=np.arange(1, 601), batch=np.arange(1, 601))
    for i in (0, 1, 63, 64, 299, 599):
        same(found, i)


def test_every_rule_has_its_plan_and_says_what_predict_says():
    broken = {
        "expert": {"expert": 8, "data": 4},
        "replicas": {"replicas": 3, "data": 4},
        "one stage": {"chunks": 2, "schedule": "interleaved"},
        "heads": {"tensor": 5},
        "seq_len": {"context": 3},
        "batch": {"data": 7},
        "layers": {"pipeline": 64},
        "mixture": {"expert": 2, "data": 2, "model": "llama-3-8b"},
        "experts": {"expert": 3, "data": 3, "batch": 48},
        "one piece": {"chunks": 2, "pipeline": 2},
        "two pieces": {"schedule": "zb-v", "pipeline": 2},
        "rounds": {"schedule": "interleaved", "pipeline": 8, "chunks": 2, "batch": 4},
        "pairs": {"schedule": "dualpipe-v", "pipeline": 4, "chunks": 2, "batch": 7},
        "torus": {"data": 4096, "batch": 4096, "tensor": 4, "cluster": "tpu-v4"},
    }
    for rule, changes in broken.items():
        question = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "batch": 16} | changes
        found = predict_many(**question)
        assert RULES[found.obstacle[0]].name == rule
        same(found, 0)


def test_columns_of_choices_may_be_values_lists_arrays_or_codes():
    names = ["none", "full", "none"]
    codes = PlanColumn(("none", "full"), np.array([0, 1, 0]))
    times = [
        predict_many("gpt2", "dgx-a100", batch=[8, 8, 16], recompute=given).step_time_s.tolist()
        for given in (names, np.array(names), codes)
    ]
    assert times[0] == times[1] == times[2]
    assert times[0][1] == predict("gpt2", "dgx-a100", batch=8, recompute="full").step_time_s


def test_a_value_may_be_an_array_without_dimensions():
    found = predict_many("gpt2", "dgx-a100", batch=np.array(8), zero_stage=np.array(1), recompute=np.array("full"))
    assert len(found) == 1 and found[0].recompute == "full" and found[0].parallel.zero_stage == 1


def test_numbers_beyond_64_bits_do_not_wrap():
    # 10^9 sequences of 10^9 tokens are 10^18 of them, their FLOPs and the bytes of their messages beyond 2^63.
    how = {"seq_len": 10**9, "pipeline": 4, "schedule": "gpipe", "stack": "megatron-deepspeed"}
    for batch, micro_batch in ((10**9, 1), (10**6, 10**6)):
        many = predict_many("llama-3-70b", "dgx-a100", batch=batch, micro_batch=micro_batch, **how)
        same(many, 0)


def test_a_plan_may_take_a_whole_torus():
    # 8 x 8 x 16 nodes of 4: with one stage there is no rank for a message to the next.
    for stack in ("megatron-core", "torch", "torch-megatron"):
        found = predict_many("gpt2", "tpu-v4", data=[4096, 2048], pipeline=[1, 2], batch=4096, stack=stack)
        for i in range(2):
            same(found, i)


def test_progress_is_told_until_all_are_done():
    told = []
    predict_many("gpt2", "dgx-a100", batch=[1, 2, 3], zero_stage=[0, 1, 0], progress=lambda *each: told.append(each))
    assert told == [(2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tensor": [1, 0]}, "tensor must be whole numbers, 1 or more, in one dimension: got \\[1, 0\\]"),
        ({"data": 1.5}, "data must be whole numbers"),
        ({"data": [1, 2], "tensor": [1, 2, 4]}, "columns must have one length"),
        ({"schedule": ["1f1b", "1f1c"]}, "did you mean '1f1b'"),
        ({"batch": 10**10}, "batch must be 1,000,000,000 or less: got 10,000,000,000"),
        ({"batch": 10**20}, "batch must be 1,000,000,000 or less: got 100,000,000,000,000,000,000"),
    ],
)
def test_what_makes_no_sense_for_any_plan_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        predict_many("gpt2", "dgx-a100", **given)


def test_a_plan_that_is_not_there_is_an_index_error_and_all_can_be_gone_through():
    found = predict_many("gpt2", "dgx-a100", batch=[1, 2])
    with pytest.raises(IndexError, match="there are 2 plans: got 2"):
        found[2]
    assert [each.batch for each in found] == [1, 2]
    assert repr(found) == "Predictions(2 plans: 2 possible, 2 fit)"
