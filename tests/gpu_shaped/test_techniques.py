"""What lablib ships runs where the default device is a GPU: no tensor meets one, or a generator, of another place.

Twice: on the simulated GPU, which has values; and on "meta", whose tensors are another device to torch itself, with a
mode that compares the devices of every operator's tensors.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lablib import launch
from lablib.batches import accumulation
from lablib.batches.packing import fill_blocks, first_fit
from lablib.data import Corpus, batches
from lablib.data.loading.loader import Loader
from lablib.data.loading.measured_loop import measure_loop
from lablib.data.token_file import encode_to_file, open_tokens
from lablib.data.tokenizer import train_tokenizer
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.optim import effects
from lablib.parallel import ContextParallel, gathered_attention, ring_attention, ulysses_attention
from lablib.precision.formats import BF16
from lablib.precision.loss_scaling import LossScaler
from lablib.precision.running_sum import running_sum
from lablib.process.default_device import make_tensors_of_the_process_on
from lablib.studies.optimizer_trial import Training, kinds
from lablib.studies.precision import RECIPE_NAMES, model_in
from lablib.torch_compat import TorchDispatchMode, tree_leaves

CONFIG = GPTConfig(num_layers=2, d_model=32, num_heads=2, vocab_size=256, max_seq_len=16)
TEXT = Corpus("text", torch.arange(4096).remainder(251).to(torch.uint8), 4096, "", "made here")
META = torch.device("meta")


def on_gpu(program: Callable[..., Any], *args: Any, ranks: int = 1) -> list[Any]:
    return launch(program, *args, ranks=ranks, device="cuda").values


@pytest.mark.parametrize("name", kinds(32))
def test_every_optimizer_trains(name: str):
    def program() -> float:
        training = Training(GPT(CONFIG), name, lr=1e-2, weight_decay=0.1)
        stream = batches(TEXT, 4, 16)
        return [training.step(*next(stream)) for _ in range(3)][-1]

    (loss,) = on_gpu(program)
    assert 0 < loss < 6


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_every_recipe_of_low_precision_trains(recipe: str):
    def program() -> str:
        model = model_in(recipe)
        inputs, targets = next(batches(TEXT, 8, 16))
        next_token_loss(model(inputs), targets).backward()
        return str({param.grad.device for param in model.parameters() if param.grad is not None})

    assert on_gpu(program) == ["{device(type='cuda', index=0)}"]


def test_tokens_are_written_and_read_in_the_hosts_memory(tmp_path: Path):
    tokenizer = train_tokenizer(["one two three two"], 260)

    def program() -> list[str]:
        encode_to_file(tmp_path / "t.bin", ["one two", "two three"], tokenizer)
        file = open_tokens(tmp_path / "t.bin", tokenizer)
        return [str(tokens.device) for tokens in (file.tokens, *tokenizer.encode_many(["one"]))]

    assert on_gpu(program) == [["cpu", "cpu"]]


def uneven(rank: int) -> list[Any]:
    """Two micro-batches, as `accumulate` takes them."""
    stream = batches(TEXT, 2, 8, seed=rank)
    return [next(stream) for _ in range(2)]


def step_with_a_scaler(default_device: bool) -> bool:
    """One step on two ranks that agree whether it overflowed; also in a program that names its device everywhere."""
    here = torch.get_default_device()
    model = nn.Linear(2, 1)
    if not default_device:
        torch.set_default_device("cpu")
    scaler, optimizer = LossScaler(), torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(model(torch.ones(1, 2, device=here)).sum()).backward()
    overflow = scaler.unscale_(optimizer)
    scaler.step(optimizer)
    return overflow


@pytest.mark.parametrize("default_device", [True, False])
def test_ranks_agree_on_an_overflow_where_their_gradients_are(default_device: bool):
    assert on_gpu(step_with_a_scaler, default_device, ranks=2) == [False, False]


SMALL: dict[str, Callable[[], Any]] = {
    "accumulation": lambda: accumulation.accumulate(GPT(CONFIG), uneven(0)),
    "packing": lambda: fill_blocks(
        [torch.arange(3), torch.arange(2, device="cpu")], first_fit([3, 2], 8)
    ).tokens.tolist(),
    "steps of an optimizer": lambda: effects.mean_steps([0.5], num_numbers=32, num_steps=8),
    "a running sum of the host": lambda: running_sum(256.0, torch.ones(4, device="cpu"), BF16).tolist(),
    "a running sum of the device": lambda: running_sum(256.0, torch.ones(4), BF16).tolist(),
    "a measured loop": lambda: len(measure_loop(Loader(workers=0), [0.0, 0.0], [0.0, 0.0]).batches),
}


@pytest.mark.parametrize("name", SMALL)
def test_it_gives_on_a_gpu_what_it_gives_on_the_host(name: str):
    on_host = launch(SMALL[name], ranks=1).values
    assert (
        on_gpu(SMALL[name]) == pytest.approx(on_host)
        if isinstance(on_host[0], float)
        else on_gpu(SMALL[name]) == on_host
    )


# ---- on "meta", where torch itself tells the devices apart ----


class SameDevice(TorchDispatchMode):
    """Refuses an operator whose tensors, but for single numbers, are on several devices. Copies may, and indices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor) and t.dim()]
        devices = {t.device.type for t in given}
        if len(devices) > 1 and func.overloadpacket not in (torch.ops.aten.copy_, torch.ops.aten.index):
            raise RuntimeError(f"{func} got tensors on {sorted(devices)}")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def gpu_is_meta(gives_back_the_default_device: None) -> Iterator[None]:
    make_tensors_of_the_process_on(META)
    with SameDevice():
        yield


