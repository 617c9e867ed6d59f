"""Whole training scripts, as people write them for torchrun, run unchanged; their numbers are those of one process.

The scripts stand in programs/. The reference is independent: the same file as a plain process on the CPU, real torchrun
on gloo, or the formula written out.
"""

import ast
import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lablib import simulate_script
from tests.script_module import script_module

PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.usefixtures("everything_is_given_back")


# torch 2.13 keeps a DDP program's gloo threads after destroy_process_group(). One that lets go of its last tensor while
# Python shuts down aborts the process, after the program has ended (pytorch issue 190489). None of our code runs there.
TORCH_ABORTED_AFTER_THE_END = "terminate called without an active exception"


def torchrun(*command: str, attempts: int = 3) -> str:
    """What real torchrun prints with two ranks on gloo; asked again where torch aborted a program that had ended."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2")
    try:
        return plain_process(*launcher, *command)
    except AssertionError as error:
        if attempts == 1 or TORCH_ABORTED_AFTER_THE_END not in str(error):
            raise
        return torchrun(*command, attempts=attempts - 1)


def plain_process(*command: str) -> str:
    """What a plain Python process prints, one without a launcher's variables."""
    launchers = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {key: value for key, value in os.environ.items() if key not in launchers}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_json(text: str) -> dict:
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def test_a_ddp_script_with_siblings_and_globals_trains_as_one_process_does(tmp_path):
    script = str(PROGRAMS / "images" / "train.py")
    alone = last_json(plain_process(script, "--batch-size", "16", "--folder", str(tmp_path)))
    run = simulate_script(script, ["--batch-size", "4", "--folder", str(tmp_path)], ranks=4)
    results = [last_json(text) for text in run.stdout]
    for rank, result in enumerate(results):
        # DistributedSampler deals samples out by turns, so 4 x 4 are the 16 of one process. Sums in another order.
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert (result["settings"], result["history"]) == (rank, [rank])
    assert "epoch 1 loss" in run.stdout[0] and "epoch" not in run.stdout[1]  # logging.basicConfig differs by rank
    assert run.values == [0] * 4


def test_a_script_resumes_from_the_checkpoint_that_rank_0_wrote(tmp_path):
    script, folder = PROGRAMS / "images" / "train.py", ["--folder", str(tmp_path)]
    whole = last_json(simulate_script(script, ["--epochs", "3", *folder], ranks=2).stdout[1])
    simulate_script(script, ["--epochs", "1", *folder], ranks=2)
    resumed = last_json(simulate_script(script, ["--epochs", "2", "--resume", *folder], ranks=2).stdout[1])
    assert resumed["losses"] == whole["losses"][1:]
    # A checkpoint of tensors on a GPU says so: whoever has none must say where to.
    assert torch.load(tmp_path / "checkpoint.pt", map_location="cpu")["model"]["conv.weight"].device.type == "cpu"


def test_workers_of_a_data_loader_load_in_the_ranks_thread_and_the_run_says_so(tmp_path):
    script, folder = PROGRAMS / "images" / "train.py", ["--folder", str(tmp_path)]
    without, with_workers = (simulate_script(script, [*folder, "--workers", n], ranks=2) for n in ("0", "3"))
    assert last_json(without.stdout[0])["losses"] == last_json(with_workers.stdout[0])["losses"]
    (host_work,) = (note for note in without.notes if note.startswith("The host's work took no virtual time: "))
    assert "operators of rank 0" in host_work and not any("DataLoader" in note for note in without.notes)
    assert any("DataLoader(num_workers=3) loads in the rank's own thread" in note for note in with_workers.notes)


def sharded_reference(steps: int, ranks: int, size: int, dtype: torch.dtype) -> list[float]:
    """Mixed precision written out: bfloat16 copies compute, float32 gradients are averaged, float32 weights learn."""
    program = script_module(PROGRAMS / "sharded.py", "sharded_reference")
    with torch.random.fork_rng():
        master = program.build()
    optimizer = torch.optim.AdamW(master.parameters(), lr=1e-2)
    means = []
    for step in range(steps):
        gradients, losses = [], []
        for rank in range(ranks):
            model = copy.deepcopy(master).to(dtype)
            x, y = program.batch(step, rank, size)
            loss = torch.nn.functional.mse_loss(model(x.to(dtype)).float(), y)
            loss.backward()
            losses.append(loss.item())
            gradients.append([p.grad.float() for p in model.parameters()])
        for p, *parts in zip(master.parameters(), *gradients, strict=True):
            p.grad = torch.stack(parts).mean(0)
        optimizer.step()
        means.append(sum(losses) / ranks)
    return means


