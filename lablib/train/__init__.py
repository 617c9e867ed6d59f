"""Training runs in production: a configured trainer, checkpoints, the health of a run, metrics and alerts.

A configuration, and a trainer in plain torch that runs on the simulator, gloo and NCCL:
config             the configuration, as a tree of dataclasses
read_config        the same from TOML or YAML, with overrides
deepspeed          the same from a DeepSpeed JSON
without_effect     fields that were set and change nothing
trainer            the loop: rate, gradients, clipping, judgement, update, report; its state
steps              gradients and update of one device, data parallelism, ZeRO, FSDP2 and a mesh, in one interface
build              a trainer from a configuration
run                the program of `lab train`: read, build, train, print, save, roll back, record
torchrun           the same program as a script
breakdown          seconds of the phases of a step
communication      share of communication and seconds of waiting in each step
state              parameters and optimizer state by the names of the whole model
boxes              a rank's boxes of a whole tensor, for torch.distributed.checkpoint

Checkpoints, restarts after faults, and the health of replicas:
checkpoint         save and load a run: asynchronous, atomic, checked; the last and the best are kept
checkpoint_save    one save on one rank: copy, write, publish
checkpoint_state   split a state into tensors and objects, copy it to the host, read it back
manifest           files of a checkpoint with sizes and checksums; publication; retention
generators         states of the random generators of a rank
interval           checkpoint interval that loses the least time: Young, Daly, simulated failures
health             replicas that drift apart; NaN and spikes: skip, roll back or stop
guards             both as the guard of a trainer, from a configuration
hang               a hang of real ranks: ended, with the line of each rank
safetensors        files of tensors that contain no code
hugging_face       GPT-2 in the files of Hugging Face's transformers
hugging_face_llama the same for Llama

Metrics and alerts:
alerts             rules with thresholds and durations, evaluated on a stream of metrics
alert_files        rules as YAML, and as a rule file of Prometheus
monitor            the stream: samples to alerts, writers and a figure; the numbers of a step as a line
metric_writers     JSON lines, TensorBoard, Prometheus
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
