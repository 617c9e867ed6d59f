"""Checkpoints that survive: asynchronous, atomic and checked; the last and the best are kept.

A rank copies its part to the host (seconds), then training goes on while a thread writes the copy (minutes). The thread
that ends last finds the files of all ranks and publishes the folder by one rename (checkpoint_save.py). A process may
die at any moment: then the folder keeps its hidden name, and the newest published checkpoint is loaded.

    rank 0   step | agree, copy | step | step | step |        with Checkpoints("run") as checkpoints:
    thread 0                    |--- write ---|                   step = checkpoints.load_latest(state) or 0
    rank 1   step | agree, copy | step | step | step |            ...
    thread 1                    |----- write ------| publish      checkpoints.save(step, state, metric=loss)

A load takes the newest checkpoint with files of the sizes and checksums in its manifest. Damaged ones are skipped
with a warning that has file and reason. On as many ranks, the resumed run equals the uninterrupted one to the bit if
the state has everything: parameters, optimizer, generators, position in the data. On another number of ranks the
tensors are the same, and sums of gradients are rounded in another order.

Restarts by torchrun need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment (torch 2.13): otherwise ranks may find
addresses of dead ones in the store (pytorch issue 135712).

Cost for n ranks and S bytes: S/n of host memory from copy to write; training waits for the copy, and for the save
before it if that has not ended. A load reads S for the checksums, shared by all ranks, and then its tensors.
Source: torch.distributed.checkpoint (torch 2.13); Mohan et al., "CheckFreq", FAST 2021 (copy, then write in the
background); Wan et al., "ByteCheckpoint", 2024, arXiv 2407.20143.
Simplified: one folder on a file system that all ranks share; one save at a time, of one run; every rank gets all plans.
"""

import contextlib
import math
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import torch.distributed as dist

