"""Messages over a socket, without copies of their tensors.

A message is a pickle (protocol 5) and its out-of-band buffers: buffers of tensors and numpy arrays are sent directly
from their memory and received straight into new tensor memory.

    | number of frames: u64 | size of each frame: u64 ... | pickle | buffer 1 | buffer 2 | ...

Both ends are processes of one user on one machine, which each of them checks (private.py), so a pickle is trusted.
"""

import pickle
import socket
import struct
import threading
from typing import Any

import torch

from lablib.real.workers.private import is_own_user


class Channel:
    """One end of a connection. `send` may be called from several threads, `receive` from one.

    `patience_s`: longest time for which the receiver may read nothing of a message; None: no limit.
    """

    def __init__(self, connection: socket.socket, patience_s: float | None = None):
        self._socket = connection
        self._patience_s = patience_s
        self._send_lock = threading.Lock()

    @staticmethod
    def connect(address: str) -> "Channel":
        """Connect to the listener at this socket path. Raises OSError if there is none, or another user's."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        if not is_own_user(connection):
            raise PermissionError(f"another user listens at {address}")
        return Channel(connection)

    def fileno(self) -> int:
        """The descriptor, so that a `selectors` selector can watch the channel."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message; blocks until the other side has received it.

        Raises OSError: that side is gone. TimeoutError: it reads nothing.
        """
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        frames = [memoryview(data), *(buffer.raw() for buffer in buffers)]
        header = struct.pack(f"<{1 + len(frames)}Q", len(frames), *(frame.nbytes for frame in frames))
        with self._send_lock:
            self._socket.settimeout(self._patience_s)
            for frame in (memoryview(header), *frames):
                rest = frame.cast("B")
                while rest:
                    rest = rest[self._socket.send(rest) :]

    def receive(self, timeout_s: float | None = None) -> Any:
        """Receive the next message.

        EOFError: the other side has gone. TimeoutError: nothing came for `timeout_s`; the channel is unusable now.
        """
        self._socket.settimeout(timeout_s)
        (num_frames,) = struct.unpack("<Q", self._read(8))
        sizes = struct.unpack(f"<{num_frames}Q", self._read(8 * num_frames))
        data, *buffers = [self._read(size) for size in sizes]
        return pickle.loads(data, buffers=buffers)

    def close(self) -> None:
        self._socket.close()

    def _read(self, size_bytes: int) -> Any:
        """Read exactly that many bytes, into memory aligned for tensors."""
        # Explicit device, as a program may have changed the default one.
        memory: Any = torch.empty(size_bytes, dtype=torch.uint8, device="cpu").numpy()
        view, done = memoryview(memory), 0
        while done < size_bytes:
            try:
                count = self._socket.recv_into(view[done:])
            except ConnectionError:  # a killed peer may reset the connection instead of closing it
                count = 0
            if count == 0:
                raise EOFError("the other side of the channel has gone")
            done += count
        return memory
