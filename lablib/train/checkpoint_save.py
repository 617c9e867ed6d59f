"""One save on one rank: plan, copy to the host, write in a thread, publish if this rank ends last.

    plan       torch's planner lists this rank's tensors; objects are packed
    copy       the part of the common plan that this rank writes
    write      __R_0.distcp (tensors), rank-R.pt (objects), then .written-R: names, places and checksums
    publish    the rank that finds .written-R of all ranks makes the file .publisher, which only one can, and completes
               the folder (manifest.py)

The threads exchange files and no messages: their collectives would mix with the training's.

Source: planner, writer and file formats of torch.distributed.checkpoint (torch 2.13); open(2) with O_EXCL.
"""

import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan

from lablib.text.messages import error_text
from lablib.train.checkpoint_state import HostPlanner, packed, split
from lablib.train.manifest import Manifest, publish, size_and_checksum, write_flushed


class Save:
    """A save in progress; ValueError: the state cannot be saved."""

    def __init__(self, state: Mapping[Any, Any], step: int, rank: int, num_ranks: int):
        tensors, objects = split(state)
        self._objects = packed(objects if rank == 0 else {**objects, "shared": {}})
        self._planner = HostPlanner(tensors, rank == 0)
        self.step, self._rank, self._num_ranks = step, rank, num_ranks
        self.plan = self._planner.create_local_plan()
        self.is_published = False
        self._failure: BaseException | None = None

    def copy(self, plans: Sequence[SavePlan], folder: Path, number: int, metric: float | None) -> None:
        """Copy this rank's part, by the plans of all ranks, to be written to `folder`."""
        self.folder, self._number, self._metric = folder, number, metric
        self._writer = FileSystemWriter(folder, sync_files=True)
        self._writer.set_up_storage_writer(self._rank == 0)
        global_plan, self._metadata = self._planner.create_global_plan(list(plans))
        self.plan = self._planner.finish_plan(self._writer.prepare_global_plan(global_plan)[self._rank])
        self._planner.copy_to_host(self.plan)

    def start(self) -> None:
        """Write in a thread, for which the interpreter waits at its end."""
        self._thread = Thread(target=self._run, name=f"checkpoint of step {self.step}")
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread. OSError: it failed."""
        self._thread.join()
        if self._failure:
            raise OSError(
                f"the checkpoint of step {self.step} was not written: {error_text(self._failure)}; older checkpoints "
                "are unchanged; free some disk space, or give a folder that you can write to"
            )

    def _run(self) -> None:
        try:
            self._write()
            if self._is_last():
                self.publish()
        except BaseException as error:  # `join` raises it
            self._failure = error

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        results = self._writer.write_data(self.plan, self._planner).wait()
        write_flushed(self.folder / f"rank-{self._rank}.pt", self._objects)
        names = {f"rank-{self._rank}.pt", *(result.storage_data.relative_path for result in results)}
        files = {name: size_and_checksum(self.folder / name) for name in names}
        part = self.folder / f".writing-{self._rank}"
        write_flushed(part, pickle.dumps((results, files)))
        os.replace(part, self.folder / f".written-{self._rank}")  # other ranks find all of it, or nothing

    def _is_last(self) -> bool:
        """True on one rank, which finds the files of all ranks."""
        if not all((self.folder / f".written-{rank}").exists() for rank in range(self._num_ranks)):
            return False
        with suppress(OSError):  # another rank has made it, or has published already
            os.close(os.open(self.folder / ".publisher", os.O_CREAT | os.O_EXCL))
            return True
        return False

    def publish(self) -> None:
        """Complete the folder, in which all ranks have written, and make it a checkpoint."""
        parts = [self.folder / f".written-{rank}" for rank in range(self._num_ranks)]
        results, of_ranks = zip(*(pickle.loads(part.read_bytes()) for part in parts), strict=True)
        self._writer.finish(self._metadata, list(results))
        files = {".metadata": size_and_checksum(self.folder / ".metadata")}
        for part, of_rank in zip(parts, of_ranks, strict=True):
            files |= of_rank
            part.unlink()
        path = publish(self.folder, Manifest(self.step, self._number, self._num_ranks, self._metric, files))
        (path / ".publisher").unlink(missing_ok=True)  # after the rename: a late rank must not make it again
        self.is_published = True
