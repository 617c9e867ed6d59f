"""Sources that publish one step in two ways must give one time: their own figures check the conventions."""

from dataclasses import replace

import pytest

from lablib.validation.architecture import transformer_of
from lablib.validation.baseline import naive_step_time_s
from lablib.validation.case import cases_of
from lablib.validation.measured import GIB, hardware_flops, measured_of, model_flops


def time_by(row, *fields):
    """The step time when the row has only these of its figures."""
    case = cases_of(row)[0]
    kept = replace(row, measured={name: row.measured[name] for name in fields})
    model = transformer_of(row, pads_vocabulary=False)
    found = measured_of(kept, model, case.cluster.device, case.batch, case.precision, case.recompute)
    assert found.step_time_s
    return found.step_time_s


def both(published, family, one, other):
    return [r for r in published if r.family == family and one in r.measured and other in r.measured]


def test_korthikantis_mfu_gives_their_seconds(published):
    rows = both(published, "korthikanti22", "iteration_s", "mfu")
    assert len(rows) == 4
    for row in rows:
        assert time_by(row, "mfu") == pytest.approx(time_by(row, "iteration_s"), rel=0.005), row.id


def test_blooms_tflops_give_their_seconds_where_they_use_megatrons_formula(published):
    rows = [
        r for r in both(published, "bloom", "iteration_s", "hw_tflops_per_gpu") if "Megatron" in r.text("notes").title()
    ]
    assert len(rows) == 35
    for row in rows:
        assert time_by(row, "hw_tflops_per_gpu") == pytest.approx(time_by(row, "iteration_s"), rel=2e-4), row.id


def test_llm_foundrys_tokens_for_all_gpus_and_for_one_agree(published):
    rows = both(published, "mpt", "tokens_per_s", "tokens_per_s_per_gpu")
    assert len(rows) == 67
    for row in rows:
        assert time_by(row, "tokens_per_s") == pytest.approx(time_by(row, "tokens_per_s_per_gpu"), rel=2e-3), row.id


def test_llm_foundrys_utilization_is_of_the_whole_square_of_attention(published):
    for row in both(published, "mpt", "tokens_per_s", "mfu"):
        if row.text("precision") != "amp_fp8":  # whose MFU they count against another peak
            assert time_by(row, "mfu") == pytest.approx(time_by(row, "tokens_per_s"), rel=0.05), row.id


def test_a_trillion_parameters_take_the_seconds_that_sc21_implies(published):
    (row,) = [row for row in published if row.id == "megatron-sc21-1008.0b"]
    # Section 5.1: 502 PFLOP/s in all; 96 B s l h^2 (1 + s/6h + V/16lh) by hand.
    flops = 96 * 3072 * 2048 * 128 * 25600**2 * (1 + 2048 / (6 * 25600) + 51200 / (16 * 128 * 25600))
    assert time_by(row, "hw_tflops_per_gpu") == pytest.approx(flops / 502e15, rel=0.005)


def test_flops_of_a_plain_gpt_are_those_of_the_papers_formulas(row):
    model = transformer_of(row(), pads_vocabulary=False)
    inside = 2048 / (6 * 4096)
    by_formula = 72 * 64 * 2048 * 32 * 4096**2 * (1 + inside + 50304 / (12 * 32 * 4096))
    assert model_flops(model, 64, 2048) == pytest.approx(by_formula, rel=1e-12)
    by_formula = 96 * 64 * 2048 * 32 * 4096**2 * (1 + inside + 50304 / (16 * 32 * 4096))
    assert hardware_flops(model, 64, 2048, "full") == pytest.approx(by_formula, rel=1e-12)


def test_seconds_come_before_tokens_and_tokens_before_tflops(row):
    figures = {"iteration_s": 4.0, "tokens_per_s": 64 * 2048 / 5, "tokens_per_s_per_gpu": 64 * 2048 / 8 / 6}
    order = [("iteration_s", 4.0), ("tokens_per_s", 5.0), ("tokens_per_s_per_gpu", 6.0)]
    for start, (field, seconds) in enumerate(order):
        left = {name: figures[name] for name, _ in order[start:]} | {"mfu": 0.4, "hw_tflops_per_gpu": 100}
        one = row({"measured": left})
        case = cases_of(one)[0]
        found = measured_of(one, case.model, case.cluster.device, case.batch, case.precision, case.recompute)
        assert (found.field, found.step_time_s) == (field, pytest.approx(seconds))


def test_gigabytes_of_memory_are_the_gibibytes_that_the_tools_print(row):
    for field in ("memory_gib_per_gpu", "memory_gb_per_gpu"):
        one = row({f"measured.{field}": 56})
        case = cases_of(one)[0]
        found = measured_of(one, case.model, case.cluster.device, case.batch, case.precision, case.recompute)
        assert found.memory_bytes == 56 * GIB


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"iteration_s": 4000.0}, "measured.iteration_s = 4000 means 0.000"),
        ({"iteration_s": 0.04}, "outside 0.001 to 1: probably another unit"),
        ({"tokens_per_s": 3.2e6}, "measured.tokens_per_s = 3.2e+06 means"),
        ({"iteration_s": 4.0, "memory_gib_per_gpu": 560}, "560 GiB per GPU are more than the 80 GB of A100-80GB-SXM"),
    ],
)
def test_a_figure_in_another_unit_is_questioned(row, measured, message):
    one = row({"measured": measured})
    case = cases_of(one)[0]
    with pytest.raises(ValueError) as caught:
        measured_of(one, case.model, case.cluster.device, case.batch, case.precision, case.recompute)
    assert message in str(caught.value)


@pytest.mark.parametrize(("group", "rows", "mape"), [("korthikanti22", 8, 16.9), ("megatron-sc21", 10, 10.7)])
def test_the_naive_estimate_is_as_far_off_as_others_found_it(published, group, rows, mape):
    """Measured independently on these two tables in whole; the other sources' rows here are a part of theirs."""
    errors = [
        abs(naive_step_time_s(cases_of(row)[0]) / time_by(row, *row.measured) - 1)
        for row in published
        if row.group.startswith(group)
    ]
    assert len(errors) == rows
    assert 100 * sum(errors) / rows == pytest.approx(mape, abs=0.05)
