"""Record the operators of a call: their names, FLOPs, and peak bytes.

    with Operators() as operators:
        answer(x)
    operators.names, operators.flops, operators.peak_bytes

Entering it does not import torch's compiler (3 s of CPU), as a plain `TorchDispatchMode` or torch's `FlopCounterMode`
does at its first operator.
"""

import weakref
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from lablib.operators.mode import OperatorMode
from lablib.torch_compat import schema, tree_leaves


class Operators(OperatorMode):
    """Records the operators that run inside, below autograd.

    Attributes:
        names: names of the operators, without overload: "mm".
        flops: FLOPs of the operators that torch's FlopCounterMode counts.
        peak_bytes: peak bytes of live tensors that were made inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.flops = self.peak_bytes = 0
        self._live: dict[weakref.ref, int] = {}
        self._live_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        given = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **kwargs)
        self.names.add(schema(func).name.removeprefix("aten::"))
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and id(x.untyped_storage()) not in given:
                self._made(x)
        return out

    def _made(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        reference = weakref.ref(storage, self._freed)
        if reference in self._live:  # equal while the storage lives
            return
        self._live[reference] = storage.nbytes()
        self._live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def _freed(self, reference: weakref.ref) -> None:
        self._live_bytes -= self._live.pop(reference)
