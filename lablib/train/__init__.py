"""Training: a configuration, and a trainer in plain torch that runs on the simulator, gloo and NCCL.

config       the configuration, as a tree of dataclasses
read_config  the same from TOML or YAML, with overrides
deepspeed    the same from a DeepSpeed JSON
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
