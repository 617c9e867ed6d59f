"""Counts in words: one of a thing stands in the singular, whoever says it."""

import re

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import LaunchError, launch
from lablib.figures import describe
from lablib.text.units import format_quantity, plural

ONE_OF_MANY = re.compile(r"(?<![\d.,-])1 [a-z-]+[^su\W]s\b")  # "1 ranks"; "1 loss" and "1 us" are right


@given(st.integers(0, 10**7), st.sampled_from(["ranks", "switches", "micro-batches", "losses", "boxes", "GPUs"]))
def test_only_one_is_in_the_singular(number: int, words: str):
    said = plural(number, words)
    assert said.split(" ")[0].replace(",", "") == str(number)
    assert said.endswith(words) == (number != 1)


@pytest.mark.parametrize(
    ("words", "one"), [("calls", "1 call"), ("tokens/s", "1 tokens/s"), ("s", "1 s"), ("FLOP/s", "1 FLOP/s")]
)
def test_a_quantity_of_one_is_in_the_singular_and_a_rate_is_not(words: str, one: str):
    assert format_quantity(1.0, words) == one


def stuck():
    dist.recv(torch.zeros(1), src=0)


def test_a_run_of_one_rank_says_so():
    run = launch(lambda: dist.all_reduce(torch.ones(1)), ranks=1)
    said = [repr(part) for part in (run, run.timeline, run.traffic, run.memory, run.summary())]
    said += [describe(part.figure()) for part in (run.timeline, run.traffic, run.memory)]
    with pytest.raises(LaunchError) as caught:
        launch(stuck, ranks=1)
    for text in [*said, str(caught.value)]:
        assert not ONE_OF_MANY.search(text), text
