"""What the page calls doubtful is so: each sentence held against the planner."""

from dataclasses import replace

import pytest

from lablib.plan import predict
from lablib.validation.constants import BOUNDS, planner_with
from lablib.validation.doubts import DOUBTS
from lablib.validation.score import ScoreReport, prepare, report
from lablib.validation.software import OLD_MEGATRON


@pytest.fixture(scope="module")
def ready(published):
    return prepare(published)[0]


def moved(ready, name) -> set[str]:
    """The groups whose step time moves by 0.1% or more in the mean, from one bound of a constant to the other."""
    ends = [report(ready, planner_with({name: value})) for value in BOUNDS[name]]
    changes: dict[str, list[float]] = {}
    for low, high in zip(*(end.timed for end in ends), strict=True):
        group = low.row.group if low.row.family == "vtrain" else low.row.family
        changes.setdefault(group, []).append(abs(high.step_time_s / low.step_time_s - 1))
    return {group for group, all_of in changes.items() if sum(all_of) / len(all_of) >= 1e-3}


def of_one_record(ready, stack) -> ScoreReport:
    """All of Megatron before Hopper by one record."""
    changed = [
        replace(one, cases=tuple(replace(c, stack=stack) if c.stack in OLD_MEGATRON else c for c in one.cases))
        for one in ready
    ]
    return report(changed, predict)


def test_vtrains_small_models_alone_see_how_fast_the_host_is(ready):
    assert moved(ready, "dispatch_s") == {"vtrain-single"}
    assert "no group except `vtrain-single`" in DOUBTS[1]


def test_two_sources_have_attention_older_than_their_devices(ready):
    assert moved(ready, "generation_share") == {"mpt", "titan"}
    assert "`mpt` and `titan`" in DOUBTS[2]


def test_two_sources_ran_on_blackwell(ready):
    # Its attention is of the fourth generation.
    names = {one.row.family for one in ready if one.cases[0].cluster.device.attention_generation == 4}
    assert names == {"mbridge", "simumax"}
    assert "for Blackwell these are `mbridge` and `simumax`" in DOUBTS[2]


@pytest.mark.parametrize(("stack", "group"), [("megatron-2021", "korthikanti22"), ("megatron-2022", "megatron-sc21")])
def test_one_record_for_all_of_megatron_would_miss_one_of_the_two_years(ready, stack, group):
    now, other = report(ready, predict), of_one_record(ready, stack)
    was, would_be = (each.groups()[group]["mape"] for each in (now, other))
    assert f"`{group}`" in DOUBTS[0] and f"by {would_be:.0f}% instead of {was:.0f}%" in DOUBTS[0]
