"""Checks of an optimizer's gradients, and of a state to load."""

from typing import Any

from torch import Tensor

Settings = dict[str, Any]
State = dict[str, Any]


def check_gradient(grad: Tensor, name: str, optimizer: str, is_finite: bool) -> None:
    """Raise RuntimeError for a sparse or complex gradient; ValueError for one that must be finite and is not."""
    if grad.is_sparse or grad.is_complex():
        raise RuntimeError(
            f"{optimizer} does not support {'sparse' if grad.is_sparse else 'complex'} gradients: {name} has one; give "
            "it to another optimizer (torch.optim.SparseAdam, torch.optim.AdamW)."
        )
    if is_finite and not grad.isfinite().all():
        raise ValueError(
            f"gradients must be finite: the gradient of {name} has {int(grad.isnan().sum())} NaN and "
            f"{int(grad.isinf().sum())} infinite numbers of {grad.numel()}; skip the step, or find their cause."
        )


def check_saved_settings(optimizer: str, settings: Settings, saved: Settings) -> None:
    """Raise ValueError if a saved group lacks a setting of this optimizer."""
    if missing := [name for name in settings if name not in saved]:
        raise ValueError(
            f"a state must be of the same optimizer: its settings lack {', '.join(missing)}, which {optimizer} has; "
            f"load the state that a {optimizer} of this package saved."
        )


def check_state(name: str, optimizer: str, wanted: State, saved: State) -> None:
    """Raise ValueError unless a saved state has the entries, shapes and dtypes of this parameter's state."""
    if wanted.keys() != saved.keys():
        raise ValueError(
            f"a state must be of the same optimizer: {name} has {', '.join(saved)}, and {optimizer} keeps "
            f"{', '.join(wanted)}; load the state that a {optimizer} saved."
        )
    for key, value in wanted.items():
        if isinstance(value, Tensor) and saved[key].shape != value.shape:
            raise ValueError(
                f"a state must be of the same model and settings: {key} of {name} has the shape "
                f"{tuple(saved[key].shape)}, not {tuple(value.shape)}; load the state of a model of these shapes."
            )
        if isinstance(value, Tensor) and saved[key].dtype != value.dtype:
            raise ValueError(
                f"a state must be of a model of the same dtypes: {key} of {name} is {saved[key].dtype}, not "
                f"{value.dtype}; load it with parameters of the dtype that it was saved with."
            )
