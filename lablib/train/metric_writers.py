"""Writers of metrics: JSON lines, TensorBoard, and an endpoint that Prometheus scrapes.

JSON lines: one object per sample, {"time_s", "step", "metrics", "alerts"}; a value that JSON cannot hold is a text
("nan", "inf"). Lines are written at once, so a crash loses none.

TensorBoard: an event file, which is a TFRecord of protocol buffers (tensorflow/core/util/event.proto), written here
without TensorFlow. A scalar per metric, and `alert/NAME`: 1 when it fires, 0 when it is resolved.

    Event     1: wall_time (double)    2: step (varint)    3: file_version (text)    5: summary
    Summary   1: value, each 1: tag (text), 2: simple_value (float)

Prometheus: a gauge per metric of the latest sample, at http://ADDRESS:PORT/metrics. A metric that is missing from that
sample is not served, and after `stale_s` without a sample nothing is: a hung run then counts as missing data, not as
its last value.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_float
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from tfrecord.writer import TFRecordWriter

from lablib.signature import NonNegative, Range, checked
from lablib.text.files import check_writable
from lablib.train.alerts import STALE_S, AlertEvent
from lablib.train.monitor import Sample


class JsonLines:
    """Appends to a file, which is made if missing, with its folder. Raises CannotWrite (an OSError) with a remedy."""

    @checked
    def __init__(self, path: str | Path):
        check_writable(path)
        self._file = open(path, "a", buffering=1, encoding="utf-8")

    def write(self, sample: Sample, events: Sequence[AlertEvent]) -> None:
        alerts = [{"name": e.rule.name, "state": e.state, "time_s": e.time_s, "value": _plain(e.value)} for e in events]
        line = {"time_s": sample.time_s, "step": sample.step}
        line["metrics"] = {name: _plain(value) for name, value in sample.metrics.items()}
        self._file.write(json.dumps(line | {"alerts": alerts}, allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


def _plain(value: float) -> float | str:
    return float(value) if isfinite(value) else str(float(value))


class TensorBoard:
    """Writes an event file into a folder, which is made if missing. Raises CannotWrite (an OSError) with a remedy."""

    @checked
    def __init__(self, folder: str | Path):
        path = Path(folder) / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        check_writable(path)
        self._file = open(path, "xb")
        self._add(time.time(), 0, _field(3, b"brain.Event:2"))

    def write(self, sample: Sample, events: Sequence[AlertEvent]) -> None:
        changed = {
            f"alert/{e.rule.name}": float(e.state == "firing") for e in events if e.state in ("firing", "resolved")
        }
        scalars = {name: float(value) for name, value in sample.metrics.items()} | changed
        values = [_field(1, tag.encode()) + b"\x15" + bytes(c_float(value)) for tag, value in scalars.items()]
        self._add(sample.time_s, sample.step, _field(5, b"".join(_field(1, value) for value in values)))

    def close(self) -> None:
        self._file.close()

    def _add(self, wall_time_s: float, step: int, content: bytes) -> None:
        event = b"\x09" + struct.pack("<d", wall_time_s) + b"\x10" + _varint(step) + content
        length = struct.pack("<Q", len(event))
        crc = TFRecordWriter.masked_crc
        self._file.write(length + crc(length) + event + crc(event))
        self._file.flush()


def _field(number: int, content: bytes) -> bytes:
    """A field with its length before it."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as 64 bits."""
    value &= 2**64 - 1
    parts = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(part | 0x80 for part in parts[:-1]), parts[-1]])


class PrometheusExporter:
    """Serves the latest sample from a thread, with the package prometheus-client.

    Args:
        port: 0 takes a free one, then `exporter.port`.
        address: "127.0.0.1" serves this machine; "0.0.0.0" the network.
        stale_s: seconds after which the latest sample is no longer served.
        clock: seconds now, to find how old it is.

    Raises OSError: the port is taken.
    """

    @checked
    def __init__(
        self,
        port: Annotated[int, Range(ge=0, le=65535)] = 0,
        address: str = "127.0.0.1",
        stale_s: NonNegative = STALE_S,
        clock: Callable[[], float] = time.monotonic,
    ):
        from prometheus_client import CollectorRegistry, start_http_server

        self._clock, self._stale_s = clock, stale_s
        self._latest: tuple[float, Sample] | None = None  # replaced as a whole, as the server reads it in a thread
        registry = CollectorRegistry()
        registry.register(self)  # pyright: ignore[reportArgumentType]
        self._server, self._thread = start_http_server(port, address, registry)
        self.port = self._server.server_port

    def collect(self) -> Iterator[Any]:
        """The gauges, when the server is asked for them."""
        from prometheus_client.core import GaugeMetricFamily

        latest = self._latest
        if latest is not None and self._clock() - latest[0] <= self._stale_s:
            for name, value in latest[1].metrics.items():
                yield GaugeMetricFamily(name, f"{name} of the training run", value=float(value))

    def write(self, sample: Sample, events: Sequence[AlertEvent]) -> None:
        self._latest = (self._clock(), sample)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
