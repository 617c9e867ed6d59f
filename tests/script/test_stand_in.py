"""The stand-in for a GPU refuses what CUDA refuses, takes what CUDA takes, and computes the same values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import RandomSampler

from lablib import launch, parallel
from lablib.course.building.master import read_master
from lablib.course.checks.proof import try_answer
from lablib.course.places import find_labs, find_labs_folder
from lablib.course.running.on_gpu import try_on_gpu
from lablib.data import Corpus, batches
from lablib.errors import RankError
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.script.stand_in import cuda_by_default


def on_gpu(program: Callable[..., Any], *args: Any, ranks: int = 1) -> list[Any]:
    with cuda_by_default():
        return launch(program, *args, ranks=ranks).values


def x(*shape: int, device: str | None = None) -> Tensor:
    return torch.ones(shape, device=device)


def host(*shape: int) -> Tensor:
    return x(*shape, device="cpu")


def cpu_generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


INDEX = [0, 1]

# Under the default device of a launch these draw on the host (lablib/process/default_device.py).
DRAWS: dict[str, Callable[[], Any]] = {
    "randn": lambda: torch.randn(4, generator=cpu_generator()),
    "randperm": lambda: torch.randperm(4, generator=cpu_generator()),
    "randint": lambda: torch.randint(0, 4, (4,), generator=cpu_generator()),
    "a shuffled sampler": lambda: torch.tensor(list(RandomSampler(range(4), generator=cpu_generator())), device="cpu"),
}


def _under_cuda(program: Callable[[], Any]) -> None:
    """Torch's own default device, in place of that of the launch."""
    torch.set_default_device("cuda")
    program()


