"""Alerts: rules on metrics, with a threshold and a duration, evaluated on a stream of samples.

A rule is pending from the first sample that breaks its threshold, and fires at the first sample at which that has held
without interruption for the duration, as `for:` of Prometheus:

    gpu_utilization below 0.8 for 300 s

    time_s         0     60    ...   300    360    420
    value          0.5   0.5         0.5    0.5    0.9
    event      pending               firing        resolved

The edges are as in Prometheus. The threshold itself breaks no rule ("above" is `>`, "below" is `<`). A duration
of 0 fires at once. One sample that breaks no threshold starts the duration again, so a flapping metric never fires.

Missing data end a condition: a rule without its metric in a sample is no longer pending (event "inactive") or
firing (event "resolved"), as a query of Prometheus then returns nothing. So does a gap of more than `stale_s` between
two samples, at its end: until then the latest value counts, by default for 5 minutes (`--query.lookback-delta`). A NaN
is neither above nor below, so it counts as a value that breaks no rule.

Time is given with each sample, so it may be real or virtual. Cost: O(rules) per sample.
Source: Prometheus 2.42, "Alerting rules" (https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/)
and rules/alerting.go. Simplified: one value per metric (Prometheus evaluates each set of labels separately), evaluated
at the samples (Prometheus evaluates at a fixed interval), and no `keep_firing_for`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Annotated

from lablib.signature import Finite, NonNegative, OneOf, check_fields, checked, shown
from lablib.text.units import format_quantity

STALE_S = 300.0  # the lookback of Prometheus
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def check_metric(name: str) -> None:
    """Raise ValueError unless Prometheus accepts the name of a metric."""
    if not METRIC_NAME.fullmatch(name):
        raise ValueError(
            f"the name of a metric must be letters, digits and _, and begin with no digit: got {shown(name)}; "
            'try "gpu_utilization"'
        )


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A condition on one metric."""

    metric: str  # its name, of letters, digits and "_", as Prometheus asks
    threshold: Finite  # in the unit of the metric
    when: Annotated[str, OneOf(("above", "below"))] = "above"  # "above" or "below" the threshold
    for_s: NonNegative = 0.0  # seconds that the condition must hold before the alert fires
    name: str = ""  # of the alert, different for each rule; "": made of metric and direction ("GpuUtilizationBelow")
    severity: str = "warning"  # a label for the receiver of the alert

    def __post_init__(self) -> None:
        check_fields(self, self.metric if isinstance(self.metric, str) else "")
        check_metric(self.metric)
        name = self.name or "".join(word.capitalize() for word in f"{self.metric}_{self.when}".split("_"))
        if not (name.isprintable() and self.severity.isprintable() and name.strip()):
            raise ValueError(
                f"name and severity of a rule must be printable text: got {shown(self.name)} and "
                f'{shown(self.severity)}; try name="SlowStep"'
            )
        object.__setattr__(self, "name", name)

    def holds(self, value: float) -> bool:
        return value > self.threshold if self.when == "above" else value < self.threshold


# Thresholds for a start; metrics that end in _s are in seconds, shares and utilizations are fractions of 1.
TRAINING_RULES = (
    AlertRule("gpu_utilization", 0.8, "below", for_s=300),
    AlertRule("memory_utilization", 0.9, "above", for_s=120),
    AlertRule("loss", 10, "above", for_s=600),
    AlertRule("throughput", 500, "below", for_s=600),
    AlertRule("gradient_norm", 100, "above", for_s=300),
    AlertRule("communication_share", 0.3, "above", for_s=600),
    AlertRule("synchronization_s", 5, "above", for_s=300),
    AlertRule("node_failure_share", 0.05, "above", for_s=60, severity="critical"),
)


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A change of state of one rule: "pending", "firing", "resolved" (after firing) or "inactive" (after pending).

    `value` is the metric's; NaN if it is missing.
    """

    time_s: float
    state: str
    rule: AlertRule
    value: float

    def __str__(self) -> str:
        rule, value = self.rule, "missing" if self.value != self.value else f"{self.value:.4g}"
        held = f" for {format_quantity(rule.for_s, 's')}" if self.state == "firing" else ""
        change = f"{self.time_s:.10g} s: {rule.name} is {self.state}, {rule.metric} is {value}"
        return f"{change} (alert {rule.when} {rule.threshold:g}{held})"


class Alerts:
    """The states of some rules, from the samples seen so far.

    Args:
        rules: with different names.
        stale_s: a longer gap between two samples ends every condition.
    """

    @checked
    def __init__(self, rules: Sequence[AlertRule] = TRAINING_RULES, stale_s: NonNegative = STALE_S):
        names = [rule.name for rule in rules]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"rules must have different names: got {twice!r} twice; give one of them another name=")
        self.rules, self.stale_s, self._last_s = tuple(rules), stale_s, -inf
        self._since_s: dict[str, float] = {}  # the rules that are pending or firing
        self._firing: set[str] = set()

    @checked
    def observe(self, time_s: Finite, metrics: Mapping[str, float]) -> list[AlertEvent]:
        """Evaluate the rules at a time, with the metrics of that time; those not in `metrics` are missing.

        Returns the changes of state, in the order of the rules. Raises ValueError for a time before the last one.
        """
        if time_s < self._last_s:
            raise ValueError(f"time_s must not be before the last sample: got {time_s} s after {self._last_s} s")
        events: list[AlertEvent] = []
        stale_at_s = self._last_s + self.stale_s
        if time_s > stale_at_s:
            events += [self._end(stale_at_s, rule, nan) for rule in self.rules if rule.name in self._since_s]
        self._last_s = time_s
        for rule in self.rules:
            value = metrics.get(rule.metric, nan)
            if not rule.holds(value):
                events += [self._end(time_s, rule, value)] if rule.name in self._since_s else []
                continue
            is_new = rule.name not in self._since_s
            since_s = self._since_s.setdefault(rule.name, time_s)
            if rule.name not in self._firing and time_s - since_s >= rule.for_s:
                self._firing.add(rule.name)
                events.append(AlertEvent(time_s, "firing", rule, value))
            elif is_new:
                events.append(AlertEvent(time_s, "pending", rule, value))
        return events

    @property
    def states(self) -> dict[str, str]:
        """ "inactive", "pending" or "firing" for each rule, by its name."""
        known = dict.fromkeys(self._since_s, "pending") | dict.fromkeys(self._firing, "firing")
        return {rule.name: known.get(rule.name, "inactive") for rule in self.rules}

    def _end(self, time_s: float, rule: AlertRule, value: float) -> AlertEvent:
        state = "resolved" if rule.name in self._firing else "inactive"
        self._firing.discard(rule.name)
        del self._since_s[rule.name]
        return AlertEvent(time_s, state, rule, value)


@checked
def firing_spans(events: Iterable[AlertEvent]) -> list[tuple[AlertRule, float, float]]:
    """(rule, start, end) of the times in which a rule fired; the end is infinity if it still does."""
    begun: dict[str, AlertEvent] = {}
    spans = []
    for event in events:
        if event.state == "firing":
            begun[event.rule.name] = event
        elif event.state == "resolved" and (start := begun.pop(event.rule.name, None)):
            spans.append((event.rule, start.time_s, event.time_s))
    return spans + [(event.rule, event.time_s, inf) for event in begun.values()]
