"""Readers and writers of configuration files of other software: sizes and settings for the planner, without torch.

hugging_face   a model's config.json
deepspeed      a ds_config.json: batch, ZeRO, offload, precision, optimizer
megatron       the command line of Megatron-LM: model and plan
torchtitan     a TOML file, or torchtitan_python: model and plan; torchtitan_models: its flavors
writing        a plan as a configuration: write_deepspeed, write_megatron, write_torchtitan
reading        result of a reader: its record, omissions and unknown fields; summary: its model, as a sentence
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