# ---- refused, each with torch's words ----

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
GENERATOR = "Expected a 'cuda' device type for generator but found 'cpu'"
REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "a sum of two tensors": (TWO_DEVICES, lambda: x(3) + host(3)),
    "a sum with one element that has a dimension": (TWO_DEVICES, lambda: x(3) + host(1)),
    "a host tensor and a single number of the device": (TWO_DEVICES, lambda: host(3) + x()),
    "in place, into the host": (TWO_DEVICES, lambda: host(3).add_(x(3))),
    "in place, into a single number of the host": (TWO_DEVICES, lambda: host().add_(x())),
    "two numbers of the host": ("too many CPU scalars", lambda: torch.addcmul(x(3), host(), host())),
    "a product": (TWO_DEVICES, lambda: x(2, 2) @ host(2, 2)),
    "a product of vectors": (TWO_DEVICES, lambda: torch.dot(x(2), host(2))),
    "cat": (TWO_DEVICES, lambda: torch.cat([x(2), host(2)])),
    "stack of single numbers": (TWO_DEVICES, lambda: torch.stack([x(), host()])),
    "a layer": (TWO_DEVICES, lambda: nn.Linear(2, 2)(host(1, 2))),
    "an embedding": (TWO_DEVICES, lambda: nn.Embedding(4, 2)(torch.tensor(INDEX, device="cpu"))),
    "a loss": (TWO_DEVICES, lambda: nn.functional.cross_entropy(x(2, 3), torch.tensor(INDEX, device="cpu"))),
    "index_select": (TWO_DEVICES, lambda: x(3).index_select(0, torch.tensor(INDEX, device="cpu"))),
    "gather": (TWO_DEVICES, lambda: x(3).gather(0, torch.tensor(INDEX, device="cpu"))),
    "masked_fill by a mask of the host": (TWO_DEVICES, lambda: x(3).masked_fill(host(3) > 0, 1.0)),
    "equal": (TWO_DEVICES, lambda: torch.equal(x(3), host(3))),
    "where": (TWO_DEVICES, lambda: torch.where(x(3) > 0, x(3), host(3))),
    "out": (TWO_DEVICES, lambda: torch.add(x(3), x(3), out=host(3))),
    "a host tensor by an index of the device": (
        "indices should be either on cpu",
        lambda: host(3)[torch.tensor(INDEX)],
    ),
    "a host tensor by a mask of the device": ("indices should be either on cpu", lambda: host(3)[x(3) > 0]),
    "values of the host at an index": (TWO_DEVICES, lambda: x(3).index_put_((torch.tensor(INDEX),), host(2))),
    "randn": (GENERATOR, lambda: torch.randn(4, generator=cpu_generator(), device="cuda")),
    "randperm": (GENERATOR, lambda: torch.randperm(4, generator=cpu_generator(), device="cuda")),
    "randint": (GENERATOR, lambda: torch.randint(0, 4, (4,), generator=cpu_generator(), device="cuda")),
    "what a generator of the host drew": (TWO_DEVICES, lambda: torch.randn(4, generator=cpu_generator()) + x(4)),
    "a default device of the program's own": (GENERATOR, lambda: _under_cuda(DRAWS["randn"])),
    "normal_": (GENERATOR, lambda: x(4).normal_(generator=cpu_generator())),
    "bernoulli": (GENERATOR, lambda: torch.bernoulli(x(4), generator=cpu_generator())),
    "multinomial": (GENERATOR, lambda: torch.multinomial(x(4), 2, generator=cpu_generator())),
    "nn.init": (GENERATOR, lambda: nn.init.normal_(x(4), generator=cpu_generator())),
    "a generator of the device for the host": (
        "Expected a 'cpu' device type for generator but found 'cuda'",
        lambda: host(4).normal_(generator=torch.Generator("cuda")),
    ),
    "a shuffled sampler": (
        GENERATOR,
        lambda: _under_cuda(lambda: list(RandomSampler(range(4), generator=cpu_generator()))),
    ),
    "numpy()": ("can't convert cuda:0 device type tensor to numpy", lambda: x(3).numpy()),
    "an array": ("can't convert cuda:0 device type tensor to numpy", lambda: np.asarray(x(3))),
    "pinned": ("cannot pin", lambda: x(3).pin_memory()),
    "a gradient of the host": (
        "grad must be where its tensor is",
        lambda: setattr(nn.Parameter(x(3)), "grad", host(3)),
    ),
    "a collective of the host": ("No backend type associated with device type cpu", lambda: dist.all_reduce(host(3))),
    "a device that is not there": ("invalid device ordinal", lambda: x(3, device="cuda:7")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cuda_refuses_is_refused_in_its_words(what: str):
    says, program = REFUSED[what]
    with pytest.raises(RankError) as caught:
        on_gpu(program)
    assert says in str(caught.value)


# ---- taken ----

TAKEN: dict[str, Callable[[], Any]] = {
    "one number of the host": lambda: x(3) + host(),
    "one number of the host, from the left": lambda: host() * x(3),
    "in place, by one number of the host": lambda: x(3).mul_(host()),
    "two single numbers": lambda: x() + host(),
    "where, by numbers of the host": lambda: torch.where(x(3) > 0, host(), host()),
    "Python's numbers": lambda: (x(3) + 1) * 2.0,
    "an index of the host": lambda: x(3)[torch.tensor(INDEX, device="cpu")],
    "a mask of the host": lambda: x(3)[host(3) > 0],
    "a slice, and a list": lambda: x(4)[1:][INDEX],
    "one number of the host at an index": lambda: x(3).index_put_((torch.tensor(INDEX),), host()),
    "setting a slice from the host": lambda: x(3).__setitem__(slice(0, 2), host(2)),
    "filling with a number of the host": lambda: x(3).fill_(host()),
    "masked_fill with a number of the host": lambda: x(3).masked_fill(x(3) > 0, host()),
    "copies, both ways": lambda: (x(3).copy_(host(3)), host(3).copy_(x(3))),
    "to and from": lambda: (x(3).cpu() + host(3), host(3).cuda() + x(3), host(3).to("cuda") + x(3)),
    "to by another tensor": lambda: host(3).to(x(3)) + x(3),
    "numpy() of a copy": lambda: x(3).cpu().numpy(),
    "from numpy, moved": lambda: torch.from_numpy(np.ones(3)).to("cuda") + x(3),
    "a tensor from numbers of numpy": lambda: torch.tensor(np.ones(3)) + x(3),
    "item, tolist, truth": lambda: (x().item(), x(3).tolist(), bool(x())),
    "a generator of the host, for the host": lambda: (
        torch.randn(4, generator=cpu_generator(), device="cpu").to("cuda") + x(4)
    ),
    "a generator of the device": lambda: torch.randn(4, generator=torch.Generator("cuda").manual_seed(1)) + x(4),
    **{f"{name} by a generator of the host": lambda draw=draw: draw() + host(4) for name, draw in DRAWS.items()},
    "no generator": lambda: torch.randn(4) + x(4).normal_() + nn.Dropout()(x(4)),
    "like another": lambda: torch.zeros_like(x(3)) + x(3).new_ones(3) + torch.empty_like(host(3), device="cuda"),
    "a layer, its loss and backward": lambda: nn.Linear(2, 2)(x(1, 2)).sum().backward(),
    "an optimizer": lambda: _step(torch.optim.AdamW),
    "sgd with momentum": lambda: _step(lambda params: torch.optim.SGD(params, 0.1, momentum=0.9)),
    "clipping": lambda: nn.utils.clip_grad_norm_(_with_gradient(), 1.0),
    "new memory of the host, as Module.to gives": lambda: setattr(nn.Parameter(x(3)), "data", host(3)),
    "objects": lambda: dist.broadcast_object_list([{"a": 1}]),
    "a barrier": lambda: dist.barrier(),
}


def _with_gradient() -> list[nn.Parameter]:
    model = nn.Linear(2, 2)
    model(x(1, 2)).sum().backward()
    return list(model.parameters())


def _step(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    params = _with_gradient()
    optimizer = make(params)
    optimizer.step()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:barrier")
@pytest.mark.parametrize("what", TAKEN)
def test_what_cuda_takes_is_taken(what: str):
    on_gpu(TAKEN[what])


# ---- drawn ----

OPERATORS = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.pow,
    torch.atan2,
    torch.eq,
    torch.lt,
    torch.floor_divide,
]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(OPERATORS),
    st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=2, max_size=2),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_two_tensors_meet_if_they_are_together_or_one_is_a_single_number_of_the_host(operator, both, dtype):
    def program() -> str:
        tensors = [torch.ones((2,) * dim, dtype=dtype, device=None if is_there else "cpu") for is_there, dim in both]
        return str(operator(*tensors).device)

    (a_there, a_dim), (b_there, b_dim) = both
    if a_there == b_there:
        assert on_gpu(program) == ["cuda:0" if a_there else "cpu"]
    elif (a_dim if b_there else b_dim) == 0:
        assert on_gpu(program) == ["cuda:0"]
    else:
        with pytest.raises(RankError, match="Expected all tensors to be on the same device"):
            on_gpu(program)


