"""Classify a source file: the user's wherever it lies, unless something installed it or Python made it up."""

import os
import sysconfig
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lablib
from lablib.process.whose_code import is_of_package, is_users

NAMES = st.text("abcxyz_-.0", min_size=1, max_size=8).filter(lambda name: name not in {".", ".."})
ENVIRONMENT = Path(sysconfig.get_path("purelib"))


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_a_file_is_the_users_wherever_it_lies(names):
    assert is_users(os.path.join(os.sep, "somewhere", *names))


@given(st.lists(NAMES, max_size=3), st.sampled_from(["site-packages", "dist-packages"]), st.lists(NAMES, min_size=1))
def test_what_lies_in_a_folder_of_packages_is_not(before, folder, after):
    path = os.path.join(os.sep, "somewhere", *before, folder, *after)
    assert not is_users(path) and is_of_package(path)


@pytest.mark.parametrize("module", [os, torch, numpy, lablib], ids=lambda module: module.__name__)
def test_what_is_installed_is_not(module):
    assert not is_users(module.__file__)


@pytest.mark.parametrize("path", ["<eval_with_key>.3", "<frozen importlib._bootstrap>", "built-in", "frozen"])
def test_what_python_makes_up_is_nobodys(path):
    assert not is_users(path)


@pytest.mark.parametrize("path", ["<ipython-input-3-abc>", "<string>", "/somewhere/ipykernel_17/123.py", "train.py"])
def test_a_cell_is_the_users_and_text_that_was_executed(path):
    assert is_users(path)


def test_a_folder_whose_name_begins_like_an_installed_one_is_the_users():
    assert is_users(f"{Path(lablib.__file__).parent}_of_mine/train.py")


def test_a_link_to_an_installed_file_is_installed(tmp_path):
    (tmp_path / "mine.py").symlink_to(os.__file__)
    assert not is_users(str(tmp_path / "mine.py"))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A folder that `pip install --target` filled, with a user's own files next to the package's."""
    folder = tmp_path_factory.mktemp("target")
    for name in ("pkg/__init__.py", "pkg/_vendored/tool/run.py", "single.py", "train.py", "pkg/mine.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    record = 'pkg/__init__.py,sha256=a,1\n"pkg/_vendored/tool/run.py",,\nsingle.py,,\n../bin/tool,,\n'
    (folder / "pkg-1.0.dist-info").mkdir()
    (folder / "pkg-1.0.dist-info" / "RECORD").write_text(record)
    return folder


@pytest.mark.parametrize("name", ["pkg/__init__.py", "pkg/_vendored/tool/run.py", "single.py"])
def test_a_package_that_was_installed_into_another_folder_is_not_the_users(target, name):
    assert not is_users(str(target / name)) and is_of_package(str(target / name))


@pytest.mark.parametrize("name", ["train.py", "pkg/mine.py", "other/train.py"])
def test_a_users_file_next_to_such_a_package_stays_the_users(target, name):
    assert is_users(str(target / name))


def test_code_in_an_archive_is_not_the_users(tmp_path):
    (tmp_path / "lib.zip").touch()
    assert not is_users(str(tmp_path / "lib.zip" / "pkg" / "mod.py")) and is_users(str(tmp_path / "lib" / "mod.py"))


def test_the_sources_of_an_editable_installation_are_the_users(tmp_path):
    (tmp_path / "mine.egg-info").mkdir()
    (tmp_path / "mine.egg-info" / "SOURCES.txt").write_text("mine/train.py\n")
    assert is_users(str(tmp_path / "mine" / "train.py"))
