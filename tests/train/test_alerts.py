"""Alerts: at the edges, flapping, missing data, and against a brute-force evaluator."""

from collections.abc import Sequence
from math import inf, nan, nextafter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.train import TRAINING_RULES, AlertRule, Alerts, firing_spans

RULE = AlertRule("loss", 10, for_s=60)
WRONG: Any = (0, {"loss": "3"})  # a text for a number


def states(rule: AlertRule, samples: Sequence[tuple[float, float | None]], stale_s: float = 300.0) -> list[str]:
    """The state after each sample; None is a missing value."""
    alerts = Alerts([rule], stale_s)
    found = []
    for time_s, value in samples:
        alerts.observe(time_s, {} if value is None else {rule.metric: value})
        found.append(alerts.states[rule.name])
    return found


@pytest.mark.parametrize("missing", [None, nan])
def test_missing_data_and_nan_end_a_condition(missing):
    assert states(RULE, [(0, 11), (30, missing), (60, 11)]) == ["pending", "inactive", "pending"]
    alerts = Alerts([AlertRule("loss", 10)])
    alerts.observe(0, {"loss": inf})
    (event,) = alerts.observe(1, {} if missing is None else {"loss": missing})
    assert event.state == "resolved" and "missing" in str(event)


def test_a_gap_ends_a_condition_when_the_latest_value_is_stale():
    assert states(RULE, [(0, 11), (300, 11)]) == ["pending", "firing"]
    alerts = Alerts([RULE])
    alerts.observe(0, {"loss": 11})
    assert [(e.time_s, e.state) for e in alerts.observe(301, {"loss": 11})] == [(300, "inactive"), (301, "pending")]


def test_spans_of_firing_end_when_it_is_resolved():
    alerts = Alerts([RULE, AlertRule("loss", 100, for_s=0, name="Diverged")])
    losses = [11, 11, 200, 11, 9, 200]
    events = [event for i, loss in enumerate(losses) for event in alerts.observe(60 * i, {"loss": loss})]
    spans = [(rule.name, start_s, end_s) for rule, start_s, end_s in firing_spans(events)]
    assert spans == [("Diverged", 120, 180), ("LossAbove", 60, 240), ("Diverged", 300, inf)]


def test_the_rules_of_training_have_these_thresholds_and_minutes():
    rows = {(rule.metric, rule.when, rule.threshold, rule.for_s / 60) for rule in TRAINING_RULES}
    assert rows == {
        ("gpu_utilization", "below", 0.8, 5),
        ("memory_utilization", "above", 0.9, 2),
        ("loss", "above", 10, 10),
        ("throughput", "below", 500, 10),
        ("gradient_norm", "above", 100, 5),
        ("communication_share", "above", 0.3, 10),
        ("synchronization_s", "above", 5, 5),
        ("node_failure_share", "above", 0.05, 1),
    }


@pytest.mark.parametrize("rule", TRAINING_RULES, ids=lambda rule: rule.metric)
def test_a_rule_of_training_fires_just_beyond_its_threshold_at_its_duration_and_not_before(rule: AlertRule):
    beyond = nextafter(rule.threshold, inf if rule.when == "above" else -inf)
    times_s = [rule.for_s * quarter / 4 for quarter in range(20)]
    assert states(rule, [(time_s, beyond) for time_s in times_s[:5]]) == ["pending"] * 4 + ["firing"]
    assert states(rule, [(time_s, beyond) for time_s in (*times_s[:4], rule.for_s - 1e-6)]) == ["pending"] * 5
    assert set(states(rule, [(time_s, rule.threshold) for time_s in times_s])) == {"inactive"}
    for interruption in (rule.threshold, None):  # flapping, and missing data
        values = [interruption if place % 4 == 3 else beyond for place in range(20)]
        found = states(rule, list(zip(times_s, values, strict=True)))
        assert found == ["pending", "pending", "pending", "inactive"] * 5


def naive_states(rule: AlertRule, samples: list[tuple[float, float | None]], stale_s: float) -> list[str]:
    """For each sample, the unbroken run of bad samples up to it, found by looking back."""
    found = []
    for last in range(len(samples)):
        first = last + 1
        while first > 0:
            time_s, value = samples[first - 1]
            is_bad = value is not None and (value > rule.threshold if rule.when == "above" else value < rule.threshold)
            if not is_bad or (first <= last and samples[first][0] - time_s > stale_s):
                break
            first -= 1
        if first > last:
            found.append("inactive")
        else:
            found.append("firing" if samples[last][0] - samples[first][0] >= rule.for_s else "pending")
    return found


# Few values, so that samples lie on thresholds, durations and the limit of staleness.
values = st.sampled_from([None, nan, -inf, 1.0, 2.0, 3.0, inf])
steps = st.sampled_from([0, 1, 2, 3, 5])
rules = st.builds(
    AlertRule, st.just("loss"), st.just(2), st.sampled_from(["above", "below"]), for_s=st.sampled_from([0, 1, 3, 4, 9])
)


@given(rules, st.lists(st.tuples(steps, values), max_size=30))
def test_states_and_events_are_those_of_a_brute_force_evaluator(rule, stream):
    samples, now_s = [], 0.0
    for step, value in stream:
        now_s += step
        samples.append((now_s, value))
    expected = naive_states(rule, samples, stale_s=3)
    assert states(rule, samples, stale_s=3) == expected
    # The events alone give the same states.
    alerts, state, replayed = Alerts([rule], 3), "inactive", []
    for time_s, value in samples:
        for event in alerts.observe(time_s, {} if value is None else {"loss": value}):
            came_from = {"pending": ["inactive"], "inactive": ["pending"], "resolved": ["firing"]}
            assert state in came_from.get(event.state, ["inactive", "pending"])
            state = "inactive" if event.state == "resolved" else event.state
        replayed.append(state)
    assert replayed == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AlertRule("gpu use", 1), 'got .gpu use.; try "gpu_utilization"'),
        (lambda: AlertRule("loss", 1, name="a\nb"), "name and severity of a rule must be printable text"),
        (lambda: Alerts([RULE, AlertRule("loss", 3)]), "rules must have different names: got 'LossAbove' twice"),
        (lambda: (alerts := Alerts([RULE])).observe(1, {}) + alerts.observe(0, {}), "must not be before the last"),
        (lambda: Alerts([RULE]).observe(*WRONG), "metrics must be a dict of text to numbers"),
    ],
)
def test_wrong_input_is_one_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
