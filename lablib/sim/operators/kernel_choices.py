"""Settings that choose kernels on a GPU, and change nothing on the simulator: cuDNN's benchmark and deterministic.

    benchmark       at the first call with new shapes, cuDNN times its convolution algorithms and keeps the fastest
    deterministic   cuDNN takes only convolution algorithms that give the same bits every time

Both concern convolutions and recurrent layers; a transformer's products (cuBLAS) and attention are not affected.
Source: torch 2.13, "Reproducibility" and "torch.backends.cudnn".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lablib import torch_compat
from lablib.record.rank_text import ranks_in_words

if TYPE_CHECKING:
    from lablib.sim.ranks.rank import Rank

_EFFECTS = {
    "benchmark": "on a GPU cuDNN times its convolution algorithms at the first call with new shapes and keeps the "
    "fastest, so constant shapes gain and changing ones lose time",
    "deterministic": "on a GPU cuDNN then takes only convolution algorithms that repeat to the bit, which can be "
    "slower; simulated values repeat in any case",
}


def chosen_kernels() -> tuple[str, ...]:
    """The settings that are on in the current rank."""
    on = {"benchmark": torch_compat.get_cudnn_benchmark(), "deterministic": torch_compat.get_cudnn_deterministic()}
    return tuple(name for name, is_on in on.items() if is_on)


def kernel_choice_notes(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each setting that was on at the end of some rank."""
    chosen = {name: [rank.rank for rank in ranks if name in rank.chosen_kernels] for name in _EFFECTS}
    return [
        f"torch.backends.cudnn.{name} is on, without effect on the simulator (ranks: {ranks_in_words(numbers)}): "
        f"{_EFFECTS[name]}"
        for name, numbers in chosen.items()
        if numbers
    ]
