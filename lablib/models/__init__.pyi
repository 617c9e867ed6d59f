# ruff: noqa: I001  (in reading order)
from .sizes import GPTConfig as GPTConfig, num_parameters as num_parameters, parameter_counts as parameter_counts
from .gpt import GPT as GPT, next_token_loss as next_token_loss
from .llama_sizes import LlamaConfig as LlamaConfig
from .llama import Llama as Llama, model_of as model_of
from .catalogue import MODELS as MODELS, ModelRecord as ModelRecord, model_config as model_config
from .transformer import Experts as Experts, Latent as Latent, Transformer as Transformer, Window as Window
from .published import TRANSFORMERS as TRANSFORMERS, find_transformer as find_transformer
from .transformer_sizes import transformer_parameters as transformer_parameters
