"""Evidence for a prediction: near runs, their error, and a band that holds for sources that it has not seen."""

import subprocess
import sys
from dataclasses import asdict, replace
from math import exp, log
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cli import plan as cli_plan
from lablib.figures import describe, figure_predictions, figure_waterfall
from lablib.plan import IDEAL, Parallel, Prediction, predict, search
from lablib.validation import measured_runs
from lablib.validation.evidence import NEAREST, RADIUS, coverage, distance, evidence_at, evidence_of

QUESTIONS = st.builds(
    measured_runs.Question,
    flops_per_token=st.floats(1e8, 1e13),
    num_gpus=st.integers(1, 20_000),
    seq_len=st.integers(128, 2**20),
    device=st.sampled_from(["A100", "H100", "H200", "B200"]),
    capability=st.just(0),  # of the device, below
    bits=st.sampled_from([4, 8, 16, 32]),
    software=st.sampled_from(["megatron-core", "torch-compile"]),
    has_experts=st.booleans(),
).map(lambda one: one._replace(capability={"A100": 8, "H100": 9, "H200": 9, "B200": 10}[one.device]))
ONE = measured_runs.Question(6e10, 8, 4096, "H100", 9, 16, "torch-compile", False)


def near_runs(*ratios: float, source: str = "one") -> list[measured_runs.MeasuredRun]:
    return [measured_runs.MeasuredRun(f"run-{i}", source, ONE, ratio) for i, ratio in enumerate(ratios)]


def plain(**changes) -> Prediction:
    return predict("llama-3-8b", "dgx-h100", **{"parallel": Parallel(data=8, zero_stage=3), "batch": 64} | changes)


def test_the_file_is_what_the_planner_gives():
    fresh, stored = measured_runs.compute_runs(), measured_runs.measured_runs()
    remedy = f"{measured_runs.FILE.name} differs from the planner: run `make validation`"
    assert [run.id for run in fresh] == [run.id for run in stored], remedy
    for new, old in zip(fresh, stored, strict=True):
        sizes = new.question.flops_per_token, new.ratio
        assert (old.question.flops_per_token, old.ratio) == pytest.approx(sizes, rel=1e-5), f"{new.id}: {remedy}"
        assert new.question._replace(flops_per_token=0) == old.question._replace(flops_per_token=0), remedy


def test_three_quarters_and_more_of_the_runs_of_an_unseen_source_are_in_their_band():
    """The measured time of a run, with all runs of its source left out: computed from the ratios, not stored."""
    runs = measured_runs.measured_runs()
    with_evidence, inside = coverage(runs)
    assert with_evidence > len(runs) / 2
    assert 0.75 <= inside / with_evidence <= 0.85


def test_tables_of_one_repository_are_one_source(published, mixtures):
    names = {row.family: measured_runs.source_of(row) for row in [*published, *mixtures]}
    assert names["mbridge"] == names["moebridge"] == "NVIDIA-NeMo/Megatron-Bridge"
    assert len(set(names.values())) == 9


@given(one=QUESTIONS, other=QUESTIONS, third=QUESTIONS)
def test_the_distance_is_a_metric(one, other, third):
    assert distance(one, one) == 0
    assert 0 <= distance(one, other) == pytest.approx(distance(other, one))
    assert distance(one, third) <= distance(one, other) + distance(other, third) + 1e-9


def test_a_unit_of_distance_is_a_model_of_twice_the_size():
    for factor, distances in ((2, 1.0), (8, 3.0)):
        for change in ({"flops_per_token": 6e10 * factor}, {"seq_len": 4096 * factor}):
            assert distance(ONE, ONE._replace(**change)) == pytest.approx(distances)
        assert distance(ONE, ONE._replace(num_gpus=8 * factor)) == pytest.approx(distances / 2)


