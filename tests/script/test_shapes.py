"""`lab sim --fidelity shapes` and `--assert`: the same steps, bytes and traffic as with values, and exit codes."""

import shlex
from pathlib import Path

import pytest
import yaml

from lablib import Run
from lablib.cli.main import main
from lablib.record.steps import step_metrics
from lablib.script import simulate_script

pytestmark = pytest.mark.usefixtures("everything_is_given_back")
HEAD = """
import os, sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)))
model = model.to(f"cuda:{os.environ['LOCAL_RANK']}")
"""
WRAPPED = {
    "ddp": "model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])",
    "fsdp2": """
from torch.distributed.fsdp import fully_shard
for block in model:
    fully_shard(block)
fully_shard(model)
""",
    "tensor": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
for block in model:
    parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
""",
}
STEPS = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.randn(32, 64, device="cuda")
    assert x.is_cuda and x.device.index == torch.cuda.current_device() and "cuda" in repr(x.device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""


def run_of(folder: Path, program: str, fidelity: str, ranks: int = 2) -> Run:
    (folder / "train.py").write_text(program, "utf-8")
    return simulate_script(folder / "train.py", ranks=ranks, fidelity=fidelity)


@pytest.mark.parametrize("name", WRAPPED)
def test_steps_are_those_with_values(tmp_path: Path, name: str):
    """Setup differs: copies to the device are free, and a DTensor of a weight without values sends nothing."""
    program = HEAD + WRAPPED[name] + STEPS
    values, shapes = (run_of(tmp_path, program, fidelity) for fidelity in ("values", "shapes"))
    assert shapes.fidelity == "shapes"
    steps = [[metrics for _, metrics in step_metrics(run)] for run in (values, shapes)]
    assert len(steps[0]) == 2
    for with_values, without in zip(*steps, strict=True):
        assert without == pytest.approx(with_values, rel=1e-6)
    assert [shapes.memory.peak_bytes(rank) for rank in range(2)] == [
        values.memory.peak_bytes(rank) for rank in range(2)
    ]
    if name != "tensor":
        assert shapes.traffic.sent_bytes() == values.traffic.sent_bytes()


def test_a_model_far_larger_than_this_machine_fits(tmp_path: Path):
    """One layer of 100,000 x 100,000 is 40 GB, on each of two ranks."""
    program = (HEAD + STEPS).replace("64", "100_000").replace("range(2)", "range(1)").replace("256", "100_000")
    run = run_of(tmp_path, program, "shapes")
    # Weights, gradients and both moments of two layers, each of n * n + n numbers.
    assert run.memory.peak_bytes() >= 4 * 4 * 2 * (100_000**2 + 100_000)


def test_a_script_that_uses_no_device_is_on_the_host(tmp_path: Path):
    program = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nx = torch.ones(3) + 1\n"
    program += "dist.all_reduce(x)\nassert not x.is_cuda\n"
    assert len(run_of(tmp_path, program, "shapes").traffic) == 1


def test_a_value_that_is_read_is_named_with_its_line(tmp_path: Path):
    with pytest.raises(Exception, match=r"asks for item\(\) of a tensor that has none.*train.py:"):
        run_of(tmp_path, f"{HEAD}print(model(torch.ones(1, 64, device='cuda')).sum().item())", "shapes")


def test_a_wrong_fidelity_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="fidelity"):
        run_of(tmp_path, "", "value")


def test_the_workflow_of_the_page_on_pull_requests_runs(tmp_path: Path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "pull_requests.md").read_text("utf-8")
    steps = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])["jobs"]["simulate"]["steps"]
    (given,) = (step["with"] for step in steps if step.get("uses", "").endswith("/actions/simulate@main"))
    words = ["--fidelity", "shapes", "--quiet", "--out", "report", "--assert", given["assert"]]
    words += ["--ranks", str(given["ranks"]), "--cluster", given["cluster"], *shlex.split(given["script"])]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(HEAD + WRAPPED["ddp"] + STEPS, "utf-8")
    assert main(["sim", *words]) == 0
    assert "assertion holds" in capsys.readouterr().out
    assert (tmp_path / "report" / "timeline.json").exists()


HANGS = HEAD + "if dist.get_rank() == 0:\n    dist.all_reduce(torch.ones(3, device='cuda'))\n"


@pytest.mark.parametrize(
    ("program", "asserted", "code", "says"),
    [
        (HEAD + STEPS, "0 < step_s < 1 and num_steps == 3 and peak_bytes > 1e5", 0, "assertion holds: 0 < step_s"),
        (HEAD + STEPS, "step_s < 1e-9", 1, "assertion BROKEN: step_s < 1e-9\n  step_s < 1e-9: FALSE, step_s is "),
        (HEAD, "step_s < 1", 1, "step_s is not known"),
        (HANGS, "step_s < 1", 3, "rank 0 waits in all_reduce"),
        (HEAD + "raise KeyError('lost')", "step_s < 1", 3, "KeyError: 'lost'"),
        (HEAD + STEPS, "step < 1", 2, "unknown name in --assert 'step': did you mean 'step_s'"),
    ],
)
@pytest.mark.parametrize("fidelity", [pytest.param("values", marks=pytest.mark.thorough), "shapes"])
def test_exit_codes_of_an_assertion(tmp_path, capsys, monkeypatch, program, asserted, code, says, fidelity):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program, "utf-8")
    words = ["sim", "--ranks", "2", "--quiet", "--fidelity", fidelity, "--assert", asserted, "train.py"]
    assert main(words) == code
    printed = capsys.readouterr()
    assert says in (printed.err if code in (2, 3) else printed.out)
    assert (tmp_path / "runs").exists() is (code != 2)
