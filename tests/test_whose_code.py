"""Whose a file is: the user's wherever it lies, unless something installed it or Python made it up."""

import os
import sysconfig
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lablib
from lablib.whose_code import is_of_package, is_users

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
