"""Published mixtures of experts: their rows, the rules for what only they state, and what the page says of them."""

from dataclasses import replace

import pytest

from lablib.models import find_transformer
from lablib.plan import STACKS, predict
from lablib.plan.layer import dispatch
from lablib.validation.architecture import transformer_of
from lablib.validation.case import cases_of
from lablib.validation.constants import planner_with
from lablib.validation.doubts import MIXTURE_DOUBTS
from lablib.validation.measured import measured_of
from lablib.validation.page import Results, markdown, mixtures_sentence, with_section
from lablib.validation.score import ScoreReport, score


@pytest.fixture(scope="module")
def report(mixtures) -> ScoreReport:
    return score(mixtures, predict)


def time_by(row, field):
    case = cases_of(row)[0]
    kept = replace(row, measured={field: row.measured[field]})
    model = transformer_of(row, pads_vocabulary=False)
    found = measured_of(kept, model, case.cluster.device, case.batch, case.precision, case.recompute)
    assert found.step_time_s
    return found.step_time_s


def test_the_rows_are_read_each_with_its_source_and_nothing_is_left_unused(mixtures, published):
    assert len(mixtures) == 41 and not any(row.unused for row in mixtures)
    assert len({row.id for row in mixtures}) == 41 and not {row.id for row in mixtures} & {row.id for row in published}
    assert all(row.source["url"].startswith("https://github.com/") and row.texts["how_read"] for row in mixtures)
    assert all("recompute" in row.texts and "dispatcher" in row.texts and "etp" in row.parallel for row in mixtures)
    assert all(transformer_of(row, True).experts is not None for row in mixtures)


@pytest.mark.parametrize(
    ("name", "most"), [("Qwen3-235B-A22B", 0.01), ("Qwen3-30B-A3B", 0.012), ("DeepSeek-V3", 0.025)]
)
def test_both_figures_of_a_row_give_one_time_if_masked_scores_are_left_out(mixtures, name, most):
    # Of DeepSeek-V3 the planner leaves out the second head's pass, 2% of the FLOPs.
    both = [row for row in mixtures if row.model["name"] == name and len(row.measured) > 1]
    assert len(both) >= 7
    for row in both:
        one, other = (time_by(row, field) for field in row.measured)
        assert one == pytest.approx(other, rel=most), row.id
        assert row.text("attention_flops") == "causal"


def test_expert_tensor_ranks_are_taken_as_stated(row):
    sizes = {"model.name": "Mixtral-8x7B", "parallel.tp": 4, "parallel.dp": 2, "hardware.gpu": "H100"}
    split = cases_of(row(sizes | {"parallel.ep": 8, "parallel.etp": 1}))[0].parallel
    assert (split.expert, split.expert_tensor) == (8, 1)
    old = cases_of(row(sizes | {"parallel.ep": 8}))[0].parallel  # 2 of 8 over data, the rest over tensor ranks
    assert (old.expert, old.expert_tensor) == (2, None)


def test_the_dispatcher_and_what_it_hides_are_the_softwares(row):
    sizes = {"model.name": "Mixtral-8x7B", "hardware.gpu": "H100", "source.title": "Megatron-Core"}
    plain, core = cases_of(row(sizes))[0].stack, STACKS["megatron-core"]
    assert plain == "megatron-core"
    for words in ("deepep", "HybridEP"):
        assert cases_of(row(sizes | {"dispatcher": words}))[0].stack == replace(core, dispatcher="deduplicated")
    hidden = cases_of(row(sizes | {"dispatcher": "alltoall", "parallel.ep_overlap": True}))[0].stack
    assert hidden == replace(core, hides_dispatch=True)


def test_a_layer_that_predicts_a_second_token_is_a_layer_more(row):
    named = {f"model.{name}": None for name in ("layers", "hidden", "heads", "vocab")}
    given = named | {"model.name": "DeepSeek-V3", "model.mtp_layers": 1, "parallel.tp": 1, "parallel.dp": 8}
    assert transformer_of(row(given), False).num_layers == find_transformer("deepseek-v3").num_layers + 1


def test_every_row_is_scored_and_the_others_do_not_see_them(report):
    assert not report.skipped and len(report.timed) == 41
    assert {one.case.parallel.expert_tensor for one in report.timed} == {1}
    assert report.all()["mape"] < report.all()["naive_mape"] / 2


def test_the_page_has_a_section_of_their_own(report):
    empty = ScoreReport(())
    page = markdown(Results(empty, mixtures=report), "a.svg")
    assert "## Mixtures of experts" in page and "Mixtures of experts" not in markdown(Results(empty), "a.svg")
    assert page.index(mixtures_sentence(report)) > page.index("## Mixtures of experts")
    assert all(one.row.id in page for one in report.timed) and all(doubt in page for doubt in MIXTURE_DOUBTS)
    readme = "<!-- validation -->\n<!-- /validation -->"
    made = score([report.scored[0].row], predict)
    section = with_section(readme, Results(made, mixtures=report), "a.svg", "a.md")
    assert f"It is off by {report.all()['mape']:.1f}% in the mean" in section and "of mixtures of experts." in section


def test_what_the_page_calls_doubtful_of_them_is_so(report, mixtures, monkeypatch):
    assert "predicted too fast by a quarter" in MIXTURE_DOUBTS[2]
    assert report.groups()["moebridge-gptoss"]["bias"] == pytest.approx(-25, abs=4)
    graphs = {one.row.id: one for one in report.timed if one.row.text("graphs") == "full"}
    met = [abs(one.error) for name, one in graphs.items() if "gptoss" not in name]
    assert len(met) == 7 and max(met) < 10
    others = [one.error for one in report.timed if one.row.text("graphs") != "full"]
    assert sum(others) / len(others) < -10
    # As exchanges were before: in rounds, k times each, never hidden.
    monkeypatch.setattr(
        dispatch,
        "exchange_s",
        lambda on, mixture, rows, size, n, stride: on.groups.time_s(
            "all_to_all", rows * mixture.num_active * size, n, stride, "direct"
        ),
    )
    plain = [replace(row, parallel={**row.parallel, "ep_overlap": False}, texts=dict(row.texts)) for row in mixtures]
    # Derating of another value: nothing that was remembered of the same machine is looked up.
    before = score(plain, planner_with({"dispatch_s": 23.001e-6}))
    assert before.all()["mape"] == pytest.approx(25, abs=0.5) and "the mean error was 25%" in MIXTURE_DOUBTS[0]
