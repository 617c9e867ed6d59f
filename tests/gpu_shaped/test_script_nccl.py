"""A script that asks for "nccl" is held to what NCCL has; one that asks for gloo is not, nor what is on the host."""

from pathlib import Path

import pytest

from lablib import RankError, simulate_script

SCRIPT = """
import os, torch, torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group({backend!r})
flags = torch.tensor([1 << dist.get_rank()], device={where})
dist.all_reduce(flags, op=dist.ReduceOp.BOR)
assert flags.item() == 3, flags
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("backend", "where", "is_refused"),
    [
        ("nccl", "device", True),
        ("cpu:gloo,cuda:nccl", "device", True),
        ("cpu:gloo,cuda:nccl", "'cpu'", False),
        ("gloo", "'cpu'", False),
    ],
)
def test_a_script_gets_what_its_backend_has(tmp_path: Path, backend: str, where: str, is_refused: bool):
    script = tmp_path / "flags.py"
    script.write_text(SCRIPT.format(backend=backend, where=where))
    if not is_refused:
        assert simulate_script(script, ranks=2).values == [0, 0]
        return
    with pytest.raises(RankError, match="ValueError: NCCL: Cannot use ReduceOp.BOR with NCCL; gather the tensors"):
        simulate_script(script, ranks=2)
