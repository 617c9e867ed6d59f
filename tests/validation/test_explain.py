"""Explanations of a measured step: terms, the changed argument that comes nearest, on simulated and published runs."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import CLUSTERS, launch
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.plan import IDEAL, STACKS, Parallel, predict
from lablib.record.step_terms import KINDS, StepTerms, timeline_step
from lablib.validation import cases_of, explain, published_rows
from lablib.validation.explain import USUAL_ERROR, changes_of, kinds_of
from lablib.validation.measured import measured_of
from tests.plan.gpt_step import Job, train

CONFIG = GPTConfig(num_layers=2, d_model=1024, num_heads=16, vocab_size=8192, max_seq_len=1024)


@pytest.mark.parametrize(
    "job",
    [
        Job(CONFIG, "ddp", ranks=4, batch=4, dtype=torch.bfloat16),
        Job(CONFIG, "fsdp", ranks=4, batch=8, dtype=torch.bfloat16, recompute="full"),
        Job(CONFIG, "fsdp", ranks=4, batch=2, cluster=CLUSTERS["dgx-a100"].replace(devices_per_node=2)),
    ],
    ids=["ddp", "fsdp with recomputation", "fsdp on two nodes"],
)
def test_a_simulated_run_of_the_gpt_has_its_predicted_terms(job, tmp_path):
    """Read back from Perfetto: seconds of the run itself, and each kind within 2.5% of the step of its prediction."""
    run = launch(partial(train, job), ranks=job.ranks, cluster=job.cluster, fidelity="shapes")
    timeline = run.timeline.without("setup")
    path = timeline.to_perfetto(tmp_path / "trace.json")
    arguments: dict[str, Any] = {
        "model": Transformer.of(job.config),
        "cluster": job.cluster,
        "parallel": Parallel(data=job.ranks, zero_stage=3 if job.kind == "fsdp" else 0),
        "batch": job.ranks * job.batch,
        "micro_batch": job.batch,
        "precision": str(job.dtype).removeprefix("torch."),
        "recompute": job.recompute,
        "stack": replace(STACKS["torch"], has_master=False),
        "derating": IDEAL,
    }
    found = explain(arguments, path)
    terms, ranks = found.measured.terms, range(job.ranks)
    near = partial(pytest.approx, rel=1e-5, abs=1e-8)
    assert timeline_step(timeline).terms == near(terms)
    assert kinds_of(found.prediction) == near(found.terms)
    assert found.measured.step_s == near(timeline.makespan_s)
    assert terms["communication"] == near(sum(timeline.exposed_s(rank) for rank in ranks) / job.ranks)
    busy_s = sum(timeline.busy_s(rank) for rank in ranks) / job.ranks
    assert sum(terms[kind] for kind in KINDS[:3]) == near(busy_s)
    assert [row["term"] for row in found.rows()] == [*(k for k in KINDS if terms[k] or found.terms[k]), "step"]
    assert all(abs(row["difference_pct"]) < 2.5 for row in found.rows())
    assert found.gap < 0.05 and "within the planner's usual error" in found.sentence()


ARGUMENTS = {
    "gpt": {"model": "gpt3-13b", "cluster": "dgx-a100", "parallel": Parallel(data=8, tensor=2, zero_stage=1),
            "batch": 64, "micro_batch": 2, "recompute": "full", "stack": "megatron-2022"},
    "llama": {"model": "llama-3-70b", "cluster": "dgx-h100", "parallel": Parallel(data=4, tensor=8, pipeline=4),
              "batch": 128, "micro_batch": 1, "stack": "megatron-core"},
    "fsdp": {"model": "llama-3-8b", "cluster": "dgx-h100", "parallel": Parallel(data=16, zero_stage=3), "batch": 32,
             "micro_batch": 1, "stack": "torch-compile", "recompute": "selective"},
    "mixture": {"model": "mixtral-8x7b", "cluster": "dgx-h100", "batch": 64, "seq_len": 4096,
                "parallel": Parallel(data=16, tensor=2, expert=8, zero_stage=1), "micro_batch": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_changed_argument_of_the_list_is_found_by_its_own_step(name):
    """Only another change with the same step to a thousandth may come first."""
    arguments = ARGUMENTS[name]
    kinds = Counter()
    for kind, _, changed in changes_of(arguments):
        try:
            step_s = predict(**{**arguments, **changed}).step_time_s
        except ValueError:
            continue
        found = explain(arguments, step_s)
        if found.gap > 1e-3:
            assert (
                found.nearest and found.nearest.gap < 1e-3 and found.nearest.step_s == pytest.approx(step_s, rel=1e-3)
            )
            assert changed in [change.arguments for change in found.changes if change.gap < 1e-3]
            kinds[kind] += 1
    assert len(kinds) >= 7, kinds


def known_rows() -> list[tuple[dict[str, Any], float]]:
    """Published runs of which every setting is stated: arguments and measured seconds; every 24th row."""
    rows = []
    for row in [row for row in published_rows() if row.is_scorable][::24]:
        case, *others = cases_of(row)
        about = (case.cluster.device, case.batch, case.precision, case.recompute)
        measured_s = measured_of(row, case.model, *about).step_time_s
        if not others and measured_s:
            rows.append((case.arguments(), measured_s))
    return rows


ROWS = known_rows()
SETTINGS = ("software", "recomputation", "precision", "placement", "micro-batch", "sharding")


def test_with_the_right_arguments_the_difference_is_the_known_error():
    assert len(ROWS) > 10
    for arguments, measured_s in ROWS:
        found, predicted_s = explain(arguments, measured_s), predict(**arguments).step_time_s
        assert found.rows()[-1]["difference_s"] == predicted_s - measured_s
        assert found.gap == pytest.approx(abs(predicted_s / measured_s - 1))


def test_a_wrong_argument_is_named_by_the_measured_step_of_a_published_run():
    """One argument of each run is changed by 15% of the step or more; the change back is among the explanations.

    On all 281 rows, 2,410 changes, it is first in 54% and among the first three in 83%; with terms, each off by the
    error of the row, it is first in 82%. With the exact prediction as measurement it is first in 99%: the others tie.
    """
    first = three = by_terms = total = 0
    for arguments, measured_s in ROWS:
        right = explain(arguments, StepTerms(measured_s, {"idle": 0.0}))
        off = measured_s / right.prediction.step_time_s
        terms = StepTerms(measured_s, {kind: off * (1 - 1e-9) * time_s for kind, time_s in right.terms.items()})
        for change in right.changes:
            if change.kind not in SETTINGS or abs(change.step_s / right.prediction.step_time_s - 1) < 0.15:
                continue
            wrong = {**arguments, **change.arguments}
            total += 1
            places = [_place(explain(wrong, each), right.prediction.step_time_s) for each in (measured_s, terms)]
            first, three, by_terms = first + (places[0] < 1), three + (places[0] < 3), by_terms + (places[1] < 1)
    assert total > 50
    assert first / total > 0.45 and three / total > 0.75 and by_terms / total > 0.75, (first, three, by_terms, total)


def _place(found: Any, right_s: float) -> int:
    """The place of the change that leads back to the right step."""
    places = (place for place, change in enumerate(found.changes) if change.step_s == pytest.approx(right_s, rel=1e-3))
    return next(places, len(found.changes))


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(ARGUMENTS)), step_s=st.floats(0.01, 100), share=st.floats(0, 1))
def test_terms_add_up_and_every_claim_has_its_number(name, step_s, share):
    for measured in (step_s, {"step": step_s, "products": share * step_s}, {"step": step_s, "data axis": 0.0}):
        found = explain(ARGUMENTS[name], measured)
        predicted_s = found.prediction.step_time_s
        assert sum(found.terms.values()) == pytest.approx(predicted_s)
        gaps = [each.gap for each in found.changes]
        num_close = sum(gap < min(gaps) + 0.01 for gap in gaps)  # of these the more usual come first
        assert max(gaps[:num_close]) < min(gaps) + 0.01 and gaps[num_close:] == sorted(gaps)[num_close:]
        for each in found.changes:
            assert predict(**{**ARGUMENTS[name], **each.arguments}).step_time_s == pytest.approx(each.step_s)
            assert sum(each.terms.values()) == pytest.approx(each.step_s)
            assert each.gap >= abs(each.step_s / step_s - 1) - 1e-9
        near = found.changes[0] if found.changes[0].gap < found.gap else None
        assert found.nearest is near
        far = near is not None and near.gap > found.gap / 2
        assert ("explains half of it" in found.sentence()) == far
        assert (near.text if near else "No single change of the list comes nearer") in found.sentence()
    table = found.table()
    assert table.loc["step", "measured_s"] == step_s and "Predicted" in repr(found) and "<table" in found._repr_html_()


def test_unknown_terms_and_arguments_are_one_error():
    with pytest.raises(ValueError, match="unknown term 'product': did you mean 'products'"):
        explain(ARGUMENTS["gpt"], {"step": 1.0, "product": 0.5})
    with pytest.raises(ValueError, match="unknown argument of predict 'batches': did you mean 'batch'"):
        explain(ARGUMENTS["gpt"] | {"batches": 3}, 1.0)
    with pytest.raises(ValueError, match="arguments must have model and cluster: got batch"):
        explain({"batch": 3}, 1.0)
    with pytest.raises(ValueError, match="unknown model 'gpt3-13c'"):
        explain(ARGUMENTS["gpt"] | {"model": "gpt3-13c"}, 1.0)


def test_the_usual_error_is_that_of_the_published_runs():
    page = (Path(__file__).parents[2] / "docs" / "validation.md").read_text("utf-8")
    assert f"the predicted step time is off by {USUAL_ERROR:.1%} in the mean" in page
