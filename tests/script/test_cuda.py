"""The CUDA device of a script: where tensors are, answers from the cluster's records, a sentence for the rest."""

from collections.abc import Callable

import pytest
import torch

from lablib import RankError, find_cluster
from lablib.run import Run
from lablib.script.process import NotSimulatedError

pytestmark = pytest.mark.usefixtures("everything_is_given_back")
SETUP = """
import os, torch, torch.nn as nn, torch.distributed as dist
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
"""


@pytest.fixture
def on_gpus(simulated: Callable[..., Run]) -> Callable[[str], Run]:
    """Simulate a script on two ranks, each of which has chosen its device."""
    return lambda text: simulated(SETUP + text)


@pytest.fixture
def on_gpu(simulated: Callable[..., Run]) -> Callable[[str], Run]:
    return lambda text: simulated(SETUP + text, ranks=1)


def lines(run, rank=0):
    return run.stdout[rank].splitlines()


def test_the_device_is_the_clusters(simulated):
    run = simulated(
        SETUP
        + """
p = torch.cuda.get_device_properties(local_rank)
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device(), torch.cuda.is_initialized())
print(torch.cuda.get_device_name(), p.name, p.total_memory, torch.cuda.get_device_capability(), p.major)
print(torch.accelerator.current_accelerator(), torch.accelerator.is_available(), torch.cuda.is_bf16_supported())
""",
        ranks=10,
        cluster="dgx-a100",
    )
    device = find_cluster("dgx-a100").device
    assert lines(run, 7)[0] == "True 8 7 True" and lines(run, 9)[0] == "True 2 1 True"
    assert lines(run)[1] == f"{device.name} {device.name} {int(device.memory_bytes)} (8, 0) 8"
    assert lines(run)[2] == "cuda True True"


def test_tensors_say_where_they_are(on_gpus):
    run = on_gpus("""
x = torch.ones(2, 3)
for y in (x.cuda(), x.to("cuda"), x.to(torch.device("cuda", local_rank)), x.to(local_rank),
          torch.ones(2, device="cuda"), x.to(x.cuda()), x.cuda() + 1, x.cuda().view(3, 2),
          torch.zeros_like(x.cuda()), x.cuda().new_ones(4),
          torch.tensor([1.0], device="cuda"), torch.as_tensor(x, device="cuda"), torch.zeros_like(x, device="cuda"),
          nn.functional.one_hot(torch.tensor([1, 0]).cuda(), 3), nn.Linear(2, 2).cuda().weight,
          x.cuda().type(torch.int)):
    assert y.device == torch.device("cuda", local_rank) and y.is_cuda and y.get_device() == local_rank, y
    assert not y.is_cpu and "cuda" in repr(y)
for y in (x, x.cuda().cpu(), x.cuda().to("cpu"), torch.ones(2), x.cuda()[0].cpu() + x[0], torch.FloatTensor([1.0])):
    assert y.device.type == "cpu" and not y.is_cuda and y.get_device() == -1 and "cuda" not in repr(y), y
assert x.to("cuda") is not x and x.cuda().cuda().is_cuda and x.to("cpu") is x
on = x.cuda()
assert on.to("cuda") is on and on.to(torch.float32) is on and on.cuda(non_blocking=True) is on
with torch.device("cuda"):
    assert torch.empty(3).is_cuda and nn.Linear(2, 2).bias.is_cuda
torch.set_default_device("cuda")
assert torch.arange(3).is_cuda
torch.set_default_device(None)
assert not torch.arange(3).is_cuda
print(on[0, :2].tolist(), on.type(), x.pin_memory().is_pinned())
""")
    assert lines(run, 1) == ["[1.0, 1.0] torch.cuda.FloatTensor False"]


def test_moving_a_module_keeps_its_parameters_and_copies_their_values(on_gpus):
    run = on_gpus("""
import copy
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
params = list(model.parameters())
values = [p.detach().clone() for p in params]
model.to("cuda", torch.float64)
assert all(a is b for a, b in zip(params, model.parameters()))
assert all(t.is_cuda for t in model.state_dict().values()) and model[1].running_mean.is_cuda
assert all(torch.equal(a, b.cpu().float()) for a, b in zip(values, model.parameters()))
assert copy.deepcopy(model)[0].weight.is_cuda
loss = model(torch.randn(4, 2, dtype=torch.float64, device="cuda")).sum()
loss.backward()
assert loss.is_cuda and all(p.grad.is_cuda for p in params)
print(not any(p.is_cuda for p in model.cpu().parameters()))
""")
    assert lines(run) == ["True"]


