"""Categories of a rank's allocations, inferred from their use; `lablib.record.memory` lists them.

    parameter         an operator gets an nn.Parameter, or an optimizer steps a leaf that requires gradients
    gradient          autograd's AccumulateGrad puts it into `.grad`, or it is found there after backward (DDP's bucket
                      views, FSDP2's shards and `.grad` written by hand)
    optimizer state   `Optimizer.step` touched it, outside any closure, and it is alive when the step ends
    activation        made by an operator that autograd records; or made without (checkpointed forward) and then used as
                      part of the graph
    communication     a collective gets it

Each has priority over those below it: a buffer of a collective that holds `.grad` is a gradient (DDP's buckets with
`gradient_as_bucket_view`), any other bucket is communication.
"""

import weakref
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lablib.record.allocations import CATEGORIES
from lablib.sim.memory.storages import TrackedStorage, inner
from lablib.torch_compat import base_of, current_autograd_node, storage_id

PARAMETER, GRADIENT, OPTIMIZER, ACTIVATION, COMMUNICATION, OTHER = range(len(CATEGORIES))


class Categories:
    """The categories of one rank's allocations.

    Args:
        live: the tracked storages, by address.
        of: the category of each allocation; written here.

    `is_stepping`: inside `Optimizer.step`.
    """

    def __init__(self, live: dict[int, TrackedStorage], of: array):
        self.of = of
        self.is_stepping = False
        self._live = live
        self._params: dict[int, weakref.ref[Tensor]] = {}
        self._steps: list[list[TrackedStorage]] = []  # storages touched by the current steps

    def close(self) -> None:
        """Finish when the rank ends."""
        self.find_gradients()
        self._params.clear()
        self._steps.clear()

    def read(self, tensor: Tensor, tracked: TrackedStorage) -> None:
        """Update the category of an argument of an operator."""
        if type(tensor) is not Tensor:
            self.know_parameter(tensor, tracked)
        if self.is_stepping:
            self._step_touches(tensor, tracked)
        elif self.of[tracked.allocation] == OTHER and tensor.requires_grad and not _is_leaf(tensor):
            self.of[tracked.allocation] = ACTIVATION

    # ---- parameters ----

    def know_parameter(self, tensor: Tensor, tracked: TrackedStorage | None = None) -> None:
        """If this is an nn.Parameter, mark its memory and its `.grad`, and remember it."""
        known = self._params.get(id(tensor))
        if known is not None and known() is tensor:
            if tracked is not None:  # `param.data = ...` replaces its memory
                self.of[tracked.allocation] = PARAMETER
        elif isinstance(tensor, torch.nn.Parameter):
            self._params[id(tensor)] = weakref.ref(tensor)
            for found in self._watches(tensor):
                self.of[found.allocation] = PARAMETER
            self._find_gradient(tensor)

    def forget(self, *tensors: Tensor) -> None:
        """Drop the references to these tensors; the next operator that gets them registers them again."""
        for tensor in tensors:
            self._params.pop(id(tensor), None)

    def _watches(self, tensor: Tensor) -> Iterator[TrackedStorage]:
        for part in inner(tensor):
            tracked = self._live.get(storage_id(part.untyped_storage()))
            if tracked is not None:
                yield tracked

    # ---- gradients ----

    def find_gradients(self) -> None:
        """Mark the `.grad` of every known parameter as a gradient."""
        for key, ref in list(self._params.items()):
            param = ref()
            if param is None:
                del self._params[key]
            else:
                self._find_gradient(param)

    def _find_gradient(self, param: Tensor) -> None:
        gradient = param.grad if base_of(param) is None and param.is_leaf else None
        if gradient is not None:
            for tracked in self._watches(gradient):
                self._is_gradient(tracked)

    def perhaps_gradient(self, tensor: Tensor, tracked: TrackedStorage) -> None:
        """Mark a tensor that AccumulateGrad keeps: the first gradient, or a copy in the parameter's layout."""
        node: Any = current_autograd_node()
        # Hooks run inside the node too, with other tensors.
        if type(node).__name__ == "AccumulateGrad" and node.variable.shape == tensor.shape:
            self._is_gradient(tracked)

    def _is_gradient(self, tracked: TrackedStorage) -> None:
        if self.of[tracked.allocation] != PARAMETER:
            self.of[tracked.allocation] = GRADIENT

    # ---- optimizer state ----

    def enter_step(self) -> None:
        """Begin an `Optimizer.step`."""
        self.find_gradients()
        self._steps.append([])
        self.is_stepping = True

    def leave_step(self) -> None:
        """End a step: storages that it touched, alive and without a category, are optimizer state."""
        for tracked in self._steps.pop() if self._steps else ():
            if tracked() is not None and self.of[tracked.allocation] == OTHER:
                self.of[tracked.allocation] = OPTIMIZER
        self.is_stepping = bool(self._steps)

    def made(self, tracked: TrackedStorage) -> None:
        """Note a storage that an operator inside the step allocated."""
        self._steps[-1].append(tracked)

    def _step_touches(self, tensor: Tensor, tracked: TrackedStorage) -> None:
        if torch.is_grad_enabled():
            return  # the step's closure computes the loss
        root = _root(tensor)
        if root.requires_grad and root.is_leaf:
            self.of[tracked.allocation] = PARAMETER
        elif self.of[tracked.allocation] == OTHER:
            self._steps[-1].append(tracked)


def _root(tensor: Tensor) -> Tensor:
    """The base of a view; the tensor itself if it is not a view."""
    base = base_of(tensor)
    return tensor if base is None else base


def _is_leaf(tensor: Tensor) -> bool:
    """Whether no recorded operator made it."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view made in `no_grad` and changed twice since: torch raises
        return _root(tensor).is_leaf
