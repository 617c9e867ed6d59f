"""A pool's folder and its socket, wherever temporary files go."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lablib.errors import WorkerError
from lablib.real.workers.channel import Channel
from lablib.real.workers.pickling import unpack
from lablib.real.workers.pool import Pool
from lablib.real.workers.private import PrivateFolder
from lablib.real.workers.shipping import ship

LENGTHS = [60, 90, 95, 100, 105, 108, 110, 150, 200]


def folder_of_length(root: Path, length: int) -> Path:
    """A folder whose path has so many characters, some of them not ASCII (two bytes each)."""
    rest = max(1, length - len(str(root)) - 1)
    folder = root / ("ü" + "x" * (rest - 1))
    folder.mkdir()
    return folder


@pytest.mark.parametrize("length", LENGTHS)
def test_a_socket_can_be_made_and_called_however_long_the_path_of_temporary_files(tmp_path, monkeypatch, length):
    monkeypatch.setattr(tempfile, "tempdir", str(folder_of_length(tmp_path, length)))
    folder = PrivateFolder()
    try:
        for private in (folder.path, Path(folder.address).parent):
            assert private.stat().st_mode & 0o777 == 0o700
        with folder.listen(1) as listener:
            caller = Channel.connect(folder.address)
            connection, _ = listener.accept()
            Channel(connection).send("hello")
            assert caller.receive() == "hello"
            caller.close()
            connection.close()
    finally:
        folder.remove()
    assert not folder.path.exists() and not Path(folder.address).parent.exists()


def test_an_interrupt_while_the_folder_is_removed_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder_of_length(tmp_path, 200)))  # the socket has a second folder
    folder, rmtree, interrupts = PrivateFolder(), shutil.rmtree, [KeyboardInterrupt] * 2

    def interrupted(path, **options):
        if interrupts:
            raise interrupts.pop()
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.remove()
    assert not folder.path.exists() and not Path(folder.address).parent.exists()


def test_a_launch_works_where_the_path_of_temporary_files_is_long(tmp_path, monkeypatch):
    def program():
        x = torch.ones(2)
        dist.all_reduce(x)
        return os.environ["TMPDIR"], x[0].item()

    long = str(folder_of_length(tmp_path, 200))
    monkeypatch.setenv("TMPDIR", long)
    monkeypatch.setattr(tempfile, "tempdir", None)
    pool = Pool("gloo", [{}])
    try:
        (report,) = pool.launch(ship(program, (), {}, False), 60.0)
        assert unpack(report.value) == (long, 1.0)
        assert not [name for name in os.listdir(long) if not name.startswith("torchinductor_")]  # the compiler's cache
    finally:
        pool.end()


def test_a_folder_for_temporary_files_that_is_not_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        WorkerError, match="need a folder for temporary files.*gone.*set TMPDIR to a folder that exists"
    ):
        PrivateFolder()


def test_a_path_at_which_no_socket_can_be_made_is_one_sentence(tmp_path):
    folder = PrivateFolder()
    folder.address = str(tmp_path / "not there" / "socket")
    with pytest.raises(WorkerError, match="report at a Unix socket.*not there.*set TMPDIR"):
        folder.listen(1)
    folder.remove()
