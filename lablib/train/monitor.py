"""A monitor: one stream of metrics, checked by alert rules, kept for a figure and passed to writers.

    monitor = Monitor(TRAINING_RULES, [JsonLines("metrics.jsonl"), PrometheusExporter(port=9400)])
    for step in range(num_steps):
        ...
        for event in monitor.record({"loss": loss.item(), "gradient_norm": norm}, step=step):
            print(event)

`memory_utilization()` measures one of the metrics of `TRAINING_RULES`. `record` is for the numbers of a trainer's step,
on rank 0 (`monitor.folder`, `monitor.rules`):

    loss, gradient_norm, throughput (tokens per second), lr, tokens, step_s, loss_scale, skipped     of each step
    memory_utilization      used share of the GPU's memory, without GPUs of the machine's; not on the simulator
    communication_share, synchronization_s                  of each step, with monitor.communication (communication.py)

For the whole run `lab train` prints the last two at the end, without the setting too, and compares them with their
rules. Rules on metrics of other sources, such as node_failure_share, have missing data here.

Time is the clock's, or given: a simulated run records at its virtual seconds. A metric missing from a record is missing
data (alerts.py). The latest `keep` samples and events stay in memory; writers keep the rest.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, Protocol

from lablib.record.draw import draw
from lablib.signature import Count, Finite, checked
from lablib.train.alerts import TRAINING_RULES, AlertEvent, AlertRule, Alerts, check_metric, firing_spans

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class Sample:
    """The metrics of one step."""

    time_s: float
    step: int
    metrics: Mapping[str, float]


def memory_utilization() -> float | None:
    """Used share of the memory of this rank's GPU, without one of this machine. Does not wait for the GPU.

    None on the simulator, where a rank is a thread, and where it cannot be read.
    """
    import torch  # the page runs alerts without it

    if threading.current_thread() is not threading.main_thread():
        return None
    if torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        return 1 - free / total
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = {line.split(":")[0]: float(line.split()[1]) for line in file}
        return 1 - sizes["MemAvailable"] / sizes["MemTotal"]
    except (OSError, KeyError, IndexError, ValueError):
        return None


class MetricWriter(Protocol):
    """Receives every sample, with the changes of alerts at it."""

    def write(self, sample: Sample, events: Sequence[AlertEvent]) -> None: ...

    def close(self) -> None: ...


class Monitor:
    """Records metrics. As a context manager it closes its writers.

    Args:
        rules: of the alerts.
        writers: in the order in which they are called; more may be appended to `monitor.writers`.
        keep: samples and events in memory.
        clock: seconds now, for records without a time.
    """

    @checked
    def __init__(
        self,
        rules: Sequence[AlertRule] = TRAINING_RULES,
        writers: Sequence[MetricWriter] = (),
        keep: Count = 10_000,
        clock: Callable[[], float] = time.time,
    ):
        self.alerts, self.writers = Alerts(rules), list(writers)
        self.samples, self.events = deque[Sample](maxlen=keep), deque[AlertEvent](maxlen=keep)
        self._clock, self._next_step = clock, 0

    @checked
    def record(
        self, metrics: Mapping[str, float], time_s: Finite | None = None, step: int | None = None
    ) -> list[AlertEvent]:
        """Check and write the metrics of one step.

        Args:
            metrics: name -> value, as Python's numbers (`loss.item()`).
            time_s: its time, not before the last one; None: the clock's.
            step: its number; None: one after the last.

        Returns the changes of alerts. Raises ValueError: a name that Prometheus refuses, or an earlier time.
        """
        for name in metrics:
            check_metric(name)
        time_s = self._clock() if time_s is None else time_s
        sample = Sample(time_s, self._next_step if step is None else step, {**metrics})
        events = self.alerts.observe(sample.time_s, sample.metrics)
        self._next_step = sample.step + 1
        self.samples.append(sample)
        self.events.extend(events)
        for writer in self.writers:
            writer.write(sample, events)
        return events

    @property
    def firing(self) -> list[AlertEvent]:
        """The events of the alerts that fire now, among those in memory."""
        last = {event.rule.name: event for event in self.events}
        return [event for event in last.values() if event.state == "firing"]

    def figure(self, **options: Any) -> "go.Figure":
        """The metrics that have rules over time, with thresholds and the times in which alerts fired."""
        first_s = self.samples[0].time_s if self.samples else 0.0
        times_s = [sample.time_s - first_s for sample in self.samples]
        watched = dict.fromkeys(rule.metric for rule in self.alerts.rules)
        given = {name: [s.metrics.get(name, nan) for s in self.samples] for name in watched}
        series = {name: values for name, values in given.items() if any(v == v for v in values)}
        fired = firing_spans(self.events)
        spans = [(rule.metric, rule.name, start_s - first_s, end_s - first_s) for rule, start_s, end_s in fired]
        thresholds = [(rule.metric, rule.when, rule.threshold) for rule in self.alerts.rules]
        return draw("figure_metrics", times_s, series, thresholds, spans, **options)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record(monitor: Monitor, metrics: Mapping[str, Any], say: Callable[[Any], None] = print) -> None:
    """Record the numbers of a step under the names of `TRAINING_RULES`, and print changes of alerts."""
    names = {"grad_norm": "gradient_norm", "tokens_per_s": "throughput"}
    numbers = {names.get(key, key): float(value) for key, value in metrics.items() if isinstance(value, int | float)}
    used = memory_utilization()
    for event in monitor.record(numbers | ({} if used is None else {"memory_utilization": used}), step=metrics["step"]):
        say(event)


def line_of(metrics: Mapping[str, Any]) -> str:
    """The numbers of a step in a line."""
    forms = {"loss": "{:.4f}", "grad_norm": "{:.3f}", "lr": "{:.2e}", "tokens": "{:,}", "loss_scale": "{:g}"}
    parts = [f"{name} {form.format(metrics[name])}" for name, form in forms.items() if metrics[name] is not None]
    if "communication_share" in metrics:
        share, waiting_s = metrics["communication_share"], metrics["synchronization_s"]
        parts += [f"communication {share:.1%}", f"waiting {waiting_s:.3g} s"]
    parts += ["skipped"] if metrics["skipped"] else []
    parts += [f"{metrics['action'].value}: {metrics['reason']}"] if metrics["reason"] else []
    return "  ".join([f"step {metrics['step']:>5}", *parts])
