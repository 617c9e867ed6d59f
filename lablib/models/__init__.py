"""A plain GPT without parallelism, and a catalogue of published sizes. Read `gpt.py` first.

gpt                 the GPT
sizes               its parameter count
catalogue           sizes to train here, by name
transformer         published architectures: attention, experts, latents
published           published sizes, by name
transformer_sizes   parameters of a published architecture
transformer_flops   its FLOPs per token and step
training_compute    FLOPs of a whole training: 6 N D
drawing             random numbers on the device of a model
"""

from lablib.models.catalogue import MODELS, ModelRecord, model_config
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.models.published import TRANSFORMERS, find_transformer
from lablib.models.sizes import num_parameters, parameter_counts
from lablib.models.transformer import Experts, Latent, Transformer
from lablib.models.transformer_sizes import transformer_parameters

__all__ = [
    "GPT",
    "GPTConfig",
    "next_token_loss",
    "num_parameters",
    "parameter_counts",
    "MODELS",
    "ModelRecord",
    "model_config",
    "Transformer",
    "Latent",
    "Experts",
    "TRANSFORMERS",
    "find_transformer",
    "transformer_parameters",
]
