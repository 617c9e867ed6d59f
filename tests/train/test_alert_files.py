"""Alert rules in files: a round trip, the forms in use, and broken files."""

from math import isfinite

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lablib.train import TRAINING_RULES, AlertRule, parse_rules, prometheus_rules, read_rules, rules_yaml

TEXT = """
metrics:
  - name: gpu_utilization
    threshold: 80%
    alert_when: below
    duration: 5m
  - {name: loss, threshold: 1e1, alert_when: above, duration: 1h30m, alert: Diverged, severity: critical}
  - {name: gradient_norm, threshold: 100, duration: 90}
"""

names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", fullmatch=True)
words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
rules = st.builds(
    AlertRule,
    names,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["above", "below"]),
    for_s=st.integers(0, 10**12).map(lambda ms: ms / 1000),
    name=words,
    severity=words,
)


def test_the_circulating_form_is_read(tmp_path):
    (tmp_path / "rules.yaml").write_text(TEXT)
    assert read_rules(tmp_path / "rules.yaml") == (
        AlertRule("gpu_utilization", 0.8, "below", for_s=300),
        AlertRule("loss", 10, "above", for_s=5400, name="Diverged", severity="critical"),
        AlertRule("gradient_norm", 100, "above", for_s=90),
    )


@given(st.lists(rules, min_size=1, max_size=5))
def test_rules_come_back_from_their_file(given_rules):
    assert list(parse_rules(rules_yaml(given_rules))) == given_rules


def test_prometheus_rules_have_the_same_conditions():
    (group,) = yaml.safe_load(prometheus_rules(TRAINING_RULES))["groups"]
    rows = [(rule["alert"], rule["expr"], rule["for"]) for rule in group["rules"]]
    assert rows[0] == ("GpuUtilizationBelow", "gpu_utilization < 0.8", "5m")
    assert [row[1:] for row in rows[1:4]] == [
        ("memory_utilization > 0.9", "2m"),
        ("loss > 10", "10m"),
        ("throughput < 500", "10m"),
    ]
    assert group["rules"][-1]["labels"] == {"severity": "critical"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metrics:", "rules:", "must have a list of rules under metrics"),
        ("metrics:", "metrics: [", "must be YAML: .* in line"),
        ("80%", "many", "threshold of metric 1 of the rules must be a number or per cent: got 'many'; try 80%"),
        ("5m", "5 minutes", "duration of metric 1 of the rules must be like 5m, 1h30m or 90s: got '5 minutes'"),
        ("below", "under", "metric 1 of the rules: AlertRule .*: when must be one of above, below: got 'under'"),
        ("duration: 5m", "for: 5m", "must have name, .* only: got 'for'; remove it"),
        ("threshold: 80%", "threshold: .nan", "threshold of metric 1"),
        ("threshold: 80%", "threshold: [80]", "threshold of metric 1 of the rules must be a text"),
        ("gpu_utilization", "gpu use", "must be letters, digits and _"),
        ("duration: 5m", "duration: -5", "metric 1 of the rules: .*for_s must be a finite number, 0 or more"),
        ("80%", "&a 80%\n    severity: *a", "aliases .* are not read; begin with"),
    ],
)
def test_a_wrong_file_is_one_error(old, new, message):
    with pytest.raises(ValueError, match=message):
        parse_rules(TEXT.replace(old, new, 1))


def test_a_missing_file_and_a_duration_that_files_cannot_hold_are_errors(tmp_path):
    with pytest.raises(ValueError, match="none.yaml cannot be read"):
        read_rules(tmp_path / "none.yaml")
    for write in (rules_yaml, prometheus_rules):
        with pytest.raises(ValueError, match="for_s of LossAbove must be whole milliseconds"):
            write([AlertRule("loss", 1, for_s=0.0001)])


@given(st.integers(0, len(TEXT) - 1), st.integers(0, len(TEXT) - 1), st.text(max_size=5))
def test_a_damaged_file_gives_rules_or_one_value_error(start, end, inserted):
    try:
        found = parse_rules(TEXT[:start] + inserted + TEXT[end:])
    except ValueError as error:
        assert str(error)
    else:
        assert all(isfinite(rule.threshold) for rule in found)


@given(st.text(max_size=40))
def test_any_text_gives_rules_or_one_value_error(text):
    with pytest.raises(ValueError, match="the rules must"):
        parse_rules(text)
