"""The profile that is saved: measured once, found again, and never written over what `lab calibrate` wrote."""

from pathlib import Path

import pytest

from lablib.calibration import saved_profile, this_machine
from lablib.calibration.machine import machine_text
from lablib.hardware import CLUSTERS, Cluster
from lablib.hardware.catalogue import THIS_MACHINE
from lablib.hardware.toml_file import load_cluster, save_cluster

Asked = list[tuple[str, int, bool]]


def profile_of(ranks: int, backend: str = "gloo", changes: dict[str, str] | None = None) -> Cluster:
    about = {"ranks": str(ranks), "backend": backend, "machine": machine_text(False)}
    return CLUSTERS["laptop"].replace(name=THIS_MACHINE, shared_cores=2, profile=about | (changes or {}))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "mine.toml"
    monkeypatch.setenv("LAB_MACHINE", str(path))
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Calibrations take no time; what they were asked for is kept."""
    calls: Asked = []

    def calibrate(backend, ranks, quick, progress):
        calls.append((backend, ranks, quick))
        progress(0, 2, "matmul")
        progress(2, 2, "done")
        return profile_of(ranks, backend)

    monkeypatch.setattr(saved_profile, "calibrate", calibrate)
    return calls


def test_the_first_call_measures_and_the_next_one_reads(place: Path, asked: Asked, capsys: pytest.CaptureFixture):
    first = this_machine(ranks=2)
    said = capsys.readouterr()
    assert asked == [("gloo", 2, True)] and place.is_file()
    assert "Measuring this machine, 2 ranks on gloo" in said.out and str(place) in said.out and not said.err
    second = this_machine(ranks=2)
    assert len(asked) == 1 and second == first and second.profile == first.profile
    assert capsys.readouterr().out == ""


def test_a_profile_whose_figures_hold_the_sharing_of_cores_is_measured_anew_and_kept(place: Path, asked: Asked):
    save_cluster(profile_of(4).replace(shared_cores=0), place)
    assert this_machine(4).shared_cores == 2 and len(asked) == 1
    assert load_cluster(place).shared_cores == 0  # `cluster="this-machine"` reads it still
    assert this_machine(4).shared_cores == 2 and len(asked) == 1


def test_every_number_of_ranks_has_its_own_profile(place: Path, asked: Asked):
    for ranks in (2, 4, 8, 2, 4, 8):
        assert this_machine(ranks).profile["ranks"] == str(ranks)
    assert asked == [("gloo", 2, True), ("gloo", 4, True), ("gloo", 8, True)]
    assert sorted(path.name for path in place.parent.iterdir()) == ["mine-gloo-4.toml", "mine-gloo-8.toml", "mine.toml"]


def test_what_lab_calibrate_wrote_is_used_where_it_fits_and_never_written_over(place: Path, asked: Asked):
    place.parent.mkdir()
    save_cluster(profile_of(4), place)
    written = place.read_bytes()
    assert this_machine(4) == profile_of(4) and asked == []
    this_machine(2)
    assert place.read_bytes() == written and load_cluster(place.with_name("mine-gloo-2.toml")).profile["ranks"] == "2"


@pytest.mark.parametrize("changes", [{"machine": "another processor"}, {"backend": "nccl"}, {"ranks": "3"}])
def test_a_profile_of_something_else_is_measured_anew(place: Path, asked: Asked, changes: dict[str, str]):
    place.parent.mkdir()
    save_cluster(profile_of(2, changes=changes), place)  # the place of `lab calibrate`
    save_cluster(profile_of(2, changes=changes), beside := place.with_name("mine-gloo-2.toml"))
    assert this_machine(2).profile == profile_of(2).profile
    assert asked == [("gloo", 2, True)] and load_cluster(beside).profile == profile_of(2).profile


def test_a_file_that_cannot_be_read_is_left_alone_and_its_neighbour_used(place: Path, asked: Asked):
    place.parent.mkdir()
    place.write_text("no TOML [")
    assert this_machine(2) == this_machine(2)
    assert len(asked) == 1 and place.read_text() == "no TOML ["


def test_where_nothing_can_be_written_the_profile_is_used_all_the_same(
    place: Path, asked: Asked, capsys: pytest.CaptureFixture
):
    place.parent.write_text("a file where the folder should be")
    assert this_machine(2) == profile_of(2)
    said = capsys.readouterr().out
    assert "cannot be saved" in said and "set LAB_MACHINE" in said
    assert place.parent.read_text() == "a file where the folder should be"


def test_progress_goes_to_who_asked_for_it(place: Path, asked: Asked, capsys: pytest.CaptureFixture):
    seen = []
    this_machine(2, progress=lambda *step: seen.append(step))
    assert seen == [(0, 2, "matmul"), (2, 2, "done")] and capsys.readouterr().out == ""
