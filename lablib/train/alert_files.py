"""Alert rules in files: read and written as YAML, and written as a rule file of Prometheus.

    metrics:
      - name: gpu_utilization
        threshold: 80%            a number, or per cent: 0.8
        alert_when: below         or above
        duration: 5m              as Prometheus writes it (1h30m, 90s, 500ms), or a number of seconds
        alert: LowUtilization     optional: the name of the alert
        severity: critical        optional

Every value is read as text, so YAML takes none for a date, a truth value or a number in base 60.
Durations have whole milliseconds, as in Prometheus.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lablib.configs.reading import Fields, text_of
from lablib.signature import checked, shown
from lablib.train.alerts import AlertRule

# Milliseconds of each unit of a duration, in the order in which they are written.
_UNITS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_MAX_DEPTH = 10
_DURATION = re.compile("".join(rf"(?:(\d{{1,12}}){unit})?" for unit in _UNITS))


@checked
def read_rules(path: str | Path) -> tuple[AlertRule, ...]:
    """The rules of a YAML file. Raises ValueError: no such file, or as `parse_rules`."""
    return parse_rules(text_of(path), str(path))


@checked
def parse_rules(text: str, where: str = "the rules") -> tuple[AlertRule, ...]:
    """The rules of a YAML text. Raises ValueError: other contents, with the place and a remedy."""
    try:
        depth = 0
        for event in yaml.parse(text, yaml.BaseLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:  # a few can mean millions of values, or hours
                raise ValueError("aliases (*name) and deep nesting are not read")
        plain = yaml.load(text, yaml.BaseLoader)  # texts, lists and mappings only
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = getattr(error, "problem", None) or (str(error) if type(error) is ValueError else type(error).__name__)
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where} must be YAML: {reason}{line}; begin with 'metrics:' and a list") from None
    metrics = Fields(plain, where).get("metrics")
    if not isinstance(metrics, list) or not metrics:
        raise ValueError(f"{where} must have a list of rules under metrics: got {shown(metrics)}; add - name: loss")
    return tuple(_rule(one, f"metric {number} of {where}") for number, one in enumerate(metrics, 1))


def _rule(plain: Any, where: str) -> AlertRule:
    fields = Fields(plain, where)
    given = {
        "metric": fields.text("name"),
        "threshold": _threshold(fields.text("threshold"), where),
        "when": fields.text("alert_when", "above"),
        "for_s": _seconds(fields.text("duration", "0s"), where),
        "name": fields.text("alert"),
        "severity": fields.text("severity", "warning"),
    }
    if unread := fields.unread():
        rule = f"{where} must have name, threshold, alert_when, duration, alert and severity only"
        raise ValueError(f"{rule}: got {shown(unread[0])}; remove it")
    try:
        return AlertRule(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _threshold(text: str, where: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"threshold of {where} must be a number or per cent: got {shown(text)}; try 80%") from None


def _seconds(text: str, where: str) -> float:
    if (found := _DURATION.fullmatch(text)) and text:
        return sum(int(count or 0) * ms for count, ms in zip(found.groups(), _UNITS.values(), strict=True)) / 1000
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"duration of {where} must be like 5m, 1h30m or 90s: got {shown(text)}; try 5m") from None


def _duration(rule: AlertRule) -> str:
    left = round(rule.for_s * 1000)
    if left / 1000 != rule.for_s:
        raise ValueError(
            f"for_s of {rule.name} must be whole milliseconds in a file: got {rule.for_s}; try {left / 1000}"
        )
    text = ""
    for unit, ms in _UNITS.items():
        count, left = divmod(left, ms)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _number(value: float) -> float:
    """A whole number without its ".0"."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else float(value)


@checked
def rules_yaml(rules: Sequence[AlertRule]) -> str:
    """The rules as YAML, which `parse_rules` reads. Raises ValueError for fractions of a millisecond."""
    names = ("name", "threshold", "alert_when", "duration", "alert", "severity")
    rows = [(r.metric, _number(r.threshold), r.when, _duration(r), r.name, r.severity) for r in rules]
    return _yaml({"metrics": [dict(zip(names, row, strict=True)) for row in rows]})


@checked
def prometheus_rules(rules: Sequence[AlertRule], group: str = "training") -> str:
    """A rule file of Prometheus with one alert per rule. Raises ValueError for fractions of a millisecond."""
    alerts = []
    for rule in rules:
        sign, limit, held = ">" if rule.when == "above" else "<", _number(rule.threshold), _duration(rule)
        summary = f"{rule.metric} is {{{{ $value }}}}, {rule.when} {limit!r} for {held}"
        alert = {"alert": rule.name, "expr": f"{rule.metric} {sign} {limit!r}", "for": held}
        alerts.append(alert | {"labels": {"severity": rule.severity}, "annotations": {"summary": summary}})
    return _yaml({"groups": [{"name": group, "rules": alerts}]})


def _yaml(plain: Any) -> str:
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000)
