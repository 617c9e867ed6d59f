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
from .state import flat_optimizer as flat_optimizer, load_flat_optimizer as load_flat_optimizer
