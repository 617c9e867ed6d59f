"""Shape and dtype of the activation at each boundary between pieces, found without computing.

A receive needs a buffer before the message arrives. So each rank runs all pieces on the "meta" device, where tensors
have a shape but no data, once for each shape of a micro-batch. It uses the modules of its own pieces, and a shell of
every other piece: a copy on "meta", without memory.

Simplified: one tensor is passed between pieces, in a floating dtype.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lablib.torch_compat import disable_current_modes

Shape = tuple[tuple[int, ...], torch.dtype]


class Boundaries:
    """The activations between all pieces, in order; `own`: the numbers of the pieces on this rank."""

    def __init__(self, pieces: Sequence[nn.Module], own: Sequence[int]):
        self._pieces = [piece if i in own else _shell(piece) for i, piece in enumerate(pieces)]
        self._known: dict[Shape, list[Shape]] = {}

    def of(self, micro_batch: Tensor) -> list[Shape]:
        """Shape and dtype of the outputs of all pieces but the last. ValueError: no tensor that has a gradient."""
        key = (tuple(micro_batch.shape), micro_batch.dtype)
        if key not in self._known:
            self._known[key] = self._found(torch.empty(key[0], dtype=key[1], device="meta"))
        return self._known[key]

    @torch.no_grad()
    @disable_current_modes()  # it takes no time on the simulator's clock
    def _found(self, x: Tensor) -> list[Shape]:
        found: list[Shape] = []
        for number, piece in enumerate(self._pieces[:-1]):
            x = functional_call(piece, {name: p.to("meta") for name, p in _tensors(piece)}, (x,))
            if not (isinstance(x, Tensor) and x.is_floating_point()):
                got = f"{x.dtype}" if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(f"a piece must give one floating tensor to the next: piece {number} gives {got}.")
            found.append((tuple(x.shape), x.dtype))
        return found


def _tensors(piece: nn.Module) -> list[tuple[str, Tensor]]:
    return [*piece.named_parameters(), *piece.named_buffers()]


@torch.no_grad()
@disable_current_modes()  # nor memory
def _shell(piece: nn.Module) -> nn.Module:
    memo = {
        id(x): nn.Parameter(x.to("meta"), x.requires_grad) if isinstance(x, nn.Parameter) else x.to("meta")
        for _, x in _tensors(piece)
    }
    return copy.deepcopy(piece, memo)
