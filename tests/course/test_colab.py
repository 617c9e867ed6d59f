"""`lab export --colab`: notebooks that install lablib on Colab."""

from pathlib import Path

import nbformat
import pytest

from lablib.course.building.colab import export_colab
from lablib.course.errors import CourseError
from lablib.course.places import Lab
from lablib.course.work import handed_out


def test_each_notebook_begins_with_a_link_and_an_installation_that_is_skipped_elsewhere(lab: Lab, tmp_path: Path):
    said = export_colab([lab], tmp_path / "colab", repository="https://github.com/some-one/the.lab.git")
    written = nbformat.read(tmp_path / "colab" / f"{lab.name}.ipynb", 4)  # pyright: ignore[reportUnknownMemberType]
    nbformat.validate(written)  # pyright: ignore[reportUnknownMemberType]
    link, install, *rest = written.cells
    assert f"/github/some-one/the.lab/blob/main/colab/{lab.name}.ipynb" in link.source
    assert "git+https://github.com/some-one/the.lab.git anywidget" in install.source and "1 notebook" in said
    assert [cell.source for cell in rest] == [cell.source for cell in handed_out(lab).cells]
    exec(install.source, {})  # lablib is there: no magic is called


def test_a_package_needs_no_address_and_no_address_has_no_link(lab: Lab, tmp_path: Path):
    export_colab([lab], tmp_path, package="lablib", repository="")
    first = nbformat.read(tmp_path / f"{lab.name}.ipynb", 4).cells[0]  # pyright: ignore[reportUnknownMemberType]
    assert "install --quiet lablib anywidget" in first.source
    with pytest.raises(CourseError, match=r"set Repository in \[project.urls\] of pyproject.toml, or give --package"):
        export_colab([lab], tmp_path, repository="")