# ---- where things are ----


def test_each_rank_has_its_own_gpu_by_default_and_nccl():
    def program() -> tuple[str, str, str, str]:
        made = nn.Linear(1, 1).weight
        return str(torch.get_default_device()), str(x(1).device), str(made.device), dist.get_backend()

    assert on_gpu(program, ranks=2) == [(f"cuda:{rank}",) * 3 + ("nccl",) for rank in range(2)]
    assert launch(lambda: str(x(1).device), ranks=1).values == ["cpu"]  # and afterwards nobody has


def test_arguments_arrive_on_the_gpu_and_what_a_closure_holds_does_not():
    outside, layer = torch.ones(3), nn.Linear(3, 1)

    def program(given: list[Tensor], model: nn.Module) -> tuple[str, str]:
        model(given[0] + x(3)).sum().backward()
        return str(given[0].device), str(outside.device)

    assert on_gpu(program, [torch.ones(3)], layer, ranks=2) == [("cuda:0", "cpu"), ("cuda:1", "cpu")]
    with pytest.raises(RankError, match="at least two devices"):
        on_gpu(lambda: outside + x(3))


def test_shapes_have_one_device_and_are_left_alone():
    with cuda_by_default():
        assert launch(lambda: str(x(3).device), ranks=1, fidelity="shapes").values == ["meta"]