def test_a_device_that_is_not_there_is_refused_with_those_that_are(simulated):
    says = "invalid device ordinal: cuda:7 does not exist; .* has cuda:0 to cuda:1"
    with pytest.raises(RankError, match=says):
        simulated(SETUP + "torch.ones(2, device='cuda:7')")


def test_two_ranks_that_communicate_from_one_device_are_refused(simulated):
    """All other mistakes with devices: test_stand_in.py."""
    line = "torch.cuda.set_device(0); dist.init_process_group('nccl'); dist.all_reduce(torch.ones(2).cuda())"
    with pytest.raises(RankError, match="Duplicate GPU detected: rank 1 communicates from cuda:0"):
        simulated(SETUP + line)


@pytest.mark.parametrize(
    "call",
    [
        "torch.cuda.CUDAGraph()",
        "torch.cuda.cudart()",
        "torch.cuda.memory_snapshot()",
        "torch.cuda.utilization()",
        "torch.cuda.ExternalStream(0)",
        "torch.cuda.FloatTensor(2)",
    ],
)
def test_what_cannot_be_answered_is_named(simulated, call):
    with pytest.raises(RankError) as caught:
        simulated(SETUP + call, ranks=1)
    assert isinstance(caught.value.__cause__, NotSimulatedError)
    text, name = str(caught.value), call.split("(")[0]
    assert "lablib/script" not in text  # the traceback shows the script, not what answers for the device
    assert f"{name} has no answer on the simulator: " in text and "; leave the call out" in text
    assert "script.py:5" in text and "not compiled with CUDA" not in text


def test_every_public_function_of_torch_cuda_is_answered_or_refused(on_gpu):
    run = on_gpu("""
import types
from lablib.script.cuda import ANSWERS
for name, value in sorted(vars(torch.cuda).items()):
    if name.startswith("_") or not isinstance(value, types.FunctionType) or name in ANSWERS:
        continue
    if not (value.__module__ or "").startswith("torch.cuda"):
        continue
    try:
        value()
    except NotImplementedError as refusal:
        assert f"torch.cuda.{name} has no answer" in str(refusal), name
    else:
        print(name)
""")
    assert lines(run) == []


def test_a_thread_that_the_script_started_is_told_that_the_device_is_not_its_own(on_gpu):
    run = on_gpu("""
import threading
def work():
    try:
        torch.ones(2).cuda()
    except NotImplementedError as error:
        print(error)
thread = threading.Thread(target=work)
thread.start()
thread.join()
""")
    assert "CUDA has no answer on the simulator in a thread that the script started itself" in run.stdout[0]


def test_the_devices_random_numbers_are_its_own(on_gpus):
    run = on_gpus("""
torch.manual_seed(3)
host = torch.rand(4)
torch.manual_seed(3)
on_device = torch.rand(4, device="cuda")
assert torch.equal(torch.rand(4), host)  # the host draws as if the device had not
torch.cuda.manual_seed(3)
assert torch.equal(torch.rand(4, device="cuda"), on_device)
assert not torch.equal(torch.rand(4, device="cuda"), on_device)
state = torch.cuda.get_rng_state()
a = nn.functional.dropout(torch.ones(32, device="cuda"))
torch.cuda.set_rng_state(state)
assert torch.equal(nn.functional.dropout(torch.ones(32, device="cuda")), a)
torch.cuda.manual_seed_all(local_rank)
generator = torch.Generator("cuda").manual_seed(1)
print(torch.rand(1, device="cuda").item(), torch.randn(3, generator=generator, device="cuda").sum().item())
""")
    first, second = (text.split() for text in run.stdout)
    assert first[0] != second[0] and first[1] == second[1]


def test_checkpoints_recompute_the_same_dropout(on_gpu):
    run = on_gpu("""
from torch.utils.checkpoint import checkpoint
layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).cuda()
def gradient(use_reentrant):
    torch.manual_seed(1)
    x = torch.ones(4, 8, device="cuda", requires_grad=True)
    out = layer(x) if use_reentrant is None else checkpoint(layer, x, use_reentrant=use_reentrant)
    out.sum().backward()
    return x.grad
print(torch.equal(gradient(None), gradient(True)), torch.equal(gradient(None), gradient(False)))
""")
    assert lines(run) == ["True True"]


