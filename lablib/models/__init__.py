"""One plain GPT that knows nothing of parallelism, and a catalogue of published sizes. Read `gpt.py` first."""

from lablib.models.catalogue import MODELS, ModelRecord, model_config
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.models.sizes import num_parameters, parameter_counts

__all__ = [
    "GPT",
    "GPTConfig",
    "next_token_loss",
    "num_parameters",
    "parameter_counts",
    "MODELS",
    "ModelRecord",
    "model_config",
]
