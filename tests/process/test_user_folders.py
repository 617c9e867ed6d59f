"""What is kept for a user stays in the folders that the user chose."""

from pathlib import Path

import platformdirs
import pytest

from lablib.course.progress import progress_path
from lablib.data import cache_folder
from lablib.hardware.catalogue import profile_path

PLACES = {"XDG_CONFIG_HOME": profile_path, "XDG_DATA_HOME": progress_path, "XDG_CACHE_HOME": cache_folder}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform whose own folders know nothing of XDG, as macOS's."""
    for name in ("LAB_MACHINE", "LAB_PROGRESS", "LAB_DATA", *PLACES):
        monkeypatch.delenv(name, raising=False)
    for kind in ("config", "data", "cache"):
        monkeypatch.setattr(platformdirs, f"user_{kind}_dir", lambda name, **_: f"/home/somebody/Library/{name}")
        monkeypatch.setattr(platformdirs, f"user_{kind}_path", lambda name, **_: Path("/home/somebody/Library", name))


@pytest.mark.parametrize("variable", PLACES)
def test_a_folder_that_was_chosen_is_used_on_every_platform(variable, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, str(tmp_path))
    assert tmp_path / "lablib" in PLACES[variable]().parents


@pytest.mark.parametrize("variable", PLACES)
@pytest.mark.parametrize("value", ["", "relative/folder", "."])
def test_a_folder_that_is_no_absolute_path_counts_as_none(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert Path("/home/somebody/Library/lablib") in PLACES[variable]().parents


@pytest.mark.parametrize("variable", ["LAB_MACHINE", "LAB_PROGRESS", "LAB_DATA"])
def test_the_home_of_a_user_who_does_not_exist_is_a_name_like_others(variable, monkeypatch):
    monkeypatch.setenv(variable, "~nobody-of-that-name/file")
    place = {"LAB_MACHINE": profile_path, "LAB_PROGRESS": progress_path, "LAB_DATA": cache_folder}[variable]
    assert "~nobody-of-that-name" in str(place())
