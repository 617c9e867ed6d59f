"""Helper code of single labs: their figures, and comparisons that a learner does not write.

lab00   possible messages between ranks
lab01   memory over a step, six FLOPs, parts of a step
lab02   exponents of gradients, and the ranges of number formats
lab03   steps of a chain, copies to the host, ways to keep fewer activations
lab04   cuts of a batch, learning rates, critical batch, muP
lab05   a narrow valley, recorded runs of optimizers, effects of an update
lab06   tiles of a kernel, and tile quantization
lab07   a loop fed by a loader, packed documents
lab08   an all-reduce before and after, crossing of ring and tree, fit of a link
lab09   times of a data-parallel step, its calls and its scaling
lab10   memory and bytes of each ZeRO stage
lab11   a slow link, errors of quantized numbers, recorded runs of compressed training
lab12   matrices cut over ranks; bytes, memory and seconds of a shared layer
lab13   stages of a model, bubbles of schedules at equal memory
lab14   orders of a mesh's axes
lab15   long sequences, mixtures of experts
lab16   a slice of GPT-3, plans with a price, a leader board
lab17   failures of a run, the cost of checkpoints, monitors, alerts of a night
lab18   a capstone step by step: choices, locked predictions, runs, report
translated  figures, controls and tables in the reader's language
mine    the learner's functions in place of the library's, with LAB_MINE=1
"""

import os
from typing import Any


def __getattr__(name: str) -> Any:
    """Before a lab's first import: its functions of the learner's, if they are asked for."""
    if os.environ.get("LAB_MINE") == "1" and name[:3] == "lab":
        from lablib.labs.mine import put_in_place

        print(put_in_place(name.removeprefix("lab")))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # Python then imports the file
