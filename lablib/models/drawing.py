"""A generator of random numbers on the device of a model: what draws into its tensors must be there, too."""

import torch
from torch import nn

from lablib.signature import checked


@checked
def generator_beside(module: nn.Module, seed: int) -> torch.Generator:
    """A generator with this seed on the device of the module's parameters; on the CPU where those have no values.

    A GPU draws other numbers than a CPU from the same seed, and every GPU the same.
    """
    device = next((param.device for param in module.parameters()), torch.device("cpu"))
    return torch.Generator("cpu" if device.type == "meta" else device).manual_seed(seed)
