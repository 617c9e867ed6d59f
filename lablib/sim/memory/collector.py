"""Python's garbage collector during a run: only objects of the run are traversed, not older ones.

Once torch is imported a process holds some 500,000 objects. A run makes many more, so the collector would traverse all
of them several times: a tenth of a run with many ranks. During a run the older ones are frozen (`gc.freeze`).
Collections also depend less on earlier work in the notebook.

Simplified: cycles that the notebook left before the run are collected after it.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def older_objects_set_aside() -> Iterator[None]:
    """Freeze the existing objects for this context, unless the program has frozen objects itself."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable the collector for this context, for code that makes many objects and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
