"""Files of users: refused in one sentence or read whole; written whole or not at all."""

import errno
import gc
import gzip
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import Memory, Run, Span, Timeline, Traffic, find_cluster
from lablib.cli.main import main
from lablib.course.progress import DamagedProgress, read_progress
from lablib.hardware import load_cluster, save_cluster
from lablib.script import simulate_script
from lablib.script.program import compiled
from lablib.script.report import write_report
from lablib.text import files
from lablib.train import read_rules
from lablib.validation import read_rows

DEEP, LONG = 100_000, "9" * 5000
CONTENTS = {
    "binary": bytes(range(256)) * 10,
    "not UTF-8": 'name = "é"'.encode("latin-1"),
    "nested arrays": b"a = " + b"[" * DEEP + b"]" * DEEP,
    "nested tables": b"a = " + b"{a = " * DEEP + b"1" + b"}" * DEEP,
    "nested JSON": b"[" * DEEP + b"]" * DEEP,
    "nested JSON objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a row of nested objects": b'{"id": "x", "model": ' + b'{"a":' * 1000 + b"1" + b"}" * 1001,
    "a number of 5000 digits": b'base = "dgx-a100"\ndevices_per_node = ' + LONG.encode(),
    "a row with a number of 5000 digits": b'{"id": "x", "batch": ' + LONG.encode() + b"}",
    "a number of 40 digits": b'base = "dgx-a100"\ndevices_per_node = ' + b"9" * 40,
    "not a number": b'base = "dgx-a100"\ncollective_overhead_s = nan',
    "infinite": b'base = "dgx-a100"\ncollective_overhead_s = inf',
    "empty": b"",
}


def odd_files(folder: Path) -> dict[str, Path]:
    """Names that are no file one could read, and files with odd contents."""
    found = {"a folder": folder, "missing": folder / "missing.toml", "a null byte": Path("a\0.toml")}
    found |= {"an endless device": Path("/dev/zero"), "an empty device": Path("/dev/null")}
    os.mkfifo(folder / "pipe.toml")
    large = folder / "large.toml"
    with large.open("wb") as file:
        file.truncate(2**30)
    found |= {"a pipe": folder / "pipe.toml", "a film": large}
    for name, content in CONTENTS.items():
        path = folder / f"{name.replace(' ', '-')}.toml"
        path.write_bytes(content)
        found[name] = path
    return found


def with_suffix(path: Path, suffix: str) -> Path:
    """The same thing under a name of that kind; devices keep theirs."""
    if path.suffix != ".toml" or not path.exists():
        return path
    (link := path.with_suffix(suffix)).symlink_to(path)
    return link


NAMES = ["a folder", "missing", "a null byte", "an endless device", "an empty device", "a pipe", "a film", *CONTENTS]