def test_autocast_and_the_gradient_scaler_work_on_the_device(on_gpu):
    run = on_gpu("""
model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
x = torch.ones(2, 4, device="cuda")
with torch.autocast("cuda"):
    out = model(x)
    inside = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert model(x).dtype == torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        assert model(x).dtype == torch.float32
assert not torch.is_autocast_enabled("cuda") and model(x).dtype == torch.float32
with torch.autocast("cpu"):
    assert model(x).dtype == torch.bfloat16
scaler.scale(out.float().sum()).backward()
before = model.weight.detach().clone()
scaler.step(optimizer)
scaler.update()
model.weight.grad.fill_(float("inf"))
moved = model.weight.detach().clone()
scaler.step(optimizer)
scaler.update()
print(out.dtype, inside, not torch.equal(before, moved), torch.equal(moved, model.weight), scaler.get_scale())
""")
    assert lines(run) == ["torch.float16 (True, torch.float16) True True 512.0"]


def test_a_checkpoint_names_the_device_and_map_location_is_followed(on_gpus, tmp_path):
    path = str(tmp_path / "x.pt")
    run = on_gpus(f"""
dist.init_process_group("nccl")
if local_rank == 1:
    torch.save({{"x": torch.arange(3, device="cuda"), "host": torch.ones(1)}}, {path!r})
dist.barrier(device_ids=[local_rank])
def load(to, name="x"):
    return torch.load({path!r}, map_location=to, weights_only=False)[name]
found = [load(to).device for to in (None, "cpu", "cuda", "cuda:0", {{"cuda:1": "cuda:0"}})]
found += [load(lambda storage, place: storage).device, load(None, "host").device]
found.append(load(lambda storage, place: storage.cuda(local_rank)).device)
print(*found, load(None).tolist())
""")
    assert run.stdout[0].split()[:8] == ["cuda:1", "cpu", "cuda:0", "cuda:0", "cuda:0", "cpu", "cpu", "cuda:0"]
    assert run.stdout[1].split()[2] == "cuda:1" and "[0, 1, 2]" in run.stdout[1]
    with pytest.raises(RuntimeError, match="map_location"):
        torch.load(tmp_path / "x.pt")  # the same as with a file from a GPU


def test_compile_runs_eagerly_and_the_run_says_so(on_gpus):
    run = on_gpus("""
@torch.compile
def double(x):
    return 2 * x
@torch.compile(mode="max-autotune")
def triple(x):
    return 3 * x
model = torch.compile(nn.Linear(2, 2).cuda())
model.compile()
print(double(torch.ones(1)).item(), triple(torch.ones(1)).item(), isinstance(model, nn.Linear))
""")
    compiled, host = run.notes
    assert lines(run) == ["2.0 3.0 True"] and "ran the model eagerly" in compiled and "host's work" in host


def test_host_work_takes_no_virtual_time_and_a_copy_takes_that_of_pcie(on_gpu):
    run = on_gpu("""
x = torch.ones(1 << 20)
for _ in range(10):
    x = x * 2
x = x.cuda()
""")
    (span,) = run.timeline
    (note,) = run.notes  # 1 of ones, 10 products
    assert note.startswith("The host's work took no virtual time: 11 operators of rank 0")
    link = find_cluster("dgx-h100").device  # H100 hangs on PCIe 5 x16: 2.5 us + 4 MiB at 63 GB/s
    assert link.name.startswith("H100") and span.name == "copy host to device"
    assert span.duration_s == pytest.approx(2.5e-6 + 4 * 2**20 / 63e9, rel=1e-12)


def test_a_collective_of_a_cuda_tensor_gives_the_same_as_one_of_the_cpu(on_gpus):
    run = on_gpus("""
dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
x = torch.full((2,), float(local_rank + 1), device="cuda")
outputs = [torch.empty_like(x) for _ in range(2)]
dist.all_gather(outputs, x)
dist.all_reduce(x)
objects = [None, None]
dist.all_gather_object(objects, {"rank": local_rank})
holder = [outputs if local_rank == 0 else None]
dist.broadcast_object_list(holder, src=0)
print([o.tolist() for o in outputs], x.tolist(), objects, holder[0][1].tolist(), outputs[0].is_cuda)
""")
    assert lines(run, 1) == ["[[1.0, 1.0], [2.0, 2.0]] [3.0, 3.0] [{'rank': 0}, {'rank': 1}] [2.0, 2.0] True"]


