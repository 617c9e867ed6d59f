"""`lab calibrate` and the cluster it makes: where the profile goes, how it is found, what is said when it is not."""

import errno
import os
from pathlib import Path

import pytest

from lablib import find_cluster
from lablib.cli import calibrate as cli_calibrate
from lablib.cli.main import main
from lablib.errors import WorkerError
from lablib.hardware import CLUSTERS, Cluster
from lablib.hardware.catalogue import THIS_MACHINE, profile_path
from lablib.hardware.toml_file import load_cluster, save_cluster

PROFILE = {"date": "2026-11-21", "ranks": "2", "backend": "gloo", "error_of_memory": 'median 3%, "copy 8", 4 measured'}


def a_profile(**changes) -> Cluster:
    given = {"name": THIS_MACHINE, "profile": PROFILE, "library": "gloo", "collective_overhead_s": 1.25e-4}
    return CLUSTERS["laptop"].replace(**(given | changes))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "mine.toml"
    monkeypatch.setenv("LAB_MACHINE", str(path))
    return path


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Calibrations take no time and give `a_profile`; what they were asked for is kept."""
    asked = []

    def calibrate(backend, ranks, quick, progress):
        asked.append((backend, ranks, quick))
        progress(0, 2, "matmul")
        progress(2, 2, "done")
        return a_profile()

    monkeypatch.setattr(cli_calibrate, "calibrate", calibrate)
    return asked


def test_a_profile_goes_through_a_file_unchanged(tmp_path: Path):
    path = tmp_path / "profile.toml"
    save_cluster(a_profile(), path)
    found = load_cluster(path)
    assert found == a_profile()
    assert (found.profile, found.library) == (PROFILE, "gloo")  # not part of equality: a mapping has no hash
    assert find_cluster(str(path)) == found


def test_this_machine_is_what_was_written_to_its_place(place: Path, instant: list, capsys: pytest.CaptureFixture):
    assert main(["calibrate", "--ranks", "2", "--quick"]) == 0
    assert instant == [("gloo", 2, True)] and place.is_file()
    assert find_cluster(THIS_MACHINE) == a_profile()
    said = capsys.readouterr()
    assert str(place) in said.out and 'cluster="this-machine"' in said.out and "median 3%" in said.out
    assert "matmul" in said.err or "done" in said.err  # the bar


def test_another_file_is_written_where_asked_and_this_machine_left_alone(
    place: Path, instant: list, tmp_path: Path, capsys: pytest.CaptureFixture
):
    other = tmp_path / "other.toml"
    assert main(["calibrate", "--out", str(other)]) == 0
    assert instant == [("gloo", 4, False)] and other.is_file() and not place.exists()
    assert f'cluster="{other}"' in capsys.readouterr().out


def test_without_a_profile_one_sentence_says_how_to_get_it(place: Path):
    with pytest.raises(ValueError, match=r"nothing was yet .*mine\.toml does not exist.*run `lab calibrate`"):
        find_cluster(THIS_MACHINE)


def test_the_name_is_among_those_that_an_unknown_name_is_compared_with():
    with pytest.raises(ValueError, match="did you mean 'this-machine'"):
        find_cluster("this-machin")


def test_the_place_is_the_users_configuration_folder_unless_told_otherwise(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    assert profile_path() == place
    monkeypatch.delenv("LAB_MACHINE")
    assert profile_path().name == "this-machine.toml" and profile_path().parent.name == "lablib"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "profile.json"], "ending in .toml: got profile.json; try profile.toml"),
        (["--backend", "sim"], "unknown backend to calibrate 'sim'"),
        (["--ranks", "1"], "2 or more ranks, which talk to each other: got 1"),
        (["--ranks", "four"], "invalid int value: 'four'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    place: Path, capsys: pytest.CaptureFixture, words: list[str], message: str
):
    assert main(["calibrate", *words]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lab: ") and message in last and not place.exists()


def test_a_measurement_that_fails_leaves_the_old_profile(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def calibrate(*_):
        raise WorkerError("no processes today")

    monkeypatch.setattr(cli_calibrate, "calibrate", calibrate)
    place.parent.mkdir()
    place.write_text("old")
    assert main(["calibrate"]) == 1
    assert "could not be measured: no processes today" in capsys.readouterr().err
    assert place.read_text() == "old"


@pytest.mark.parametrize("kind", ["a file for a folder", "a folder for a file", "a full disk"])
def test_nothing_is_measured_that_could_not_be_kept(
    kind: str, place: Path, instant: list, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    if kind == "a full disk":
        monkeypatch.setattr(os, "fsync", full)
    elif kind == "a folder for a file":
        place.mkdir(parents=True)
    else:
        place.parent.write_text("")
    assert main(["calibrate"]) == 1 and instant == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{place} cannot be written: " in said and "--out" in said


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), ValueError("odd figure")], ids=str)
def test_what_was_measured_is_printed_if_it_cannot_be_written(
    error: Exception,
    place: Path,
    instant: list,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    def save(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli_calibrate, "save_cluster", save)
    assert main(["calibrate"]) == 1 and len(instant) == 1
    said = capsys.readouterr()
    (kept := tmp_path / "kept.toml").write_text(said.out)
    assert load_cluster(kept) == a_profile() and "keep it as a .toml file" in said.err.splitlines()[-1]


@pytest.mark.slow
def test_the_command_measures_writes_and_predicts(place: Path, capsys: pytest.CaptureFixture):
    assert main(["calibrate", "--ranks", "2", "--quick"]) == 0
    assert find_cluster(THIS_MACHINE).profile["ranks"] == "2" and "float32 products" in capsys.readouterr().out
