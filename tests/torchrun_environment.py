"""What torchrun gives the two workers of a script, asked once in a test run."""

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SCRIPT = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump(dict(os.environ), file)
"""
GIVEN = ("RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_", "MASTER_", "TORCHELASTIC_", "TORCH_NCCL_", "OMP_")
OF_THE_JOB = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
OF_THE_JOB |= {"TORCHELASTIC_USE_AGENT_STORE"}


@cache
def torchruns_variables() -> list[dict[str, str]]:
    """By rank; also those that differ from job to job."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, folder]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        found = [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(2)]
    return [{name: value for name, value in each.items() if name.startswith(GIVEN)} for each in found]


def assert_given(ours: dict[str, str], rank: int, but: frozenset[str] = frozenset()) -> None:
    """These are all of torchrun's variables, with its values where they do not differ from job to job."""
    theirs = torchruns_variables()[rank]
    assert len(theirs) > 14 and theirs.keys() <= ours.keys()
    same = theirs.keys() - OF_THE_JOB - but
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