def test_allocation_statistics_answer_from_the_tracker_of_the_device(on_gpus):
    run = on_gpus("""
def held():
    return torch.cuda.memory_allocated() // 2**20, torch.cuda.max_memory_allocated() // 2**20
MiB = 2**18  # float32 numbers in it
print(*held())
host = torch.ones(64 * MiB)
a = torch.ones(8 * MiB, device="cuda")
print(*held())
b = a * 2
print(*held())
del a
print(*held(), torch.cuda.memory_reserved() == torch.cuda.memory_allocated())
torch.cuda.reset_peak_memory_stats()
print(*held())
moved = host[: 4 * MiB].cuda()
back = moved.cpu()
print(*held(), torch.cuda.memory_stats()["allocated_bytes.all.peak"] // 2**20)
free, total = torch.cuda.mem_get_info()
print((total - free) // 2**20, torch.cuda.memory_allocated(1 - local_rank), torch.accelerator.memory_allocated() > 0)
torch.cuda.empty_cache()
""")
    assert lines(run) == ["0 0", "8 8", "16 16", "8 16 True", "8 8", "12 12 12", "12 0 True"]
    assert run.memory.peak_bytes(0) == 16 * 2**20  # what is on the host is not the device's


def test_a_memory_fraction_limits_a_rank_as_torch_checks_it(simulated):
    """Rank 1 may use 0.05% of an H100's 80 GB, less than its 48 MB; rank 0 has the whole device."""
    run = simulated(
        SETUP
        + """
for wrong in (1, 1.5, -0.1):
    try:
        torch.cuda.set_per_process_memory_fraction(wrong)
    except (TypeError, ValueError) as error:
        print(error)
print(torch.cuda.get_per_process_memory_fraction())
if local_rank == 1:
    torch.cuda.set_per_process_memory_fraction(0.0005)
    torch.cuda.set_per_process_memory_fraction(0.1, 0)
print(torch.cuda.get_per_process_memory_fraction(), torch.cuda.get_per_process_memory_fraction(0))
x = torch.empty(48 * 10**6 // 4, device="cuda")
""",
        cluster="dgx-h100",
    )
    wrong = [
        "Invalid type for fraction argument, must be `float`",
        *(f"Invalid fraction value: {value}. Allowed range: 0~1" for value in (1.5, -0.1)),
    ]
    assert run.stdout[0].splitlines()[-5:] == [*wrong, "1.0", "1.0 1.0"]
    assert run.stdout[1].splitlines()[-5:] == [*wrong, "1.0", "0.0005 1.0"]
    (note,) = [note for note in run.notes if "out-of-memory" in note]
    assert note.startswith("rank 1 needs 48 MB at its peak")
    assert "set_per_process_memory_fraction(0.0005) allows 4" in note


def test_nothing_of_the_device_is_left_outside(simulated):
    simulated(SETUP + "torch.ones(1, device='cuda')", ranks=1)
    assert torch.ones(1).device.type == "cpu"
    if not torch.backends.cuda.is_built():
        with pytest.raises((AssertionError, RuntimeError), match="not compiled with CUDA"):
            torch.ones(1, device="cuda")


def test_nccl_alone_initializes_no_device_and_a_mesh_gives_each_rank_its_own(simulated):
    run = simulated(
        """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
torch.cuda.device_count(), torch.cuda.is_available(), torch.cuda.manual_seed_all(1), torch.device("cuda")
dist.init_process_group("nccl")
print(torch.cuda.is_initialized())
mesh = init_device_mesh("cuda", (2, 2))
x = torch.ones(2, device="cuda")
dist.all_reduce(x)
print(torch.cuda.is_initialized(), torch.cuda.current_device(), x.device, mesh.get_coordinate())
""",
        ranks=4,
    )
    assert [text.split("\n")[0] for text in run.stdout] == ["False"] * 4
    assert [text.split()[2:4] for text in run.stdout] == [[str(i), f"cuda:{i}"] for i in range(4)]


