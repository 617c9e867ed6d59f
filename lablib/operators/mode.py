"""Base of the modes that see every operator below autograd: entering one does not import torch's compiler."""

from lablib.torch_compat import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """A `TorchDispatchMode` without torch's default wrapper of every call, which imports the compiler (1.4 s)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
