"""`lab export --colab`: notebooks that install lablib on Colab."""

from pathlib import Path

import nbformat
import pytest

from lablib.course.building import addresses
from lablib.course.building.colab import export_colab
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, make_notebook
from lablib.course.errors import CourseError
from lablib.course.places import Lab
from lablib.course.work import handed_out


def in_repository(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(addresses, "repository", lambda: address)


def test_each_notebook_begins_with_an_installation_that_is_skipped_elsewhere(lab: Lab, tmp_path: Path, monkeypatch):
    in_repository(monkeypatch, "https://github.com/some-one/the.lab.git")
    said = export_colab([lab], tmp_path / "colab")
    written = nbformat.read(tmp_path / "colab" / f"{lab.name}.ipynb", 4)  # pyright: ignore[reportUnknownMemberType]
    nbformat.validate(written)  # pyright: ignore[reportUnknownMemberType]
    install, *rest = written.cells
    assert "git+https://github.com/some-one/the.lab.git anywidget" in install.source and "1 notebook for" in said
    assert [cell.source for cell in rest] == [cell.source for cell in handed_out(lab).cells]
    exec(install.source, {})  # lablib is there: no magic is called


def test_every_lab_has_a_link_to_colab_once_the_repository_is_known(lab: Lab, monkeypatch):
    in_repository(monkeypatch, "https://github.com/some-one/the.lab.git")
    notebook = make_notebook(read_master(lab), Version.LEARNER)
    place = "https://colab.research.google.com/github/some-one/the.lab/blob/main/colab"
    assert notebook.cells[0].source.endswith(f"\n\n[Open in Colab]({place}/{lab.name}.ipynb)")
    for elsewhere in ("", "https://codeberg.org/some-one/the.lab"):
        in_repository(monkeypatch, elsewhere)
        made = [make_notebook(read_master(lab), version) for version in Version]
        assert not any("colab" in cell.source.lower() for each in made for cell in each.cells)


def test_a_package_needs_no_address_and_no_address_has_no_link(lab: Lab, tmp_path: Path, monkeypatch):
    in_repository(monkeypatch, "")
    export_colab([lab], tmp_path, package="lablib")
    first = nbformat.read(tmp_path / f"{lab.name}.ipynb", 4).cells[0]  # pyright: ignore[reportUnknownMemberType]
    assert "install --quiet lablib anywidget" in first.source
    with pytest.raises(CourseError, match=r"set Repository in \[project.urls\] of pyproject.toml, or give --package"):
        export_colab([lab], tmp_path)
