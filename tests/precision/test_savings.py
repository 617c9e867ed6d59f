"""Bytes and seconds of steps: the simulator's memory tracker and clock beside the sums."""

from functools import partial

import pytest

from lablib import launch
from lablib.models import GPT, GPTConfig, num_parameters
from lablib.precision.formats import BF16, FP16, FP32, TF32
from lablib.precision.savings import held_bytes, training_steps
from lablib.run import Run

SMALL = GPTConfig(2, 64, 2, vocab_size=128, max_seq_len=64)
GPT2 = GPTConfig(12, 768, 12)


def step_of(format, config=SMALL, batch_size=1, seq_len=64, cluster="dgx-a100") -> Run:
    program = partial(training_steps, format, config, batch_size, seq_len)
    return launch(program, ranks=1, cluster=cluster, fidelity="shapes")


@pytest.mark.parametrize("format", [FP32, TF32, BF16, FP16], ids=str)
def test_what_a_step_holds_is_the_table_to_the_byte(format):
    """With 2 tokens the peak is where all gradients are there."""
    run, held = step_of(format, seq_len=2), held_bytes(num_parameters(SMALL), format)
    at_peak = run.memory.at_peak(0)
    num_tensors = len(list(GPT(SMALL, device="meta").parameters()))
    assert at_peak["parameter"] == held.weights
    assert at_peak["optimizer state"] == held.optimizer_states + 4 * num_tensors  # Adam counts its steps, in FP32
    assert at_peak["gradient"] == held.gradients
    assert held.total == (16 if format.num_bits > 16 else 18) * num_parameters(SMALL)


def test_activations_halve_and_logits_do_not():
    """Without a vocabulary to speak of the activations are half; GPT-2's logits, in FP32, keep a step from it."""
    few_words = GPTConfig(2, 64, 2, vocab_size=2, max_seq_len=64)
    wide, half = (step_of(f, few_words, 16).memory.at_peak(0)["activation"] for f in (FP32, BF16))
    assert 0.5 <= half / wide < 0.53
    wide, half = (step_of(f, GPT2, 8, 1024).memory for f in (FP32, BF16))
    assert 0.6 < half.at_peak(0)["activation"] / wide.at_peak(0)["activation"] < 0.65
    assert 0.75 < half.peak_bytes(0) / wide.peak_bytes(0) < 0.85


def test_steps_are_faster_by_less_than_products():
    """V100: FP16's peak is 8 times FP32's. A100: twice TF32's."""
    seconds = {
        (cluster, format): step_of(format, GPT2, 8, 1024, cluster).timeline.without("warm-up").makespan_s
        for cluster, format in (("dgx-v100", FP32), ("dgx-v100", FP16), ("dgx-a100", TF32), ("dgx-a100", BF16))
    }
    assert 3 < seconds["dgx-v100", FP32] / seconds["dgx-v100", FP16] < 8
    assert 1.2 < seconds["dgx-a100", TF32] / seconds["dgx-a100", BF16] < 2


def test_phases_of_the_last_step_are_named():
    phases = {span.phase for span in step_of(FP16).timeline}
    assert phases >= {"warm-up", "forward", "backward", "optimizer"}
