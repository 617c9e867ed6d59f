"""Training: a configuration, and a trainer in plain torch that runs on the simulator, gloo and NCCL.

config       the configuration, as a tree of dataclasses
read_config  the same from TOML or YAML, with overrides
deepspeed    the same from a DeepSpeed JSON
trainer      the loop: rate, gradients, clipping, update, report; its state
steps        gradients and update of one device, data parallelism, ZeRO, FSDP2 and a mesh, in one interface
build        a trainer from a configuration
run          the program of `lab train`: read, build, train, print
state        optimizer state and random generators as a flat mapping
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
