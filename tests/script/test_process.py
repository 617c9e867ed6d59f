"""What a script finds around it: a process of its own on every rank. What goes wrong ends in one clear error."""

import json
import sys
import textwrap

import pytest

from lablib import (
    CollectiveMismatchError,
    DeadlockError,
    LaunchError,
    LaunchTimeoutError,
    RankError,
    launch,
    simulate_script,
)
from lablib.text.units import format_quantity
from tests.torchrun_environment import SCRIPT, assert_given

pytestmark = pytest.mark.usefixtures("everything_is_given_back")
INIT = "import torch.distributed as dist\ndist.init_process_group()\nrank = dist.get_rank()\n"


@pytest.mark.parametrize("backend", ['"nccl"', '"gloo"', '"mpi"', '"cpu:gloo,cuda:nccl"'])
def test_get_backend_gives_the_name_that_the_script_asked_for(simulated, backend):
    run = simulated(f"""
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group({backend})
group = dist.new_group([0])
x = torch.ones(2, device="cuda")
dist.all_reduce(x)
print(dist.get_backend(), dist.get_backend(group) if dist.get_rank() == 0 else "", x.tolist())
dist.destroy_process_group()
""")
    asked = backend.strip('"')
    assert run.stdout[0].split()[:2] == [asked, asked] and "[2.0, 2.0]" in run.stdout[1]


def test_a_backend_that_nobody_knows_is_named(simulated):
    with pytest.raises(RankError, match="unknown backend 'ncll': did you mean 'nccl'"):
        simulated('import torch.distributed as dist\ndist.Backend.register_backend\ndist.init_process_group("ncll")')


def test_rank_and_world_size_may_be_given_and_must_be_true(simulated):
    text = "import os, torch.distributed as dist\nrank = int(os.environ['RANK'])\n"
    address = 'init_method="tcp://127.0.0.1:1"'
    run = simulated(
        text + f"dist.init_process_group('gloo', {address}, rank=rank, world_size=2)\nprint(dist.get_rank())"
    )
    assert run.stdout == ["0\n", "1\n"]
    with pytest.raises(RankError, match=r"world_size=4\): this is rank 0 of 2; leave world_size out"):
        simulated(text + f"dist.init_process_group('gloo', {address}, rank=rank, world_size=4)")


def test_a_group_can_be_made_again_after_it_was_destroyed(simulated):
    run = simulated("""
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
for backend in ("gloo", "nccl", "gloo"):
    dist.init_process_group(backend)
    x = torch.ones((), device="cuda")
    dist.all_reduce(x)
    print(backend, x.item())
    dist.destroy_process_group()
print(dist.is_initialized())
""")
    assert run.stdout[1].split() == ["gloo", "2.0", "nccl", "2.0", "gloo", "2.0", "False"]


def test_a_script_that_never_initializes_a_group_just_runs(simulated):
    run = simulated("import os, sys\nprint(os.environ['LOCAL_RANK'], __name__, sys.argv[1:])\nsys.exit()", "x", ranks=3)
    assert run.stdout == [f"{rank} __main__ ['x']\n" for rank in range(3)] and run.values == [0, 0, 0]


def test_a_script_that_raises_ends_the_run_with_rank_line_and_a_traceback_that_begins_in_the_script(simulated):
    with pytest.raises(RankError) as caught:
        simulated(INIT + "def step():\n    if rank == 1:\n        raise KeyError('lost')\nstep()\ndist.barrier()\n")
    error = caught.value
    assert error.rank == 1 and isinstance(error.__cause__, KeyError)
    first = error.rank_traceback.splitlines()[1]
    assert first.endswith('script.py", line 7, in <module>') and "raise KeyError('lost')" in error.rank_traceback


@pytest.mark.parametrize(("end", "says"), [("sys.exit(3)", "exit code 3"), ("sys.exit('no data')", "no data")])
def test_an_exit_code_other_than_zero_is_a_failure(simulated, end, says):
    with pytest.raises(RankError, match=f"rank 0 raised ScriptExit: the script ended itself: {says}"):
        simulated(f"import sys\n{end}")


def test_a_hard_exit_ends_the_rank_and_not_the_process(simulated):
    run = simulated(
        "import atexit, os\natexit.register(print, 'never')\nprint('out')\nos._exit(0)\nprint('not reached')"
    )
    assert run.stdout == ["out\n", "out\n"]


def test_a_deadlock_names_the_lines_of_the_script(simulated):
    with pytest.raises(DeadlockError) as caught:
        simulated(INIT + "if rank == 0:\n    dist.barrier()\n")
    text = str(caught.value)
    assert "rank 0 waits in barrier #0" in text and "script.py:5: dist.barrier()" in text
    assert "rank 1 has finished" in text


def test_a_mismatch_names_both_lines(simulated):
    with pytest.raises(
        CollectiveMismatchError, match=r"script\.py:6(.|\n)*script\.py:7|script\.py:7(.|\n)*script\.py:6"
    ):
        simulated(
            INIT
            + "import torch\nif rank == 0:\n    dist.all_reduce(torch.ones(2).cuda())\n"
            + "else: dist.all_reduce(torch.ones(3).cuda())"
        )


