"""Private socket and folder of the launcher and its workers, for one user only.

Both sides unpickle received data, so neither end may be another user's: the folders have mode 0700 (only their owner
can enter), and each end asks the kernel for the owner of the other before it reads a byte.

The path of a Unix socket is limited to some hundred bytes, and a cluster's TMPDIR is often longer: then the socket has
a separate folder in /tmp.
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
_LOCAL_PEERCRED = 1  # macOS, sys/un.h; the result is a version, the user's id, and its groups


class PrivateFolder:
    """A folder (`path`) for the output of workers, and a path (`address`) for the socket to which they report."""

    def __init__(self) -> None:
        self.path = _new_folder(None)
        self._folders = [self.path]
        self.address = str(self.path / "socket")
        if len(os.fsencode(self.address)) > _LONGEST_PATH:
            try:
                self._folders.append(_new_folder(_SHORT_FOLDER))
            except WorkerError:
                self.remove()
                raise
            self.address = str(self._folders[-1] / "socket")

    def listen(self, backlog: int) -> socket.socket:
        """A socket that listens at `address`. Raises WorkerError if the file system has no sockets."""
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
        """Remove the folders with their contents, also if interrupted. May be called twice; open files stay usable."""
        for folder in self._folders:
            try:
                shutil.rmtree(folder, ignore_errors=True)
            except KeyboardInterrupt:
                self.remove()
                raise


def is_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is this user's, according to the kernel."""
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