@pytest.mark.parametrize(("flags", "dtype", "rel"), [(["--float32"], torch.float32, 1e-5), ([], torch.bfloat16, 2e-3)])
def test_an_fsdp2_script_on_a_cuda_mesh_trains_as_one_process_does(flags, dtype, rel):
    run = simulate_script(PROGRAMS / "sharded.py", [*flags, "--steps", "4"], ranks=4)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", run.stdout[0])]
    # bfloat16 keeps 8 bits: where a sum is rounded moves a weight by 2^-9 of itself at most.
    assert losses == pytest.approx(sharded_reference(4, 4, 4, dtype), rel=rel)
    milliseconds = [float(ms) for ms in re.findall(r"ms (\S+)", run.stdout[0])]
    assert milliseconds[1:] == pytest.approx([milliseconds[1]] * 3, rel=1e-6)  # virtual time repeats
    assert 0 < sum(milliseconds) * 1e-3 <= run.timeline.makespan_s * (1 + 1e-6)
    assert run.timeline.exposed_s(0) < 0.9 * run.timeline.busy_s(0, "comm")  # FSDP2 has streams of its own


@pytest.mark.slow
def test_a_gloo_script_gives_the_numbers_of_torchrun():
    script = str(PROGRAMS / "tutorial.py")
    real = torchrun(script, "20").splitlines()
    run = simulate_script(script, ["20"], ranks=2)
    simulated = run.stdout[0].splitlines()
    numbers = r"-?\d+\.\d+"
    for ours, theirs in zip(
        simulated[:2], [line for line in real if line.startswith(("backend", "weights"))], strict=True
    ):
        assert re.sub(numbers, "", ours) == re.sub(numbers, "", theirs)
        assert list(map(float, re.findall(numbers, ours))) == pytest.approx(
            list(map(float, re.findall(numbers, theirs))), abs=1e-6
        )
    assert run.timeline.busy_s(0) > 0  # a script without a GPU is priced on the cluster's device


def final_losses(text: str) -> list[float]:
    line = [line for line in text.splitlines() if "final" in line][-1]
    return list(map(float, re.findall(r"\d\.\d{6}", line)))


@pytest.fixture(scope="module")
def nanogpt_alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one process prints that trains in float32: every run on ranks is held against it."""
    out = tmp_path_factory.mktemp("alone")
    return plain_process(str(PROGRAMS / "nano" / "train.py"), "--device=cpu", "--dtype=float32", f"--out_dir={out}")


# The script reads its configurator as its model does, with exec(open(...).read()), and leaves closing to Python.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("dtype", ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.thorough)])
def test_a_nanogpt_like_script_trains_as_one_process_does(tmp_path, nanogpt_alone, dtype):
    script, out = str(PROGRAMS / "nano" / "train.py"), f"--out_dir={tmp_path}"
    run = simulate_script(script, [f"--dtype={dtype}", out], ranks=4)
    # Half precision moves a loss of 4 by less than a thousandth in these few steps.
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    for text in run.stdout:
        assert final_losses(text) == pytest.approx(final_losses(nanogpt_alone), rel=tolerance)
    assert "step 4: train loss" in run.stdout[0] and "step" not in run.stdout[2]
    assert any("torch.compile ran the model eagerly" in note for note in run.notes)
    assert run.traffic.count("all_reduce") == 7  # once an iteration: accumulation does not synchronize
    state = torch.load(tmp_path / "ckpt.pt", map_location="cpu")
    assert state["iter_num"] == 4 and state["config"]["dtype"] == dtype


def test_module_globals_argv_and_environment_are_a_ranks_own():
    run = simulate_script(PROGRAMS / "tokens" / "main.py", ["a", "--b"], ranks=3)
    for rank, text in enumerate(run.stdout):
        facts, farewell = text.strip().splitlines()
        found = ast.literal_eval(facts)
        assert found["step"] == found["main"] == 3 + rank and found["best"] == 10.0 - (2 + rank)
        assert found["calls"] == 1 + 3 + rank and found["callbacks"] == [rank]
        assert found["registry"] == 1 and found["world"] == 3 and found["environment"] == str(rank)
        assert found["argv"] == ["a", "--b", f"extra{rank}"]
        assert found["configs"] == [("Config", 0), ("Config", 1), ("Config", 2)]
        assert farewell == f"goodbye from {rank}"
