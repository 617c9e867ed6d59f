"""The default device that a launch gives its ranks, and what it leaves on the host. "meta" stands for the GPU."""

import _thread
import pickle
import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, random_split
from torch.utils.data.distributed import DistributedSampler

from lablib.process.default_device import factories, places
from lablib.process.default_device import make_tensors_of_the_process_on as make_tensors_on
from lablib.process.rank_state import device_seed, seed_rank
from lablib.real.workers.fresh import begin_on_gpu
from lablib.real.workers.pickling import pack, unpack
from lablib.torch_compat import device_constructors, num_function_modes

GPU = torch.device("meta")


pytestmark = pytest.mark.usefixtures("gives_back_the_default_device")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "rand": lambda **k: torch.rand(3, **k),
    "randn": lambda **k: torch.randn(3, **k),
    "randint": lambda **k: torch.randint(0, 9, (3,), **k),
    "randperm": lambda **k: torch.randperm(3, **k),
}


@given(st.sampled_from(sorted(DRAWS)), st.booleans(), st.sampled_from([None, "cpu", "meta"]))
def test_a_tensor_is_where_it_is_asked_for_else_where_its_generator_is_else_on_the_gpu(name, has_generator, device):
    make_tensors_on(GPU)
    options = {"generator": generator()} if has_generator else {}
    made = DRAWS[name](**options, **({} if device is None else {"device": device}))
    assert made.device.type == (device or ("cpu" if has_generator else GPU.type))


_INDICES, _VALUES = [[0, 1], [0, 1]], [1.0, 2.0]
_ROWS, _BLOCKS = [0, 1, 2], [[[1.0]], [[2.0]]]
ARGUMENTS: dict[str, tuple] = {
    "arange": (3,),
    "as_tensor": ([1, 2],),
    "asarray": ([1, 2],),
    "empty_quantized": ((4,),),
    "empty_permuted": ((2, 3), (1, 0)),
    "empty_strided": ((2, 3), (3, 1)),
    "eye": (3,),
    "full": ((2,), 1.0),
    "linspace": (0.0, 1.0, 3),
    "logspace": (0.0, 1.0, 3),
    "randint": (0, 9, (3,)),
    "scalar_tensor": (1.0,),
    "sparse_bsc_tensor": (_ROWS, [0, 1], _BLOCKS),
    "sparse_bsr_tensor": (_ROWS, [0, 1], _BLOCKS),
    "sparse_compressed_tensor": (_ROWS, [0, 1], _VALUES, (2, 2)),
    "sparse_coo_tensor": (_INDICES, _VALUES),
    "sparse_csc_tensor": (_ROWS, [0, 1], _VALUES),
    "sparse_csr_tensor": (_ROWS, [0, 1], _VALUES),
    "tensor": ([1.0],),
    "tril_indices": (3, 3),
    "triu_indices": (3, 3),
}  # of all others: one number, a size
OPTIONS: dict[str, dict[str, Any]] = {
    "empty_quantized": {"qtensor": torch.ones(1)},  # not quantized: refused by torch
    "sparse_compressed_tensor": {"layout": torch.sparse_csr},
}
CONTEXTS: dict[str, Callable[[], Any]] = {
    "none": nullcontext,
    "with torch.device": lambda: torch.device("cpu"),
    "set_default_device": lambda: torch.set_default_device("cpu") or nullcontext(),
    "set_default_device(None)": lambda: torch.set_default_device(None) or nullcontext(),
}


def where(name: str, device: str | None, context: str) -> Any:
    """The device of a function's result, or the type of its error."""
    owner = next(owner for owner, called in places().values() if called == name)
    options = OPTIONS.get(name, {}) | ({} if device is None else {"device": device})
    with CONTEXTS[context]():
        try:
            return getattr(owner, name)(*ARGUMENTS.get(name, (4,)), **options).device
        except (RuntimeError, NotImplementedError, ValueError) as error:
            return type(error)


NAMES = sorted(name for _, name in places().values())


@pytest.mark.filterwarnings("ignore")  # some functions are deprecated, and sparse layouts in beta
@given(st.sampled_from(NAMES), st.sampled_from([None, "cpu", "meta"]), st.sampled_from(sorted(CONTEXTS)))
def test_every_function_makes_its_tensor_where_it_would_under_torchs_own_default_device(name, device, context):
    torch.set_default_device(GPU)
    expected = where(name, device, context)
    make_tensors_on(GPU)
    assert num_function_modes() == 0 and where(name, device, context) == expected


def test_no_function_that_makes_tensors_is_left_out():
    unseen = {torch.nested.nested_tensor, torch.range}  # in torch's list, but its mode is never asked about them
    assert set(places()) == device_constructors() - unseen and len(factories()) == len(places())


