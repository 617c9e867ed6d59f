# ruff: noqa: I001  (in reading order)
from .alerts import (
    TRAINING_RULES as TRAINING_RULES,
    AlertEvent as AlertEvent,
    AlertRule as AlertRule,
    Alerts as Alerts,
    firing_spans as firing_spans,
)
from .alert_files import (
    parse_rules as parse_rules,
    prometheus_rules as prometheus_rules,
    read_rules as read_rules,
    rules_yaml as rules_yaml,
)
from .monitor import MetricWriter as MetricWriter, Monitor as Monitor, Sample as Sample
from .metric_writers import (
    JsonLines as JsonLines,
    PrometheusExporter as PrometheusExporter,
    TensorBoard as TensorBoard,
)
