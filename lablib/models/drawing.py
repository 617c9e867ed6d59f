"""Random generator on the device of a model, as required to draw into its tensors."""

import torch
from torch import nn

from lablib.signature import checked


@checked
def generator_beside(module: nn.Module, seed: int) -> torch.Generator:
    """A generator with this seed on the device of the module's parameters; on the CPU for parameters without values.

    A GPU draws different numbers from a CPU for the same seed; all GPUs draw the same.
    """
    device = next((param.device for param in module.parameters()), torch.device("cpu"))
    return torch.Generator("cpu" if device.type == "meta" else device).manual_seed(seed)