from lablib.signature import Count, NonNegativeInt, checked
from lablib.text.messages import error_text, safe_str
from lablib.train.checkpoint_save import Save
from lablib.train.checkpoint_state import load_state
from lablib.train.manifest import REMOVED, SAVING, damage, keep_only, remove_leftovers, saved_in

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of a run in one folder, which its ranks share. All ranks call every method, in a `with` block.

    Arguments:
        keep_last: newest checkpoints that are kept.
        keep_best: checkpoints with the lowest metric that are kept in addition.
        group: ranks of the run; None: all, or this process alone without a process group.
        asynchronous: False writes before `save` returns.
    """

    @checked
    def __init__(
        self,
        folder: str | Path,
        keep_last: Count = 2,
        keep_best: NonNegativeInt = 1,
        *,
        group: dist.ProcessGroup | None = None,
        asynchronous: bool = True,
    ):
        self.folder, self._keep = Path(folder), (keep_last, keep_best)
        self._group, self._asynchronous = group, asynchronous
        is_alone = not dist.is_initialized()
        self._rank, self._num_ranks = (0, 1) if is_alone else (dist.get_rank(group), dist.get_world_size(group))
        self._save: Save | None = None
        self._has_looked = False  # at the checkpoints of an earlier run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End the last save; after an error without communication, as other ranks may be gone."""
        if kind is None:
            self.wait()
        elif self._save:
            with contextlib.suppress(OSError):
                self._save.join()

    # ---- save ----

    @checked
    def save(self, step: NonNegativeInt, state: Mapping[Any, Any], metric: float | None = None) -> None:
        """Save the state after `step` steps. Returns once it is copied and may be changed. Communicates.

        Arguments:
            state: nested mapping of tensors and objects, the same names on all ranks (checkpoint_state.py).
            metric: lower is better, such as a validation loss; rank 0's counts. NaN is never the best.

        OSError: the save before failed on a rank; older checkpoints are unchanged. ValueError: the state cannot be
        saved, or the folder has checkpoints and `load_latest` was not called.
        """
        self.wait()
        save = self._agreed(lambda: Save(state, step, self._rank, self._num_ranks))
        number = self._agreed(self._next_number)
        everyone = self._gathered((save.plan, step, secrets.token_hex(4), number, metric))
        plans, steps, tokens, numbers, metrics = zip(*everyone, strict=True)
        if len(set(steps)) > 1:
            raise ValueError(f"step must be the same on all ranks: got {sorted(set(steps))}; save after the same step.")
        metric = metrics[0] if metrics[0] is not None and math.isfinite(metrics[0]) else None
        save.copy(plans, self.folder / f"{SAVING}{step}-{tokens[0]}", numbers[0], metric)
        save.start()
        self._save = save
        if not self._asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is published. Communicates. OSError: it failed on a rank."""
        save, self._save = self._save, None
        if save is None:
            return
        try:
            self._agreed(save.join)
            # A network file system may show each rank the files of the others too late for any to publish.
            if not any(self._gathered(save.is_published)):
                self._agreed(lambda: None if self._rank else save.publish())
        except OSError:
            if self._rank == 0:
                shutil.rmtree(save.folder, ignore_errors=True)
            raise
        self._agreed(lambda: None if self._rank else keep_only(self.folder, *self._keep))

    def _next_number(self) -> int:
        """The number of the next save; rank 0 looks at the folder."""
        saved = {} if self._rank else saved_in(self.folder)
        if saved and not self._has_looked:
            found = f"{self.folder} has {next(iter(saved)).name}"
            raise ValueError(f"a new run needs a new folder: {found}; call load_latest first, or give another folder.")
        self._has_looked = True
        if self._rank == 0:
            remove_leftovers(self.folder, SAVING, REMOVED)
        return 1 + max((manifest.number for manifest in saved.values() if manifest), default=0)

    # ---- load ----

    @checked
    def newest(self, up_to_step: NonNegativeInt | None = None) -> Path | None:
        """The newest undamaged checkpoint, of at most this step; None if there is none at all. Communicates.

        Rank 0 warns about damaged ones. ValueError: all are damaged.
        """
        self.wait()
        self._has_looked = True
        saved = self._gathered(self._agreed(lambda: {} if self._rank else saved_in(self.folder)))[0]
        reasons = []
        for path, manifest in saved.items():
            if manifest and manifest.step > (math.inf if up_to_step is None else up_to_step):
                continue
            reason = next(filter(None, self._gathered(damage(path, self._rank, self._num_ranks))), None)
            if reason is None:
                return path
            reasons.append(f"{path.name}: {reason}")
            if self._rank == 0:
                warnings.warn(f"a damaged checkpoint is skipped: {path}: {reason}", stacklevel=2)
        if reasons:
            raise ValueError(
                f"a run resumes from an undamaged checkpoint: got none in {self.folder} ({'; '.join(reasons)}); "
                "move them to another folder to begin again."
            )
        return None

    @checked
    def load_latest(self, state: Mapping[Any, Any], up_to_step: NonNegativeInt | None = None) -> int | None:
        """Overwrite `state` with the newest undamaged checkpoint; returns its step. Communicates.

        `state` has the structure that was saved: tensors are overwritten in place, objects are replaced. `up_to_step`
        rolls back further. Returns None if there is no checkpoint. ValueError: all are damaged, or names, shapes or
        dtypes differ from the saved ones; then nothing has changed.
        """
        path = self.newest(up_to_step)
        return path and self.load(path, state)

    @checked
    def load(self, path: Path, state: Mapping[Any, Any]) -> int:
        """Overwrite `state` with a checkpoint that `newest` found, as `load_latest` does. Communicates."""
        return self._agreed(lambda: load_state(path, state, self._rank))

    # ---- ranks ----

    def _gathered(self, value: T) -> list[T]:
        """The values of all ranks."""
        values: list[Any] = [value] * self._num_ranks
        if self._num_ranks > 1:
            dist.all_gather_object(values, value, group=self._group)
        return values

    def _agreed(self, action: Callable[[], T]) -> T:
        """This rank's result, or on all ranks the error of the first rank that has one."""
        result: Any = None
        error: Exception | None = None
        try:
            result = action()
        except Exception as raised:
            error = raised
        text = safe_str(error) if isinstance(error, ValueError | OSError) else error_text(error) if error else ""
        for rank, (found, is_input) in enumerate(self._gathered((text, isinstance(error, ValueError)))):
            if found:
                place = f"rank {rank}: " if self._num_ranks > 1 else ""
                raise (ValueError if is_input else OSError)(f"{place}{found}") from error
        return result
