"""From one GPU to a plan, axis by axis: each step is a prediction, helps, and says so in its own numbers."""

from dataclasses import replace
from itertools import pairwise

import pytest

from lablib.hardware import find_cluster
from lablib.plan import AxisStep, axis_by_axis, predict, search

CASES = {
    "gpt3": ("gpt3-175b", "dgx-a100", 1536, 512, {}),
    "llama 3": ("llama-3-405b", "dgx-h100", 2048, 16384, {"seq_len": 8192}),
    "long": ("llama-3-405b", "dgx-h100", 128, 16384, {"seq_len": 131072}),
    "small": ("gpt2", "dgx-a100", 512, 8, {}),
    "one node": ("gpt3-13b", "dgx-a100", 512, 64, {}),
}
UNTIL_IT_FITS = ("tensor", "context", "pipeline", "recompute")


@pytest.fixture(scope="module", params=list(CASES.values()), ids=list(CASES))
def walk(request: pytest.FixtureRequest) -> tuple[tuple, tuple[AxisStep, ...]]:
    model, cluster, batch, gpus, options = request.param
    return request.param, axis_by_axis(model, cluster, batch, gpus, **options)


def test_the_way_begins_on_one_gpu_and_ends_with_a_plan_that_fits_on_all(walk):
    (_, _, _, gpus, _), steps = walk
    assert steps[0].axis == "one GPU" and steps[0].gpus == 1
    assert steps[-1].fits and steps[-1].gpus == gpus
    assert steps[0].fits == (not any(step.axis in UNTIL_IT_FITS for step in steps))


def test_every_step_is_what_the_planner_says_of_it(walk):
    (model, cluster, batch, _, options), steps = walk
    for step in steps:
        schedule = "interleaved" if step.parallel.chunks > 1 else "1f1b"
        recompute = step.prediction.recompute
        again = predict(model, cluster, step.parallel, batch, recompute=recompute, schedule=schedule, **options)
        assert (step.step_time_s, step.memory_bytes) == (again.step_time_s, again.peak_memory_bytes)


def test_axes_are_added_for_memory_until_it_fits_and_then_for_time(walk):
    _, steps = walk
    for before, after in pairwise(steps):
        if after.axis in UNTIL_IT_FITS and not before.fits:
            assert after.memory_bytes < before.memory_bytes
        elif after.axis == "ZeRO-1":
            assert after.memory_bytes < before.memory_bytes and after.step_time_s <= 1.01 * before.step_time_s
        else:
            assert before.fits and after.fits and after.step_time_s < 0.99 * before.step_time_s


def test_reasons_are_sentences_with_the_numbers_of_their_steps(walk):
    _, steps = walk
    for step in steps:
        assert step.reason.endswith(".") and any(letter.isdigit() for letter in step.reason)
        assert step.reason == step.row()["reason"] and step.row()["GPUs"] == step.gpus
        if step.axis == "tensor":
            share = step.prediction.communication["tensor"][1] / step.step_time_s
            assert f"{share:.1%} of the step exposed" in step.reason
        if step.axis == "pipeline":
            assert f"bubble of {step.prediction.bubble_fraction:.1%}" in step.reason


@pytest.mark.parametrize(
    ("model", "batch", "gpus", "seq_len", "memory_gb", "before", "after"),
    [("llama-2-70b", 1024, 2048, 1024, 10, "full", "none"), ("gpt3-13b", 16, 64, 32768, 16, "full", "full")],
)
def test_fewer_stages_say_what_becomes_of_recomputation(model, batch, gpus, seq_len, memory_gb, before, after):
    """Of a small GPU: where activations are not computed again any more, most of the time gained is that."""
    a100 = find_cluster("dgx-a100")
    cluster = a100.replace(device=replace(a100.device, memory_bytes=memory_gb * 1e9))
    steps = axis_by_axis(model, cluster, batch, gpus, seq_len=seq_len)
    (first, fewer), *_ = [pair for pair in pairwise(steps) if pair[1].axis == "fewer stages"]
    assert (first.prediction.recompute, fewer.prediction.recompute) == (before, after)
    assert (f"; recomputation: {after};" in fewer.reason) == (before != after)
    assert ("recomputation" in fewer.reason) == (before != after)


def test_gpt3_takes_tensor_ranks_in_a_node_then_stages_then_replicas():
    steps = axis_by_axis(*CASES["gpt3"][:4])
    assert [step.axis for step in steps][:5] == ["one GPU", "tensor", "pipeline", "data", "ZeRO-1"]
    assert steps[1].parallel.tensor == 8 and "16 would cross nodes" in steps[1].reason
    assert steps[2].fits and not steps[1].fits
    assert "41.8 times; most is optimizer state" in steps[0].reason


def test_sequences_that_no_stages_hold_take_context_ranks_first():
    model, cluster, batch, gpus, options = CASES["long"]
    axes = [step.axis for step in axis_by_axis(model, cluster, batch, gpus, **options)]
    assert axes.index("context") < axes.index("pipeline")


def test_the_plan_is_near_the_best_that_a_search_finds():
    """The walk is greedy, and lets the search be faster: by 10% at most here."""
    model, cluster, batch, gpus, _ = CASES["gpt3"]
    best = search(model, cluster, batch=batch, gpus=gpus, micro_batch=1, context=1).best
    assert best is not None
    assert best.step_time_s <= axis_by_axis(model, cluster, batch, gpus)[-1].step_time_s <= 1.1 * best.step_time_s


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gpus": 8}, "no plan of this walk fits gpt3-175b on 8 GPUs"),
        ({"recompute": "full"}, "axis_by_axis chooses recompute itself"),
        ({"model": "gpt3-176b"}, "gpt3-175b"),
        ({"cluster": "dgx-a101"}, "dgx-a100"),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments, words: str):
    usual = {"model": "gpt3-175b", "cluster": "dgx-a100", "batch": 1536, "gpus": 512}
    with pytest.raises(ValueError, match=words) as raised:
        axis_by_axis(**usual | arguments)
    assert "\n" not in str(raised.value)