@given(ratios=st.lists(st.floats(0.5, 2.0), min_size=NEAREST, max_size=40), step_s=st.floats(1e-3, 1e3))
def test_error_and_band_are_those_of_the_runs(ratios, step_s):
    evidence = evidence_at(ONE, step_s, near_runs(*ratios))
    assert evidence.num_runs == len(ratios) and evidence.ratios and evidence.band_s
    assert evidence.error == pytest.approx(median(abs(ratio - 1) for ratio in ratios))
    assert evidence.ratios[1] == pytest.approx(median(ratios))
    low, high = evidence.band_s
    assert low * high == pytest.approx(step_s**2)
    if len(ratios) == NEAREST:  # all at distance 0: no widening
        width = sorted(abs(log(ratio)) for ratio in ratios)[-3]
        assert high == pytest.approx(step_s * exp(width))
        # As measured times: 10 of the 12 runs are inside.
        assert sum(low <= step_s / ratio * (1 + 1e-9) and step_s / ratio <= high * (1 + 1e-9) for ratio in ratios) >= 10


@given(far=st.floats(0, 2 * RADIUS))
def test_distant_runs_widen_the_band_until_they_are_no_evidence(far):
    runs = [
        run._replace(question=ONE._replace(flops_per_token=6e10 * 2**far)) for run in near_runs(*[1.1] * (NEAREST + 1))
    ]
    evidence = evidence_at(ONE, 1.0, runs)
    if far < RADIUS - 1e-6:
        assert evidence.band_s and evidence.band_s[1] == pytest.approx(1.1 ** (1 + far / 20))
    elif far > RADIUS + 1e-6:
        assert evidence.band_s is None and evidence.num_runs == 0
        assert str(evidence).startswith("no evidence: no measured run is near; the nearest, run-0, differs most in")


def test_too_few_near_runs_are_no_evidence():
    evidence = evidence_at(ONE, 1.0, near_runs(*[1.0] * (NEAREST - 1)))
    assert (evidence.num_runs, evidence.error, evidence.ratios, evidence.band_s) == (NEAREST - 1, None, None, None)
    assert "only 11 measured runs nearby of 12 needed" in str(evidence)


def test_the_sentence_has_count_error_and_band():
    evidence = evidence_at(ONE, 2.0, near_runs(*[1.08] * 12))
    assert str(evidence) == "12 measured runs nearby, error 8%, band 1.85 s to 2.16 s"


@pytest.mark.parametrize(
    "changes", [{"derating": IDEAL}, {"parallel": Parallel(data=8), "compression": "int8"}, {"offload": ("optimizer",)}]
)
def test_a_technique_that_no_run_measured_has_no_evidence(changes):
    assert plain().evidence.band_s is not None
    changed = plain(**changes)
    assert changed.evidence.band_s is None and measured_runs.question_of(changed).apart
    assert changed.evidence_sentence().startswith("No evidence: ")


def test_a_device_that_no_run_measured_has_no_evidence():
    evidence = predict("llama-3-8b", "dgx-v100", Parallel(data=4), batch=64, precision="float32").evidence
    assert evidence.band_s is None and "differs most in device" in evidence.reason


def test_a_prediction_that_is_not_of_predict_has_no_setup_to_compare():
    alone = replace(plain(), setup=None)
    assert alone.evidence_sentence() == ""
    with pytest.raises(ValueError, match="evidence needs a prediction with its setup"):
        evidence_of(alone)


def test_evidence_is_shown_where_the_prediction_is_shown():
    one = plain()
    words = one.evidence_sentence()
    assert words.startswith("Evidence: ") and str(one.evidence) in words
    assert words in one._repr_html_() and words in describe(figure_waterfall(one))
    found = search("llama-3-8b", "dgx-h100", 64, nodes=1, recompute="none", schedule="1f1b")
    words = found.best.evidence_sentence()
    assert words in found._repr_html_() and words in cli_plan.text(found, 1)
    assert words in describe(figure_predictions(found.plans))
    assert cli_plan.to_json(found, 1)["evidence"] == asdict(found.best.evidence)


def test_predictions_read_no_published_run():
    program = (
        "import sys\nfrom lablib.plan import predict\np = predict('gpt2', 'dgx-a100', batch=8)\n"
        "assert 'lablib.validation' not in sys.modules\np.evidence\nassert 'lablib.validation' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
