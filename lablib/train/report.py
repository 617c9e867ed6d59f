"""The numbers of a step as a printed line, and as a sample of a monitor.

Recorded, by rank 0 (`monitor.folder`, `monitor.rules`):

    loss, gradient_norm, throughput (tokens per second), lr, tokens, step_s, loss_scale, skipped     of each step
    memory_utilization      used share of the GPU's memory, without GPUs of the machine's; not on the simulator

communication_share and synchronization_s are known when a run has ended, on every backend: `lab train` prints both and
compares them with their rules.
Rules on metrics of other sources, such as node_failure_share, have missing data here.
"""

from collections.abc import Callable
from typing import Any

from lablib.train.monitor import Monitor, memory_utilization
from lablib.train.trainer import Metrics


def record(monitor: Monitor, metrics: Metrics, say: Callable[[Any], None] = print) -> None:
    """Record the numbers of a step under the names of `TRAINING_RULES`, and print changes of alerts."""
    names = {"grad_norm": "gradient_norm", "tokens_per_s": "throughput"}
    numbers = {names.get(key, key): float(value) for key, value in metrics.items() if isinstance(value, int | float)}
    used = memory_utilization()
    for event in monitor.record(numbers | ({} if used is None else {"memory_utilization": used}), step=metrics["step"]):
        say(event)


def line_of(metrics: Metrics) -> str:
    """The numbers of a step in a line."""
    forms = {"loss": "{:.4f}", "grad_norm": "{:.3f}", "lr": "{:.2e}", "tokens": "{:,}", "loss_scale": "{:g}"}
    parts = [f"{name} {form.format(metrics[name])}" for name, form in forms.items() if metrics[name] is not None]
    return (
        f"step {metrics['step']:>5}  "
        + "  ".join(parts)
        + "  skipped" * metrics["skipped"]
        + f"  {metrics['action'].value}: {metrics['reason']}" * bool(metrics["reason"])
    )
