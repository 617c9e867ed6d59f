"""The monitor and its writers: JSON lines, TensorBoard's event files, the figure, the live figure."""

import json
import struct
from math import inf, nan
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from IPython.display import DisplayHandle

from lablib.data.formats import tfrecord
from lablib.train import AlertRule, JsonLines, Monitor, TensorBoard
from lablib.train.metric_writers import _varint
from lablib.widgets import LiveMonitor

RULES = [AlertRule("loss", 10, for_s=2), AlertRule("throughput", 500, "below")]


def run(writers=(), losses=(3, 11, 11, 11, 3)) -> Monitor:
    monitor = Monitor(RULES, writers)
    for i, loss in enumerate(losses):
        monitor.record({"loss": loss, "learning_rate": 0.1}, time_s=100 + i)
    return monitor


def test_a_monitor_counts_steps_and_takes_the_clock_where_no_time_is_given():
    times_s = iter([5.0, 7.0])
    monitor = Monitor(RULES, clock=lambda: next(times_s))
    monitor.record({"loss": 1.0}, step=10)
    monitor.record({"loss": 1.0})
    assert [(s.time_s, s.step) for s in monitor.samples] == [(5.0, 10), (7.0, 11)]


def test_a_monitor_keeps_only_the_latest():
    monitor = Monitor([AlertRule("loss", 0)], keep=3)
    for i in range(10):
        monitor.record({"loss": (-1) ** i}, time_s=i)
    assert [s.time_s for s in monitor.samples] == [7, 8, 9]
    assert [e.time_s for e in monitor.events] == [7, 8, 9]


def test_a_name_that_prometheus_refuses_is_an_error():
    with pytest.raises(ValueError, match="the name of a metric must be letters"):
        Monitor(RULES).record({"gpu/use": 1.0})


def test_json_lines_have_every_sample_and_alert(tmp_path):
    with run([JsonLines(tmp_path / "m.jsonl")], [3, inf, inf, inf, nan]):
        pass
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["time_s"] for line in lines] == [100, 101, 102, 103, 104]
    assert lines[0] == {"time_s": 100, "step": 0, "metrics": {"loss": 3.0, "learning_rate": 0.1}, "alerts": []}
    states = [(alert["state"], alert["value"]) for line in lines for alert in line["alerts"]]
    assert states == [("pending", "inf"), ("firing", "inf"), ("resolved", "nan")]


def test_lines_are_on_disk_before_the_file_is_closed(tmp_path):
    with run([JsonLines(tmp_path / "m.jsonl")], [3, 4]):
        assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("writer", [JsonLines, TensorBoard])
def test_a_place_that_cannot_be_written_is_one_error(writer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written: .*; give a path in a folder that you can write to"):
        writer(tmp_path / "file" / "metrics")


def event_class() -> Any:
    """tensorflow/core/util/event.proto and summary.proto, as far as they are used."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", syntax="proto3")
    fields = {
        "Value": [("tag", 1, kinds.TYPE_STRING), ("simple_value", 2, kinds.TYPE_FLOAT)],
        "Summary": [("value", 1, "Value")],
        "Event": [
            ("wall_time", 1, kinds.TYPE_DOUBLE),
            ("step", 2, kinds.TYPE_INT64),
            ("file_version", 3, kinds.TYPE_STRING),
            ("summary", 5, "Summary"),
        ],
    }
    for name, own in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind in own:
            made = message.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
            if isinstance(kind, str):
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".{kind}"
                made.label = kinds.LABEL_REPEATED if field == "value" else kinds.LABEL_OPTIONAL
            else:
                made.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # pyright: ignore[reportAttributeAccessIssue]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))


def records(content: bytes) -> list[bytes]:
    """The records of a TFRecord file; fails on a wrong checksum."""
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert content[8:12] == tfrecord._crc(content[:8])
        record, content = content[12 : 12 + length], content[12 + length :]
        assert content[:4] == tfrecord._crc(record)
        found.append(record)
        content = content[4:]
    return found


def test_event_files_are_protocol_buffers_with_every_scalar(tmp_path):
    with run([TensorBoard(tmp_path / "board")]):
        pass
    (path,) = (tmp_path / "board").iterdir()
    version, *events = [event_class().FromString(record) for record in records(path.read_bytes())]
    assert version.file_version == "brain.Event:2"
    scalars = [{value.tag: value.simple_value for value in event.summary.value} for event in events]
    assert [(event.wall_time, event.step) for event in events] == [(100 + i, i) for i in range(5)]
    assert [row["loss"] for row in scalars] == [3, 11, 11, 11, 3]
    assert [row.get("alert/LossAbove") for row in scalars] == [None, None, None, 1, 0]


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_are_those_of_protocol_buffers(number):
    assert event_class()(step=number).SerializeToString() == (b"\x10" + _varint(number) if number else b"")


def test_the_figure_has_thresholds_and_the_times_of_alerts():
    figure = run().figure()
    summary = figure.layout.meta["summary"]  # pyright: ignore
    assert summary == "1 metric in 5 samples; fired: LossAbove from 3 s to 4 s."
    loud = next(trace for trace in figure.data if trace.name == "firing")  # pyright: ignore
    assert list(loud.y) == [None, None, None, 11, None]
    assert "alert above 10" in [a.text for a in figure.layout.annotations]  # pyright: ignore
    assert "on." in run(losses=[11, 11, 11]).figure().layout.meta["summary"]  # pyright: ignore
    assert Monitor(RULES).figure().layout.meta["summary"] == "There is nothing to draw yet."  # pyright: ignore


def test_the_live_figure_is_drawn_again_at_most_every_so_often(monkeypatch):
    drawn: list[str] = []
    handle = DisplayHandle()
    monkeypatch.setattr(handle, "update", lambda bundle, raw: drawn.append(bundle["text/plain"]))
    monkeypatch.setattr("lablib.widgets.live_monitor.display", lambda *_, **__: handle)
    now_s = [0.0]
    monitor = Monitor(RULES)
    LiveMonitor(monitor, every_s=10, clock=lambda: now_s[0])
    for second in range(1, 26):
        now_s[0] = second
        monitor.record({"loss": 11}, time_s=second)
    assert ["in 10 samples" in drawn[0], "in 20 samples" in drawn[1], len(drawn)] == [True, True, 2]
    monitor.close()
    assert "in 25 samples" in drawn[2] and "fired: LossAbove" in drawn[2]


def test_the_live_figure_needs_no_notebook():
    monitor = Monitor(RULES)
    LiveMonitor(monitor, every_s=0)
    monitor.record({"loss": 1.0})
    monitor.close()
