"""Training runs in production: checkpoints, restarts after faults, the health of replicas, metrics and alerts.

checkpoint         save and load a run: asynchronous, atomic, checked; the last and the best are kept
checkpoint_save    one save on one rank: copy, write, publish
checkpoint_state   split a state into tensors and objects, copy it to the host, read it back
manifest           files of a checkpoint with sizes and checksums; publication; retention
generators         states of the random generators of a rank
interval           checkpoint interval that loses the least time: Young, Daly, simulated failures
health             replicas that drift apart; NaN and spikes: skip, roll back or stop
alerts             rules with thresholds and durations, evaluated on a stream of metrics
alert_files        rules as YAML, and as a rule file of Prometheus
monitor            the stream: samples to alerts, writers and a figure
metric_writers     JSON lines, TensorBoard, Prometheus
safetensors        files of tensors that contain no code
hugging_face       GPT-2 in the files of Hugging Face's transformers
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
