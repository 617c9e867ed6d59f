"""The common class of the optimizers: collects and checks the tensors of a step, and loads and counts state.

An optimizer of this package defines `new_state`, the state of a parameter, and `update`, its formula over lists of
tensors. A list is passed to a batched (foreach) operator in one call, which is one kernel on a GPU instead of one per
parameter.

    step: closure -> check every gradient -> for each group: update(params, gradients, states, settings of the group)

As in torch.optim: a parameter without gradient is not changed and gets no state; state begins with the first gradient;
a group may be empty; settings may differ between groups.

It is stricter in three ways: the settings of every group are checked; all gradients are checked before the first
parameter is changed; a state is loaded only if its names, shapes, dtypes and settings match the optimizer's (torch
would cast 8-bit codes to the dtype of the parameter).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim.checks import Settings, State, check_gradient, check_saved_settings, check_state
from lablib.signature import FractionBelow1, check_arguments

Betas = tuple[FractionBelow1, FractionBelow1]


class BatchedOptimizer(torch.optim.Optimizer):
    """An optimizer made of `new_state` and `update`; `bytes_of` is the size of `new_state` by formula.

    Arguments:
        params: as for torch.optim: parameters, (name, parameter) pairs, or groups of either.
        settings: defaults of all groups. With `check_finite`, `step` raises at a gradient that is not finite.
    """

    # each number's update depends only on its own gradient and state, so it works on shards
    is_element_wise: ClassVar[bool] = False

    def __init__(self, params: ParamsT, **settings: Any):
        try:
            super().__init__(params, settings)
        except ValueError as error:
            if "empty parameter list" not in str(error):
                raise
            raise ValueError(
                "params must have a parameter: got an empty parameter list; try model.parameters()"
            ) from error

    def new_state(self, param: Tensor, group: Settings) -> State:
        """State of a parameter before its first step."""
        raise NotImplementedError

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        """Change parameters and states by one step."""
        raise NotImplementedError

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        """Bytes kept for a parameter of this shape, with numbers of `itemsize` bytes; two means by default."""
        return 2 * itemsize * math.prod(shape)

    def check_group(self, group: Settings) -> None:
        """Raise ValueError at settings or parameters that do not fit together."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of every parameter that has a gradient; returns what `closure` returns.

        Raises:
            RuntimeError: a sparse or complex gradient, as torch does.
            ValueError: a gradient that is not finite, if the group checks it; nothing is changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.check_gradients()
        for group, params, grads, states in self.batches():
            self.update(params, grads, states, group)
        return loss

    def batches(self) -> Iterator[tuple[Settings, list[Tensor], list[Tensor], list[State]]]:
        """For each group: its settings, its parameters that have a gradient, the gradients, the states."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                if not self.state[param]:
                    self.state[param] = self.new_state(param, group)
            if params:
                yield group, params, [param.grad for param in params], [self.state[param] for param in params]

    def state_bytes(self) -> int:
        """Bytes of all tensors of the state. Counts of steps are Python's and take none."""
        values = (value for state in self.state.values() for value in state.values())
        return sum(value.nbytes for value in values if isinstance(value, Tensor))

    def add_param_group(self, param_group: Settings) -> None:
        """As torch's; the settings are checked against the types and bounds of the signature."""
        super().add_param_group(param_group)
        try:
            group = {name: value for name, value in self.param_groups[-1].items() if name != "params"}
            check_arguments(type(self).__name__, type(self).__init__, group)
            self.check_group(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: Settings) -> None:
        """As torch's; ValueError (nothing is changed): other groups, shapes or dtypes, or another optimizer's state."""
        if [len(group["params"]) for group in state_dict["param_groups"]] == [
            len(group["params"]) for group in self.param_groups
        ]:  # if not, torch has a clear error
            for name, param, group, saved in self._beside(state_dict):
                wanted = self.new_state(param.detach().to("meta"), {**group, **saved[1]})
                check_state(name, type(self).__name__, wanted, saved[0])
            for saved in state_dict["param_groups"]:
                check_saved_settings(type(self).__name__, self.defaults, saved)
        super().load_state_dict(state_dict)
        for _, param, _, (state, _) in self._beside(state_dict):
            moved = {key: value.to(param.device) for key, value in state.items() if isinstance(value, Tensor)}
            self.state[param] = state | moved

    def _beside(self, state_dict: Settings) -> Iterator[tuple[str, Tensor, Settings, tuple[State, Settings]]]:
        """Each parameter with a saved state: name, parameter, group, and the saved state and settings."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for place, index in enumerate(saved["params"]):
                if state := state_dict["state"].get(index):
                    yield self._name(group, place), group["params"][place], group, (state, saved)

    def check_gradients(self) -> None:
        """Raise for a gradient that is sparse or complex, or not finite if its group checks it."""
        for group in self.param_groups:
            for place, param in enumerate(group["params"]):
                if param.grad is not None:
                    check_gradient(param.grad, self._name(group, place), type(self).__name__, group["check_finite"])

    def _name(self, group: Settings, place: int) -> str:
        """The name of a parameter, if the optimizer got `model.named_parameters()`; otherwise its number and shape."""
        if names := group.get("param_names"):
            return names[place]
        number = next(i for i, other in enumerate(self.param_groups) if other is group)
        return f"parameter {place} of group {number} (shape {tuple(group['params'][place].shape)})"


def count_steps(states: list[State]) -> list[int]:
    """Count this step in each state; return the counts."""
    for state in states:
        state["step"] += 1
    return [state["step"] for state in states]


Lists = tuple[list[Tensor], list[Tensor], list[State]]


def split(is_first: list[bool], params: list[Tensor], grads: list[Tensor], states: list[State]) -> tuple[Lists, Lists]:
    """Parameters, gradients and states in two parts: where `is_first` is True, and the rest."""

    def where(wanted: bool) -> Lists:
        chosen = [one is wanted for one in is_first]
        return list(compress(params, chosen)), list(compress(grads, chosen)), list(compress(states, chosen))

    return where(True), where(False)