def test_operators_are_called_as_without_a_default_device():
    add, linear = torch.add, torch.nn.functional.linear
    torch.set_default_device(GPU)
    make_tensors_on(GPU)
    assert num_function_modes() == 0 and torch.add is add and torch.nn.functional.linear is linear


def test_a_program_brings_the_functions_of_the_process_that_it_runs_in():
    """`launch` pickles a program where torch's functions are the original ones."""
    packed = pack([torch.ones, torch.fft.fftfreq])
    make_tensors_on(GPU)
    ones, fftfreq = unpack(packed)
    assert ones(1).device == GPU and (ones, fftfreq) == (torch.ones, torch.fft.fftfreq)
    assert pickle.loads(pickle.dumps([ones, fftfreq])) == [ones, fftfreq]


def test_threads_of_autograd_have_the_default_device_and_other_threads_of_the_program_do_not():
    found: queue.SimpleQueue[list[torch.device]] = queue.SimpleQueue()

    def look() -> None:
        found.put([torch.ones(1).device, torch.get_default_device()])

    make_tensors_on(GPU)
    threading.Thread(target=look).start()
    assert found.get(timeout=60) == [torch.device("cpu")] * 2
    _thread.start_new_thread(look, ())  # Python's threading does not know it, like one that C++ started
    assert found.get(timeout=60) == [GPU, GPU]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscript_compiles_functions_that_make_tensors():
    make_tensors_on(GPU)
    assert torch.jit.script(_scripted)(torch.zeros(2, device="cpu")).tolist() == [1.0, 1.0]


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(2)


SIX: Any = range(6)  # a data set, as torch takes it


def loaded(**options: Any) -> list[int]:
    return [i for batch in DataLoader(SIX, 2, shuffle=True, collate_fn=list, **options) for i in batch]


SHUFFLES: dict[str, Callable[[], list[int]]] = {
    "DistributedSampler": lambda: list(DistributedSampler(SIX, 2, 0, seed=4)),
    "RandomSampler": lambda: list(RandomSampler(SIX)),
    "RandomSampler with a generator": lambda: list(RandomSampler(SIX, generator=generator())),
    "SubsetRandomSampler": lambda: list(SubsetRandomSampler(SIX)),
    "WeightedRandomSampler": lambda: list(WeightedRandomSampler([1.0, 2.0], 6, generator=generator())),
    "random_split": lambda: [i for part in random_split(SIX, [2, 4]) for i in part.indices],
    "DataLoader": loaded,
    "DataLoader with a generator": lambda: loaded(generator=generator()),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_data_comes_in_the_order_in_which_it_comes_without_a_gpu(name):
    orders = []
    for device in (None, GPU):
        seed_rank(3)
        if device is not None:
            make_tensors_on(device)
        orders.append(SHUFFLES[name]())
    assert orders[0] == orders[1] and all(isinstance(i, int) for i in orders[1])


def test_a_loader_puts_its_batches_together_on_the_gpu():
    make_tensors_on(GPU)
    assert [batch.device for batch in DataLoader(SIX, 3)] == [GPU] * 2


class Devices:
    """A data set of the devices on which its process makes tensors."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[str]:
        return [torch.ones(1).device.type, str(torch.get_default_device())]


def test_a_forked_process_has_no_default_device_as_cuda_refuses_it():
    make_tensors_on(GPU)
    dataset: Any = Devices()
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context="fork")
    assert list(loader) == [["cpu", "cpu"]] and torch.ones(1).device == GPU


def test_the_programs_own_default_device_goes_before():
    make_tensors_on(GPU)
    assert torch.get_default_device() == GPU and torch.nn.Linear(1, 1).weight.device == GPU
    with torch.device("cpu"):
        assert torch.ones(1).device.type == "cpu" == torch.get_default_device().type
    assert torch.ones(1).device == GPU
    torch.set_default_device("cpu")
    assert torch.ones(1).device.type == "cpu" == torch.get_default_device().type


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_a_compiled_function_makes_its_tensors_there_too(device):
    def program() -> torch.Tensor:
        return torch.ones(3) + torch.nn.functional.pad(torch.zeros(2), (0, 1))

    make_tensors_on(device)
    torch.compiler.reset()
    assert torch.compile(program, backend="eager", fullgraph=True)().device == device
    torch.compiler.reset()


def test_every_rank_begins_on_its_own_gpu_and_draws_numbers_of_its_own(monkeypatch):
    chosen, generators = [], [torch.Generator() for _ in range(2)]
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    drawn = []
    for rank in (0, 1, 2, 3, 0):  # twice as many ranks as GPUs
        device = torch.device("cuda", rank % 2)
        begin_on_gpu(rank, device)
        assert chosen[-1] == torch.get_default_device() == device
        drawn.append(generators[rank % 2].initial_seed())
    assert drawn[0] == drawn[-1] == device_seed(0) and len(set(drawn)) == 4
