"""Batches of measured programs: as on a CPU where a CPU runs them, and long enough on any GPU of the catalogue."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.calibration import batch_for
from lablib.calibration.program_size import LEAST_S
from lablib.course.places import Lab, find_labs
from lablib.hardware import CLUSTERS

ROOT = Path(__file__).parents[2]


@given(st.sampled_from(sorted(CLUSTERS)), st.integers(1, 1000), st.floats(1e3, 1e18))
def test_products_take_long_enough_and_no_more_than_twice_that(name, batch, flops):
    cluster = CLUSTERS[name]
    found = batch_for(cluster, batch, flops)
    factor, remainder = divmod(found, batch)
    assert remainder == 0 and factor & (factor - 1) == 0, "a power of two"
    products_s = flops * factor / cluster.device.matmul_rate("float32")
    assert products_s >= LEAST_S * (1 - 1e-9) and (factor == 1 or products_s <= 2 * LEAST_S)


@given(st.integers(1, 1000), st.floats(1e-3, 1e18))
def test_on_a_cpu_whose_cores_ranks_share_a_batch_stays_as_it_was_recorded(batch, flops):
    assert batch_for(CLUSTERS["laptop"].replace(shared_cores=2), batch, flops) == batch


@pytest.mark.parametrize("flops", [0.0, -1.0, float("nan")])
def test_a_program_without_flops_is_refused(flops):
    with pytest.raises(ValueError, match="flops of a program must be positive: got"):
        batch_for(CLUSTERS["dgx-h100"], 4, flops)


def _text_and_helpers(lab: Lab) -> str:
    return "".join(
        path.read_text() for path in (lab.master, ROOT / f"lablib/labs/lab{lab.number}.py") if path.is_file()
    )


def test_every_lab_that_compares_a_step_has_a_larger_one_on_gpus():
    """Lab 08 compares messages of a size that its text names."""
    sources = {lab.number: _text_and_helpers(lab) for lab in find_labs(ROOT / "labs")}
    comparing = {
        number: text
        for number, text in sources.items()
        if re.search(r"(comparison =|return) (lab\d\d\.)?reconcile\(", text)
    }
    assert len(comparing) > 10
    for number in comparing.keys() - {"08"}:
        assert "batch_for(" in comparing[number] or 'if real == "gloo" else' in comparing[number], number
        assert number == "11" or '"shapes" if ' in comparing[number], number  # 11 compares values, too
