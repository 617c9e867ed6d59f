"""Python's collector of cycles looks at what a run makes, and at nothing that was there before.

Once torch is imported a process holds some 500,000 objects. A run makes many more, so the collector goes through all of
them several times: a tenth of a run with many ranks. For the time of a run the older ones are set aside
(`gc.freeze`). It also makes what is collected, and when, depend less on what the notebook did before.

Simplified: cycles that the notebook left before the run are collected after it.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def older_objects_set_aside() -> Iterator[None]:
    """Until the end; not where the program has set objects aside itself."""
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
    """Until the end: for code that makes many objects and no cycle: each collection would look at all of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