def test_a_device_that_the_script_chose_before_a_mesh_is_respected(simulated):
    run = simulated(
        """
import os, torch
from torch.distributed.device_mesh import init_device_mesh
torch.cuda.set_device(1 - int(os.environ["LOCAL_RANK"]))
init_device_mesh("cuda", (2,))
print(torch.cuda.current_device())
"""
    )
    assert run.stdout == ["1\n", "0\n"]


@pytest.mark.parametrize(
    "call",
    [
        "torch.cuda.init()",
        "torch.cuda.set_device(0)",
        "torch.cuda.current_device()",
        "torch.cuda.get_device_properties(0)",
        "torch.cuda.synchronize()",
        "torch.ones(1).cuda()",
        "torch.ones(1, device=0)",
        "nn.Linear(1, 1).to(0)",
    ],
)
def test_what_initializes_cuda_in_torch_does_so_here(simulated, call):
    text = f"import torch, torch.nn as nn\nbefore = torch.cuda.is_initialized()\n{call}\n"
    run = simulated(text + "print(before, torch.cuda.is_initialized())", ranks=1)
    assert lines(run) == ["False True"]


NUMBERS = """
here = torch.device("cuda", local_rank)
def check(*values):
    for value in values:
        place = value if isinstance(value, torch.device) else value.device
        assert place == here, place
module = lambda: nn.Linear(2, 2)
"""


LINES = [
    "check(torch.device(local_rank), torch.device(device=local_rank), torch.device(here))",
    "check(*module().to(local_rank).parameters(), *module().to(device=local_rank).parameters())",
    "check(*module().to(local_rank, torch.float16).parameters(), *module().cuda(local_rank).parameters())",
    "check(*module().to(torch.device(local_rank)).parameters(), *nn.Linear(2, 2, device=local_rank).parameters())",
    "check(*module().to_empty(device=local_rank).parameters(), *nn.Linear(2, 2).to('cuda').parameters())",
    "check(torch.ones(1).to(local_rank), torch.ones(1).to(torch.device(local_rank)))",
    "check(torch.ones(1).cuda(local_rank), torch.ones(1).cuda(torch.device(local_rank)))",
    "check(torch.ones(1).to(device=local_rank, dtype=torch.int), torch.ones(1).to(local_rank, torch.int))",
    "check(torch.ones(1, device=local_rank), torch.tensor(1, device=local_rank))",
    "check(torch.randn(2, device=local_rank), torch.arange(2, device=local_rank), torch.eye(2, device=local_rank))",
    "check(torch.ones_like(torch.ones(1), device=local_rank), torch.ones(1).new_zeros(2, device=local_rank))",
    "check(torch.as_tensor([1], device=local_rank), torch.full((1,), 2, device=local_rank))",
    "torch.set_default_device(local_rank); check(torch.ones(1), module().weight); torch.set_default_device(None)",
    "with torch.device(local_rank): check(torch.ones(1), module().weight)",
    "with here: check(torch.ones(1), torch.get_default_device())",
    "check(nn.parallel.DistributedDataParallel(module().to(local_rank), device_ids=[local_rank]).module.weight)",
    "torch.save(torch.ones(1), path); check(torch.load(path, map_location=torch.device(local_rank)))",
    "assert torch.rand(1, generator=torch.Generator(device=local_rank), device=local_rank).device == here",
    "import pickle; check(pickle.loads(pickle.dumps(torch.device(local_rank))))",
    "import copy; check(copy.deepcopy(torch.device(local_rank)))",
    "assert isinstance(here, torch.device) and not isinstance(0, torch.device) and {type(here): 1}[torch.device]",
    "assert torch.device('cuda').index is None and torch.device('cpu').type == 'cpu' and (torch.device | None)",
    "import inspect; assert 'device' in repr(torch.device)",
]


def test_a_number_names_a_device(simulated, tmp_path):
    setup = SETUP + NUMBERS + f"path = {str(tmp_path)!r} + f'/{{local_rank}}.pt'\ndist.init_process_group('nccl')\n"
    simulated(setup + "\n".join(LINES))


def test_a_custom_operator_may_say_that_it_takes_a_device(on_gpu):
    on_gpu("""
@torch.library.custom_op("lablib_tests::ones_on", mutates_args=())
def ones_on(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    return x.clone()
ones_on(torch.ones(1), torch.device("cpu"))
""")