def test_a_script_that_never_ends_is_ended(simulated):
    with pytest.raises(LaunchTimeoutError, match=r"rank 0 was at script\.py:[12]"):
        simulated("while True:\n    pass", timeout_s=1.0)


def test_a_file_that_is_missing_a_folder_or_no_python_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.py does not exist; give the path of the file torchrun would run"):
        simulate_script(tmp_path / "nowhere.py")
    with pytest.raises(ValueError, match="is a folder"):
        simulate_script(tmp_path)
    (tmp_path / "broken.py").write_text("def f(:\n", "utf-8")
    with pytest.raises(ValueError, match=r"broken\.py \(line 1\): invalid syntax"):
        simulate_script(tmp_path / "broken.py")


def test_a_script_cannot_be_simulated_from_inside_a_rank(tmp_path):
    (tmp_path / "fine.py").write_text("", "utf-8")
    with pytest.raises(LaunchError, match="this is inside a rank of a launch: simulate a script from outside"):
        launch(lambda: simulate_script(tmp_path / "fine.py"), ranks=1)


def test_a_sibling_hides_a_module_of_the_same_name_that_the_host_has_loaded(tmp_path, simulated, monkeypatch):
    (tmp_path / "textwrap_of_mine.py").write_text("WHO = 'the script'", "utf-8")
    other = type(sys)("textwrap_of_mine")
    other.__file__ = "/somewhere/else/textwrap_of_mine.py"
    monkeypatch.setitem(sys.modules, "textwrap_of_mine", other)
    assert simulated("import textwrap_of_mine\nprint(textwrap_of_mine.WHO)").stdout == ["the script\n"] * 2
    assert sys.modules["textwrap_of_mine"] is other


def test_modules_of_the_library_are_shared_and_stay(simulated):
    run = simulated("import textwrap, os, torch\nprint(id(textwrap), id(os), id(torch))")
    assert run.stdout[0] == run.stdout[1] and run.stdout[0].split()[0] == str(id(textwrap))


def test_an_import_may_communicate_and_every_rank_finishes_its_own(tmp_path, simulated):
    (tmp_path / "slow_import.py").write_text(
        "import torch.distributed as dist\ndist.barrier()\nRANK = dist.get_rank()\ndist.barrier()\n", "utf-8"
    )
    run = simulated(INIT + "import slow_import\nprint(slow_import.RANK)", ranks=3)
    assert run.stdout == ["0\n", "1\n", "2\n"]


def test_a_module_that_a_rank_makes_up_is_its_own_in_sys_modules_while_it_runs(simulated):
    simulated("import sys, types\nsys.modules['made_up_by_script'] = types.ModuleType('made_up_by_script')")
    assert "made_up_by_script" not in sys.modules


def test_dataclasses_typing_and_pickle_find_the_ranks_main(simulated):
    run = simulated("""
import pickle, sys, typing
from dataclasses import dataclass, field
import torch.distributed as dist
dist.init_process_group("gloo")

@dataclass
class Settings:
    name: "str" = "a"
    sizes: "list[int]" = field(default_factory=list)

dist.barrier()
mine = pickle.loads(pickle.dumps(Settings("b", [dist.get_rank()])))
dist.barrier()
print(type(mine) is Settings, typing.get_type_hints(Settings), mine.sizes, Settings.__module__)
assert sys.modules["__main__"].Settings is Settings
""")
    assert run.stdout[1] == "True {'name': <class 'str'>, 'sizes': list[int]} [1] __main__\n"


