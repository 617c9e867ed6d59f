"""States of the random generators of a rank, as plain values for a checkpoint.

A resumed run equals the uninterrupted one to the bit only if dropout, shuffling and augmentation draw the same numbers.
Four generators matter: torch's of the CPU, torch's of the current GPU, numpy's global one and Python's `random`. Each
rank has its own; a checkpoint stores them per rank (`PerRank` in checkpoint_state.py).

Cost: 5 kB for torch's Mersenne Twister, 2.5 kB each for numpy's and Python's, 16 bytes for a GPU's counter.
Source: torch.get_rng_state, numpy.random.get_state, random.getstate.
Simplified: generators that a program makes itself (`torch.Generator`) are the caller's: add `generator.get_state()`.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lablib.signature import checked, shown


def generator_states() -> dict[str, Any]:
    """The states of this rank's default generators: tensors, numbers and tuples, which `torch.save` can store."""
    of_numpy: Any = np.random.get_state(legacy=False)
    key = torch.from_numpy(of_numpy["state"]["key"].astype(np.int64))
    states = {
        "torch": torch.get_rng_state(),
        "numpy": {**of_numpy, "state": {**of_numpy["state"], "key": key}},
        "python": random.getstate(),
    }
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {})


@checked
def set_generator_states(states: Mapping[str, Any]) -> None:
    """Set this rank's default generators to the states of `generator_states`. ValueError: a state is missing."""
    if missing := [name for name in ("torch", "numpy", "python") if name not in states]:
        raise ValueError(
            f"states must have torch, numpy, python: {missing[0]} is not among {shown(sorted(states))}; give the "
            "result of generator_states()."
        )
    of_numpy = states["numpy"]
    key = of_numpy["state"]["key"].numpy().astype(np.uint32)
    torch.set_rng_state(states["torch"])
    np.random.set_state({**of_numpy, "state": {**of_numpy["state"], "key": key}})
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