def test_the_mode_sees_a_tensor_of_another_place(gpu_is_meta: None):
    with pytest.raises(RuntimeError, match="got tensors on"):
        torch.add(torch.ones(2), torch.ones(2, device="cpu"))


def test_a_training_step_has_all_its_tensors_in_one_place(gpu_is_meta: None):
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    inputs, targets = next(batches(TEXT, 2, 16))
    next_token_loss(model(inputs), targets).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert {param.device for param in model.parameters()} == {inputs.device} == {META}


@pytest.mark.parametrize("plan", ["GPT_PLAN", "GPT_SEQUENCE_PLAN"])
def test_a_gpt_that_is_cut_trains_and_its_norm_is_where_it_is(plan: str):
    from lablib import parallel

    def program() -> str:
        model = parallel.parallelize(GPT(CONFIG), plan=getattr(parallel, plan))
        tokens = torch.arange(16).view(1, 16)
        parallel.vocabulary_parallel_loss(model(tokens), tokens, CONFIG.vocab_size).backward()
        assert not parallel.wrong_draws(model)
        x = parallel.dropout(torch.ones(8), 0.5, parallel.TensorGenerators(0).own)
        return f"{parallel.gradient_norm(model).device} {x.device}"

    assert on_gpu(program, ranks=2) == ["cuda:0 cuda:0", "cuda:1 cuda:1"]


def test_a_product_in_chunks_runs_on_a_gpu():
    from lablib import parallel

    def program() -> str:
        rank_of = torch.ones(1, 2, 4, requires_grad=True)
        shard = parallel.MLPShard(torch.ones(3, 4, requires_grad=True), torch.ones(3), torch.ones(4, 3), torch.ones(4))
        parallel.async_mlp(rank_of, shard).sum().backward()
        assert rank_of.grad is not None
        return rank_of.grad.device.type

    assert on_gpu(program, ranks=2) == ["cuda", "cuda"]


def test_ranks_that_share_sequences_attend_by_every_way():
    documents = [[0] * 9 + [1] * 7]

    def program() -> list[float]:
        losses = []
        for attention in (ring_attention, gathered_attention, ulysses_attention):
            context = ContextParallel(attention=attention)
            model = context.parallelize(GPT(CONFIG))
            tokens = torch.zeros(1, 16, dtype=torch.long)
            own, targets = context.shard(tokens, tokens, documents_BT=torch.tensor(documents))
            loss = context.loss(model(own), targets)
            loss.backward()
            losses.append(loss.item())
        return losses

    for losses in on_gpu(program, ranks=2):
        assert max(losses) - min(losses) < 1e-5