def test_the_working_folder_standard_error_and_signal_handlers_are_a_ranks_own(simulated, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run = simulated(
        INIT
        + textwrap.dedent(f"""
        import logging, os, signal, sys, torch
        before = os.getcwd()
        if rank == 0:
            os.chdir({str(tmp_path / "elsewhere")!r})
            signal.signal(signal.SIGTERM, print)
            torch.set_float32_matmul_precision("high")
            torch.use_deterministic_algorithms(True)
            torch.set_default_device("cuda")
            logging.getLogger("mine").setLevel(logging.ERROR)
        dist.barrier(device_ids=[rank])
        print(os.getcwd() == before, torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled())
        print(torch.ones(1).device.type, logging.getLogger("mine").level, signal.getsignal(signal.SIGTERM) is print)
        print(signal.signal(signal.SIGTERM, print) is print)
        print("to stderr", file=sys.stderr)
        """)
    )
    assert run.stdout[0].splitlines() == ["False high True", "cuda 40 True", "True", "to stderr"]
    assert run.stdout[1].splitlines() == ["True highest False", "cpu 0 False", "False", "to stderr"]


@pytest.mark.parametrize(
    "start",
    [
        "import torch.multiprocessing as mp; mp.spawn(main, args=(2,), nprocs=2)",
        "from torch.multiprocessing import spawn; spawn(main, (2,), 2)",
        "from torch.multiprocessing.spawn import start_processes; start_processes(main, (2,), 2)",
    ],
)
def test_a_script_that_starts_its_own_ranks_is_told_that_they_are_there(simulated, start: str):
    with pytest.raises(RankError) as caught:
        simulated(f"def main(rank, ranks):\n    print(rank)\n{start}")
    assert "not simulated ranks; the 2 ranks already exist" in str(caught.value)
    assert 'call main(int(os.environ["RANK"]), ...), as under torchrun' in str(caught.value)


def test_handlers_of_atexit_run_last_first_when_the_rank_ends(simulated):
    run = simulated("import atexit\natexit.register(print, 'first')\natexit.register(print, 'second')\nprint('body')")
    assert run.stdout[1].split() == ["body", "second", "first"]


def test_what_rank_0_prints_is_shown_while_it_runs(tmp_path):
    import io

    (tmp_path / "talk.py").write_text("import os\nprint('rank', os.environ['RANK'])", "utf-8")
    shown = io.StringIO()
    run = simulate_script(tmp_path / "talk.py", ranks=3, show=shown)
    assert shown.getvalue() == "rank 0\n" and run.stdout == [f"rank {rank}\n" for rank in range(3)]


def test_a_run_that_failed_leaves_the_next_one_as_it_should_be(simulated):
    with pytest.raises(RankError):
        simulated(
            INIT + "import torch\ntorch.set_default_device('cuda')\nraise ValueError(torch.ones(1, device='cuda'))"
        )
    assert simulated(INIT + "import torch\nprint(torch.ones(1).device)").stdout == ["cpu\n", "cpu\n"]


def test_a_script_finds_every_variable_that_torchrun_gives(simulated, tmp_path):
    simulated(SCRIPT, str(tmp_path))
    for rank in range(2):
        assert_given(json.loads((tmp_path / str(rank)).read_text()), rank)


@pytest.mark.parametrize(("ranks", "nodes"), [(3, "1"), (8, "1"), (9, "2"), (17, "3")])
def test_the_number_of_nodes_is_that_of_the_cluster(simulated, ranks, nodes):
    run = simulated("import os\nprint(os.environ['GROUP_WORLD_SIZE'])", ranks=ranks)
    assert run.stdout == [f"{nodes}\n"] * ranks


def test_a_child_process_has_the_ranks_environment_and_writes_to_its_output(simulated):
    run = simulated("""
import os, subprocess, sys
os.environ["MINE"] = os.environ["RANK"] * 2
words = ["sh", "-c", "echo rank $RANK $MINE"]
print("before")
subprocess.run(words, stdout=sys.stdout)
print(os.system("exit 3$RANK") >> 8, subprocess.check_output(words, text=True, env={"RANK": "x"}).strip())
sys.stdout.reconfigure(line_buffering=True)
sys.stdout.buffer.write(chr(228).encode(sys.stdout.encoding))
""")
    assert run.stdout == [f"before\nrank {r} {r}{r}\n3{r} rank x\n\u00e4" for r in range(2)]


def test_a_signal_that_a_rank_sends_to_itself_reaches_its_own_handler(simulated):
    run = simulated("""
import os, signal
signal.signal(signal.SIGUSR1, lambda number, frame: print(os.environ["RANK"], number == signal.SIGUSR1))
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGUSR2)
os.kill(os.getpid(), 0)
""")
    assert run.stdout == [f"{rank} True\n" * 2 for rank in range(2)]
    with pytest.raises(RankError, match="sent itself SIGTERM"):
        simulated("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")


def test_a_fork_of_the_simulator_is_refused(simulated):
    with pytest.raises(RankError, match=r"os\.fork has no answer .* use subprocess, or torchrun"):
        simulated("import os\nos.fork()")


@pytest.mark.parametrize("clock", ["time", "perf_counter", "monotonic", "perf_counter_ns"])
def test_a_script_that_reads_the_clock_is_answered_with_virtual_time_next_to_it(simulated, clock):
    run = simulated(f"""
import os, torch
from time import {clock} as now
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(256, 256, device="cuda")
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); begin = now(); x @ x; now(); end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end))
""")
    (note,) = [note for note in run.notes if "clock" in note]
    virtual = format_quantity(float(run.stdout[0]) / 1e3, "s", 4)
    assert "script.py:7): from its first to its last reading rank 0 took" in note and f"{virtual} of virtual" in note


def test_one_reading_measures_nothing(simulated):
    assert simulated("import random, time\nrandom.seed(time.time())").notes == ()


@pytest.mark.parametrize("size", ["torch.empty(2**44)", "torch.empty(2**44, device='cuda')", "bytearray(2**48)"])
def test_a_script_that_this_machine_has_no_memory_for_is_answered_with_a_remedy(simulated, size):
    with pytest.raises(RankError) as caught:
        simulated(f"import torch\ntorch.cuda.set_device(0)\nx = {size}", ranks=1)
    assert "holds the tensors of all 1 simulated ranks" in caught.value.__notes__[0]