# ---- what lablib ships ----

CONFIG = GPTConfig(num_layers=2, d_model=16, num_heads=2, vocab_size=256, max_seq_len=16)
TEXT = Corpus("text", torch.arange(4096, dtype=torch.int64).remainder(251).to(torch.uint8), 4096, "", "made here")


def train(wrap: Callable[[nn.Module], nn.Module], end: Callable[[nn.Module], None]) -> tuple[float, list[Tensor]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = GPT(CONFIG, dtype=torch.float64, seed=5)
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stream = batches(TEXT, 4, 8, rank=rank, world_size=ranks)
    for _ in range(2):
        inputs, targets = next(stream)
        optimizer.zero_grad()
        loss = next_token_loss(wrapped(inputs), targets)
        loss.backward()
        end(model)
        optimizer.step()
    return loss.item(), [param.detach().clone() for param in model.parameters()]


def nothing(module: Any) -> Any:
    return module


TRAINED: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[nn.Module], None]]] = {
    "naive": (nothing, parallel.average_gradients),
    "buckets": (nothing, lambda module: parallel.average_gradients_in_buckets(module, bucket_bytes=4096)),
    "overlapped": (lambda module: parallel.DataParallel(module, bucket_bytes=4096), nothing),
    "torch's own": (DistributedDataParallel, nothing),
}


@pytest.mark.parametrize("how", TRAINED)
def test_a_model_trains_on_the_stand_in_as_on_the_cpu(how: str):
    expected, found = launch(train, *TRAINED[how], ranks=2).values, on_gpu(train, *TRAINED[how], ranks=2)
    for (loss, params), (other_loss, other_params) in zip(expected, found, strict=True):
        assert loss == other_loss
        assert all(torch.equal(a, b) for a, b in zip(params, other_params, strict=True))


@pytest.mark.parametrize("name", ["ring_all_reduce", "tree_all_reduce", "hierarchical_all_reduce"])
def test_an_all_reduce_of_our_own_runs_on_the_stand_in(name: str):
    def program() -> list[float]:
        tensor = torch.arange(5.0) + dist.get_rank()
        getattr(parallel, name)(tensor)
        return tensor.tolist()

    assert on_gpu(program, ranks=4) == [[6.0, 10.0, 14.0, 18.0, 22.0]] * 4


def test_the_same_seed_gives_the_same_model_and_order_on_both_devices():
    def program() -> tuple[Tensor, Tensor]:
        inputs, _ = next(batches(TEXT, 2, 8, seed=3))
        return GPT(CONFIG, seed=7).token_embedding.weight.detach(), inputs

    (on_cpu,), (there,) = launch(program, ranks=1).values, on_gpu(program)
    assert all(torch.equal(a, b) for a, b in zip(on_cpu, there, strict=True))


# ---- lab prove ----


def test_an_answer_that_would_die_on_a_gpu_passes_its_check_and_not_the_stand_in():
    lab = next(lab for lab in find_labs(find_labs_folder()) if lab.number == "00")
    master = read_master(lab)
    exercise, check = next(pair for pair in master.exercises if pair[1].check_name == "weights_and_data")
    answer = """
        def weights_and_data(seed):
            def drawn(number):
                return torch.empty(4, 4).normal_(generator=torch.Generator().manual_seed(number))
            return drawn(seed), drawn(1000 * (seed + 1) + dist.get_rank())
    """
    assert try_answer(master, exercise, check, answer).status == "passed"
    with cuda_by_default():
        result = try_answer(master, exercise, check, answer)
    assert result.status == "failed" and GENERATOR in result.message
    assert try_on_gpu(master, exercise, check).status == "passed"
