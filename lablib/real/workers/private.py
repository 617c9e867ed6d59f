"""Where the launcher and its workers find each other, for this user alone.

Both sides unpickle what the other sends, so nobody else may stand at either end: the folders are of mode 0700 (only
their owner can enter), and each end asks the kernel whose process has connected before it reads a byte.

The path of a Unix socket holds some hundred bytes, and a cluster's TMPDIR is often longer: then the socket gets a
folder of its own in /tmp.
"""

import os
import shutil
import socket
import struct
import sys
import tempfile
from pathlib import Path

from lablib.errors import WorkerError

_LONGEST_PATH = 100  # bytes; the system's limit is 107 on Linux and 103 on macOS
_SHORT_FOLDER = "/tmp"
_LOCAL_PEERCRED = 1  # macOS, sys/un.h; the answer is a version, the user's id, and its groups


class PrivateFolder:
    """A folder for what workers write, and a path for the socket at which they report.

    Attributes:
        path: the folder.
        address: the path of the socket, once somebody listens there.

    Raises:
        WorkerError: no folder can be made.
    """

    def __init__(self) -> None:
        self.path = _new_folder(None)
        self._short: Path | None = None
        self.address = str(self.path / "socket")
        if len(os.fsencode(self.address)) > _LONGEST_PATH:
            try:
                self._short = _new_folder(_SHORT_FOLDER)
            except WorkerError:
                self.remove()
                raise
            self.address = str(self._short / "socket")

    def listen(self, backlog: int) -> socket.socket:
        """A socket that waits at `address`. Raises WorkerError where the file system has no sockets."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.address)
        except OSError as error:
            listener.close()
            raise WorkerError(
                f"workers report at a Unix socket: {self.address} cannot be one ({error}); set TMPDIR to a folder of "
                f"this machine's own disk"
            ) from None
        listener.listen(backlog)
        return listener

    def remove(self) -> None:
        """Remove everything in it. May be called twice; open files stay usable."""
        for folder in (self.path, self._short):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def is_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is this user's, by what the kernel says."""
    if sys.platform == "darwin":
        uid = struct.unpack("iI", connection.getsockopt(0, _LOCAL_PEERCRED, struct.calcsize("iI")))[1]
    else:
        size = struct.calcsize("iII")
        uid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
    return uid == os.geteuid()


def _new_folder(where: str | None) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="lablib-", dir=where))
    except OSError as error:
        raise WorkerError(
            f"workers need a folder for temporary files: none can be made in {where or 'the one for temporary files'} "
            f"({error}); set TMPDIR to a folder that exists, with space, in which you may write"
        ) from None
