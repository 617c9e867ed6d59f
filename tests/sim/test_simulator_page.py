"""docs/simulator.md names what an all_reduce really goes through, in the order in which it does."""

import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental  # noqa: F401 - context_parallel
from torch.distributed.fsdp._debug_utils import SimpleProfiler  # noqa: F401
from torch.distributed.tensor import DTensor

from lablib import launch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulator.md").read_text("utf-8")
NAMED = re.compile(r"`((?:sim|engine|cost)/[\w/]+\.py)`\s+`([\w.]+)`")


def section(title: str) -> list[tuple[str, str]]:
    """(file, function) in the order in which a section names them."""
    text = PAGE.split(f"## {title}\n", 1)[1].split("\nWhat else", 1)[0].split("\n## ", 1)[0]
    return NAMED.findall(text)


def calls_of_one_all_reduce() -> list[list[tuple[str, str]]]:
    """For each of four ranks the functions that it calls, in order; of other files than lablib's under ""."""

    def program() -> list[tuple[str, str]]:
        x, calls = torch.ones(256), []
        dist.all_reduce(x)
        dist.barrier()

        def note(frame, event, _):
            if event == "call":
                file = frame.f_code.co_filename.replace("\\", "/")
                calls.append((file.rsplit("lablib/", 1)[1] if "lablib/" in file else "", frame.f_code.co_qualname))

        sys.setprofile(note)
        try:
            dist.all_reduce(x)
        finally:
            sys.setprofile(None)
        return calls

    return launch(program, ranks=4).values


def missing_in_order(named: list[tuple[str, str]], called: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The names that are not called after those before them."""
    rest, lost = iter(called), []
    for name in named:
        if name not in rest:  # goes on from there
            lost.append(name)
            rest = iter(called)
    return lost


def test_each_rank_calls_what_the_page_says_in_its_order():
    first, *_, last = calls_of_one_all_reduce()
    coming, completing, going_on = (
        section(title) for title in ("The rank that comes first", "The rank that comes last", "All ranks go on")
    )
    assert len(coming) > 8 and len(completing) > 8 and len(going_on) > 4
    assert missing_in_order(coming, first) == []
    assert missing_in_order(completing, last) == []
    assert missing_in_order(going_on, first[first.index(("sim/ranks/rank.py", "Rank.leave")) :]) == []


def test_every_file_and_every_name_of_the_sketch_exists():
    for path in re.findall(r"`(lablib/[\w/]+\.py|tests/[\w/]+\.py)`", PAGE) + re.findall(r"tests/[\w/]+\.py", PAGE):
        assert (ROOT / path).is_file(), path
    for file, _ in NAMED.findall(PAGE):
        assert (ROOT / "lablib" / file).is_file(), file
    sketch = (ROOT / "lablib" / "sim" / "sketch.py").read_text("utf-8")
    for row in re.findall(r"^\| (`[^|]+) \|", PAGE, re.M):
        for name in re.findall(r"`([^`]+)`", row):
            found = name if " " in name else name.rsplit(".", 1)[-1]
            assert found in sketch, name


def test_a_warm_rank_makes_at_most_60_python_calls_in_10_files_for_one_all_reduce():
    """The second of four: it neither completes the meeting nor moves the data for all."""
    launch(lambda: DTensor.__name__, ranks=1)  # what is imported makes the way no longer
    calls = calls_of_one_all_reduce()[1]
    assert len(calls) <= 60
    assert len({file for file, _ in calls if file}) <= 10  # of lablib; torch's own are two
