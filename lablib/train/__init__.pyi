# ruff: noqa: I001  (in reading order)
from .config import (
    TrainConfig as TrainConfig,
    ModelConfig as ModelConfig,
    DataConfig as DataConfig,
    OptimizerConfig as OptimizerConfig,
    ParallelConfig as ParallelConfig,
    PrecisionConfig as PrecisionConfig,
    MemoryConfig as MemoryConfig,
    CheckpointConfig as CheckpointConfig,
    MonitorConfig as MonitorConfig,
    HealthConfig as HealthConfig,
)
from .read_config import read_config as read_config, parse_config as parse_config, with_overrides as with_overrides
from .deepspeed import deepspeed_tables as deepspeed_tables, read_deepspeed_training as read_deepspeed_training
from .trainer import Trainer as Trainer, Loader as Loader, Metrics as Metrics, Schedule as Schedule
from .steps import (
    Step as Step,
    ReplicaStep as ReplicaStep,
    ExpertStep as ExpertStep,
    ZeroStep as ZeroStep,
    MeshStep as MeshStep,
)
from .build import (
    build as build,
    make_model as make_model,
    make_step as make_step,
    make_optimizer as make_optimizer,
    make_scaler as make_scaler,
    make_schedule as make_schedule,
    make_loader as make_loader,
)
from .state import Held as Held, named_state as named_state, load_named_state as load_named_state
from .checkpoint import Checkpoints as Checkpoints
from .checkpoint_state import PerRank as PerRank
from .generators import generator_states as generator_states, set_generator_states as set_generator_states
from .interval import (
    LLAMA3_FAILURES as LLAMA3_FAILURES,
    FailureRate as FailureRate,
    daly_interval_s as daly_interval_s,
    expected_overhead as expected_overhead,
    simulated_overhead as simulated_overhead,
    young_interval_s as young_interval_s,
)
from .health import (
    Action as Action,
    Drift as Drift,
    RunStopped as RunStopped,
    SpikeGuard as SpikeGuard,
    find_drift as find_drift,
)
from .guards import DriftGuard as DriftGuard, Guard as Guard, make_guard as make_guard, replicas_of as replicas_of
from .breakdown import TimedPhases as TimedPhases
from .communication import CommunicationMeter as CommunicationMeter
from .hang import HangWatch as HangWatch
from .safetensors import read_safetensors as read_safetensors, write_safetensors as write_safetensors
from .hugging_face import export_gpt2 as export_gpt2, import_gpt2 as import_gpt2
from .hugging_face_llama import export_llama as export_llama, import_llama as import_llama
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
from .monitor import (
    MetricWriter as MetricWriter,
    Monitor as Monitor,
    Sample as Sample,
    memory_utilization as memory_utilization,
)
from .metric_writers import JsonLines as JsonLines, PrometheusExporter as PrometheusExporter, TensorBoard as TensorBoard