def soon(call: Callable[[], object]) -> object:
    """The result of a call that may not wait. The thread of one that does is left behind."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(_caught(call)), daemon=True)
    thread.start()
    thread.join(30)
    assert done, "it waits"
    return done[0]


def _caught(call: Callable[[], object]) -> object:
    try:
        return call()
    except BaseException as error:
        return error


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_file_that_cannot_be_one_is_refused_at_once(name: str, tmp_path: Path):
    said = soon(lambda: load_cluster(odd_files(tmp_path)[name]))
    if name == "empty":
        return  # which is a matter of missing keys, and another test's
    assert isinstance(said, ValueError) and "\n" not in str(said) and len(str(said)) < 1000, said


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_cannot_be_read_are_refused_at_once(name: str, tmp_path: Path):
    said = soon(lambda: read_rows(with_suffix(odd_files(tmp_path)[name], ".jsonl")))
    assert isinstance(said, ValueError) and "\n" not in str(said) and len(str(said)) < 1000, said


@pytest.mark.parametrize("read", [Run.from_profile, Memory.from_snapshot, read_rules])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "a film"])  # which may be a trace
def test_traces_snapshots_and_rules_that_cannot_be_read_are_refused_at_once(name: str, read, tmp_path: Path):
    said = soon(lambda: read(odd_files(tmp_path)[name]))
    assert isinstance(said, (ValueError, OSError)) and "\n" not in str(said) and len(str(said)) < 1000, said


@pytest.mark.parametrize("name", NAMES)
def test_progress_that_cannot_be_read_is_put_aside_or_named(name: str, tmp_path: Path):
    path = odd_files(tmp_path)[name]
    content = path.read_bytes() if name in CONTENTS else b""
    said = soon(lambda: read_progress(path))
    assert said == {} if name == "missing" else isinstance(said, (DamagedProgress, OSError)), said
    if name in CONTENTS:
        assert path.with_name(path.name + ".damaged").read_bytes() == content


@pytest.mark.parametrize("name", [*NAMES[:7], "nested arrays", "a number of 40 digits"])
@pytest.mark.parametrize("words", ["plan --model gpt3-13b --gpus 8 --batch 8 --cluster", "validate", "run"])
def test_a_command_says_one_sentence_of_a_file_it_cannot_read(
    words: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture
):
    path = odd_files(tmp_path)[name]
    path = path if "plan" in words else with_suffix(path, ".jsonl" if words == "validate" else ".ipynb")
    path = path if "plan" not in words or path.suffix == ".toml" else with_suffix(path, ".toml")
    code = soon(lambda: main([*words.split(), str(path)]))
    said = capsys.readouterr().err
    assert code in (1, 2) and said.startswith("lab: ") and said.count("\n") == 1, (code, said)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a folder", "it is a folder"),
        ("missing", "does not exist"),
        ("a null byte", "a path has no null byte"),
        ("an endless device", "it is a device"),
        ("an empty device", "it is a device"),
        ("a pipe", "it is a named pipe"),
        ("a film", "is too large"),
        ("binary", "null bytes"),
        ("not UTF-8", "utf-8"),
        ("nested arrays", "nested"),
    ],
)
def test_a_script_that_cannot_be_one_is_refused_at_once(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture
):
    path = odd_files(tmp_path)[name]
    said = soon(lambda: simulate_script(path, ranks=1))
    assert isinstance(said, ValueError) and "a script must be" in str(said) and why in str(said), said
    assert soon(lambda: main(["sim", "--ranks", "1", str(path)])) == 2
    line = capsys.readouterr().err
    assert line.startswith("lab: ") and line.count("\n") == 1 and len(line) < 1000, line


@pytest.mark.parametrize("source", ["-" * 10_000 + "1", "(" * 10_000, "a" + ".a" * 100_000, "x = 1\0"])
def test_a_script_that_python_cannot_compile_is_one_sentence(source: str, tmp_path: Path):
    (script := tmp_path / "script.py").write_text(source)
    with pytest.raises(ValueError, match=r"a script must be Python that compiles: script\.py"):
        compiled(script)


def test_a_script_in_another_encoding_says_so_in_its_first_line_and_runs(tmp_path: Path):
    (script := tmp_path / "script.py").write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'")
    assert "\xe9" in compiled(script).co_consts


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)))
@settings(max_examples=30)
def test_what_json_can_say_is_read_as_json_reads_it(value: object):
    assert files.parse_json(json.dumps(value)) == value


def test_errors_of_parsing_are_value_errors():
    for parse in (files.parse_json, files.parse_toml):
        for content in CONTENTS.values():
            try:
                parse(content.decode("latin-1"))
            except ValueError as error:
                assert "RecursionError" not in str(error)


def test_threads_parse_python_at_the_same_time(request: pytest.FixtureRequest):
    """A garbage collection inside the parser may switch threads, which CPython 3.11 does not expect."""
    gc.callbacks.append(pause := lambda *_: time.sleep(1e-5))
    request.addfinalizer(lambda: gc.callbacks.remove(pause))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(files.parse_python, ["pass\n" * 1400] * 80))


# ---- writing ----


def span_run() -> Run:
    timeline = Timeline.of([Span(0, "compute", "aten.mm", "forward", 0.0, 1.0)], 1)
    return Run([None], timeline, Traffic(()), ["printed"], "sim", "dgx-a100")


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: files.write_text(path, "new"),
    "bytes": lambda path: files.write_bytes(path, b"new"),
    "a cluster": lambda path: save_cluster(find_cluster("dgx-a100"), path),
    "a trace": lambda path: span_run().to_perfetto(path),
    "a report": lambda path: write_report(span_run(), path.parent, "script.py"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "timeline.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        WRITERS[name](path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["text", "a cluster", "a trace"])
def test_what_cannot_be_written_is_one_sentence_with_path_and_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "timeline.json", tmp_path / "a\0.json"):
        with pytest.raises(OSError, match=r"cannot be written: .*; give a path in a folder") as refused:
            WRITERS[name](path)
        assert path.name.split("\0")[0] in str(refused.value) and str(refused.value).isprintable()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"timeline\.json cannot be written: No space left on device; free some disk"):
        WRITERS[name](tmp_path / "timeline.json")


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_every_file_is_written_in_one_step():
    """A page that is written by hand would be found half on a full disk."""
    package = Path(__file__).parents[2] / "lablib"
    writers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(word in path.read_text() for word in (".write_text(", ".write_bytes(", '.open("w', "nbformat.write("))
    }
    assert writers == set()


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    files.write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    files.write_text("/dev/null", "new")
    assert not Path("/dev/null").is_file()


def test_a_pipe_that_nobody_reads_is_no_place_to_write_to(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(soon(lambda: files.write_text(tmp_path / "pipe", "text")), OSError)


@pytest.mark.parametrize("make", [files.new_file, files.new_folder])
def test_a_name_is_given_once(make: Callable[[Path], Path], tmp_path: Path):
    with ThreadPoolExecutor(16) as pool:
        given_names = list(pool.map(make, [tmp_path / "run-1.txt"] * 50))
    assert len(set(given_names)) == 50 and {path.suffix for path in given_names} == {".txt"}


def test_a_byte_order_mark_is_no_text(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa")
    assert files.read_text(tmp_path / "a") == "a"
    with pytest.raises(ValueError, match="too large"):
        files.read_text(tmp_path / "a", 2)


def test_json_is_read_plain_and_compressed_up_to_a_limit(tmp_path):
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_text('{"a": [1, 2]}')
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert files.read_json(plain) == files.read_json(packed) == {"a": [1, 2]}
    packed.write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(ValueError, match="must be JSON, or JSON in gzip: it has more than"):
        files.read_json(packed, max_bytes=10_000)
    for content in (b"{", b"\x1f\x8bno gzip", gzip.compress(b"[1]")[:-4], b"\xff\xfe\xff", b"[" * 100_000):
        packed.write_bytes(content)
        with pytest.raises(ValueError, match="must be JSON, or JSON in gzip"):
            files.read_json(packed)
