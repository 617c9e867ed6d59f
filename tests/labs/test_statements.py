"""Statements in the labs' text that a search or a count can decide."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.course.places import Lab
from lablib.labs import lab03
from lablib.parallel.context.merge import merge_attention
from tests.script_module import script_module

ROOT = Path(__file__).parents[2]


def test_the_code_that_a_lab_names_is_there(lab: Lab):
    """Files and folders of the last source: in the repository, or in a folder that is named with them."""
    text = re.sub(r"\n#\s*", " ", lab.master.read_text("utf-8"))
    for said in re.findall(r"- The code: (.*?)\.\s", text):
        paths = re.findall(r"`([\w./]+)`", said)
        folders = [ROOT, *(ROOT / path for path in paths if (ROOT / path).is_dir())]
        missing = [path for path in paths if not any((folder / path).exists() for folder in folders)]
        assert paths and not missing, f"not in {', '.join(map(str, folders))}: {missing}"


def _least_seconds(limits: tuple[int, ...], microbatches: int) -> int:
    """Seconds of the shortest plan with F = I = W = 1, by breadth-first search over all states."""
    front = seen = {((0, 0, 0),) * len(limits)}  # F, I and W done by each stage
    goal = ((microbatches,) * 3,) * len(limits)
    seconds = 0
    while goal not in front:
        reached = set()
        for state in front:
            options = []
            for stage, (f, i, w) in enumerate(state):
                steps = [(f, i, w)]
                if f < microbatches and (stage == 0 or state[stage - 1][0] > f) and f + 1 - w <= limits[stage]:
                    steps.append((f + 1, i, w))
                if (state[stage + 1][1] if stage + 1 < len(limits) else f) > i:
                    steps.append((f, i + 1, w))
                if w < i:
                    steps.append((f, i, w + 1))
                options.append(steps)
            reached.update(product(*options))
        front, seen = reached - seen, seen | reached
        seconds += 1
    return seconds


@pytest.mark.parametrize(("limits", "seconds"), [((3, 2, 1), 16), ((3, 2, 2), 15), ((3, 2, 3), 15), ((3, 3, 3), 14)])
def test_lab_13_names_the_least_seconds_within_limits(limits: tuple[int, ...], seconds: int):
    assert _least_seconds(limits, 4) == seconds


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_lab_15_a_part_without_keys_may_have_any_finite_output(output: float):
    none, seen = torch.tensor([[output]]), torch.tensor([[1.0]])
    for o, lse in (
        merge_attention(none, torch.tensor([-torch.inf]), seen, torch.tensor([0.5])),
        merge_attention(seen, torch.tensor([0.5]), none, torch.tensor([-torch.inf])),
    ):
        assert (o.item(), lse.item()) == (1.0, 0.5)


@given(st.floats(2.0**-6, 448.0), st.floats(2.0**-12, 2.0**-7))
def test_lab_11_an_e4m3_number_is_off_by_a_sixteenth_if_it_is_normal(normal: float, subnormal: float):
    off = [abs(float(torch.tensor(x, dtype=torch.float64).to(torch.float8_e4m3fn)) - x) for x in (normal, subnormal)]
    assert off[0] <= normal / 16 and off[1] <= 2.0**-10


@given(*[st.integers(1, 9)] * 3, st.integers(1, 20))
def test_lab_03_counts_the_copies_that_hide_as_its_check_does(f: int, b: int, c: int, n: int):
    """Seconds of forward, backward and a copy, in each of n blocks."""
    check = script_module("labs/masters/03_activation_memory/checks.py")
    assert lab03.most_hidden(f, b, c, n) == check._most_hidden([f] * n, [b] * n, [c] * n)
