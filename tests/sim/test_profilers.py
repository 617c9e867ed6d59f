"""Profiles of ranks that overlap would crash the process, and the notebook with it: run in one of their own."""

import subprocess
import sys

PROGRAMS = """
import torch
import torch.distributed as dist
from lablib import launch

def overlapping():
    with torch.profiler.profile():
        dist.all_reduce(torch.ones(2))

def one_rank():
    profile = torch.profiler.profile() if dist.get_rank() == 0 else None
    if profile:
        profile.start()
    dist.all_reduce(torch.ones(2))
    if profile:
        profile.stop()

def one_after_another():
    with torch.profiler.profile():
        torch.ones(2) + 1
    dist.barrier()

def never_ended():
    if dist.get_rank() == 0:
        torch.profiler.profile().start()

try:
    launch(overlapping, ranks=2)
except Exception as error:
    print(error)
for program in (one_rank, one_after_another, never_ended, one_after_another):
    launch(program, ranks=2)
print("ended well")
"""


def test_only_profiles_that_overlap_are_refused() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAMS], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-500:]
    assert "rank 1 begins to profile while rank 0 does" in run.stdout and "ended well" in run.stdout
