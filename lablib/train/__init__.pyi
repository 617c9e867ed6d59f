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
