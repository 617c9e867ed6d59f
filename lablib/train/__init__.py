"""Training runs in production: metrics and alerts.

alerts          rules with thresholds and durations, evaluated on a stream of metrics
alert_files     rules as YAML, and as a rule file of Prometheus
monitor         the stream: samples to alerts, writers and a figure
metric_writers  JSON lines, TensorBoard, Prometheus
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
