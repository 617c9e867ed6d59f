"""Checkpoints: saved at one stage on some ranks, loaded at another on others; nothing is half loaded where it fails."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch
from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adamw import AdamW
from lablib.parallel.zero.checkpoint import load_checkpoint, save_checkpoint
from lablib.parallel.zero.checkpoint_files import read_entries
from lablib.parallel.zero.module import Zero

SAMPLES = 12  # divides by 1 to 4 ranks
OPTIMIZERS = {
    "adamw": partial(AdamW, lr=0.01),
    "torch's adamw": partial(torch.optim.AdamW, lr=0.01),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
}


class Net(nn.Module):
    """Odd sizes, a frozen layer, a tied matrix and a buffer."""

    def __init__(self, width: int = 5, dtype: torch.dtype = torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(3))
        self.tied = nn.Linear(width, width, bias=False, dtype=dtype)
        self.tied.weight = self.layers[0].weight  # pyright: ignore[reportAttributeAccessIssue]
        self.register_buffer("count", torch.zeros((), dtype=dtype))
        for param in self.parameters():
            param.data = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(dtype) / 3
        self.layers[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        self.count += 1
        return self.tied(x)


def made(stage: int, optimizer: str, width: int = 5, **options) -> Zero:
    dtype = torch.float32 if options.get("param_dtype") else torch.float64
    return Zero(Net(width, dtype), OPTIMIZERS[optimizer], stage, **options)


def train(zero: Zero, steps: range, width: int = 5) -> None:
    for step in steps:
        x = torch.randn(SAMPLES, width, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        zero(
            x.chunk(dist.get_world_size())[dist.get_rank()].to(next(zero.module.buffers()).dtype)
        ).square().mean().backward()
        zero.step()
        zero.zero_grad()


def state(zero: Zero) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in zero.full_state_dict().items()}


def save(path: str, stage: int, optimizer: str, **options) -> dict[str, Tensor]:
    """Two steps, a checkpoint, and two steps more."""
    zero = made(stage, optimizer, **options)
    train(zero, range(2))
    save_checkpoint(zero, path, 2)
    train(zero, range(2, 4))
    return state(zero)


def go_on(path: str, stage: int, optimizer: str, **options) -> dict[str, Tensor]:
    """Another beginning, the checkpoint, and two steps more."""
    zero = made(stage, optimizer, **options)
    train(zero, range(7, 8))
    step = load_checkpoint(zero, path)
    assert step == 2
    train(zero, range(step, 4))
    return state(zero)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], is_exact: bool) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        if is_exact:
            assert torch.equal(found[name], wanted[name]), name
        else:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("stage", "optimizer"), list(zip((1, 2, 3), OPTIMIZERS, strict=True)))
def test_training_goes_on_to_the_bit_at_the_same_stage_on_as_many_ranks(tmp_path, stage, optimizer):
    straight = launch(save, str(tmp_path), stage, optimizer, ranks=3).values
    for found, wanted in zip(launch(go_on, str(tmp_path), stage, optimizer, ranks=3).values, straight, strict=True):
        assert_same(found, wanted, is_exact=True)


@settings(max_examples=6, deadline=None)
@given(
    stages=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    ranks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    bucket_bytes=st.sampled_from([40, 200, 10**6]),
    optimizer=st.sampled_from(list(OPTIMIZERS)),
)
def test_another_stage_on_other_ranks_goes_on_with_it(tmp_path_factory, stages, ranks, bucket_bytes, optimizer):
    path = str(tmp_path_factory.mktemp("checkpoint"))
    options = [
        {} if stage == 3 else {"bucket_bytes": size} for stage, size in zip(stages, (100, bucket_bytes), strict=True)
    ]
    straight = launch(partial(save, **options[0]), path, stages[0], optimizer, ranks=ranks[0]).values[0]
    for found in launch(partial(go_on, **options[1]), path, stages[1], optimizer, ranks=ranks[1]).values:
        assert_same(found, straight, is_exact=False)


@pytest.mark.parametrize("stage", [2, 3])
def test_mixed_precision_goes_on_from_its_master_parameters(tmp_path, stage):
    options = {"param_dtype": torch.bfloat16}
    straight = launch(partial(save, **options), str(tmp_path), stage, "torch's adamw", ranks=2).values
    found = launch(partial(go_on, **options), str(tmp_path), stage, "torch's adamw", ranks=2).values
    assert_same(found[0], straight[0], is_exact=True)


def test_gloo_loads_what_the_simulator_saved_and_the_other_way(tmp_path):
    for number, (saver, loader) in enumerate((("sim", "gloo"), ("gloo", "sim"))):
        path = str(tmp_path / str(number))
        straight = launch(save, path, 3, "adamw", ranks=2, backend=saver).values[0]
        found = launch(go_on, path, 2, "adamw", ranks=2, backend=loader).values[0]
        assert_same(found, straight, is_exact=False)


def test_every_rank_writes_its_own_pieces_alone(tmp_path):
    launch(save, str(tmp_path), 3, "adamw", ranks=3)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.distcp"))]
    assert len(sizes) == 3 and max(sizes) < 0.6 * sum(sizes)


# ---- what fails changes nothing ----


def refused(path: str, stage: int, optimizer: str, width: int = 5) -> str:
    """The error, the same on every rank; the module, the optimizer and its settings are what they were."""
    zero = made(stage, optimizer, width)
    train(zero, range(7, 8), width)
    before, tensors = state(zero), [zero.optimizer.state_dict()["state"]]
    tensors = [value.clone() for each in tensors[0].values() for value in each.values() if isinstance(value, Tensor)]
    with pytest.raises(ValueError) as caught:
        load_checkpoint(zero, path)
    assert_same(state(zero), before, is_exact=True)
    after = zero.optimizer.state_dict()["state"].values()
    after = [value for each in after for value in each.values() if isinstance(value, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(tensors, after, strict=True))
    train(zero, range(8, 9), width)  # and training goes on
    return str(caught.value)


@pytest.mark.parametrize(
    ("optimizer", "width", "message"),
    [
        ("adamw", 6, "same module: .* has the shape (5, 5) there, and (6, 6) here"),
        ("sgd", 5, "of the same optimizer: it was 'AdamW', and is 'SGD' here"),
    ],
)
def test_a_checkpoint_of_another_module_or_optimizer_is_refused(tmp_path, optimizer, width, message):
    launch(save, str(tmp_path), 2, "adamw", ranks=2)
    for text in launch(refused, str(tmp_path), 3, optimizer, width, ranks=2).values:
        assert all(part in text for part in message.split(".*"))


def test_a_module_with_another_parameter_is_refused_by_its_name(tmp_path):
    launch(save, str(tmp_path), 2, "sgd", ranks=2)

    def program() -> None:
        net = Net()
        net.extra = nn.Linear(2, 2, dtype=torch.float64)
        load_checkpoint(Zero(net, OPTIMIZERS["sgd"], 2), str(tmp_path))

    with pytest.raises(RankError, match="extra.bias is in the module only"):
        launch(program, ranks=2)


def damage(path: Path, how: str) -> None:
    largest = max(path.glob("*.distcp"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    if how == "gone":
        largest.unlink()
    elif how == "cut off":
        largest.write_bytes(data[: len(data) // 2])
    elif how == "no metadata":
        (path / ".metadata").write_bytes(b"nothing")
    else:  # a byte of a tensor's numbers: the bytes of a weight that is known
        weight = launch(saved_weight, ranks=1).values[0].numpy().tobytes()
        place = next(file for file in path.glob("*.distcp") if weight in file.read_bytes())
        data = bytearray(place.read_bytes())
        data[data.index(weight) + 3] ^= 1
        place.write_bytes(data)


def saved_weight() -> Tensor:
    zero = made(2, "adamw")
    train(zero, range(2))
    return zero.full_state_dict()["layers.1.weight"]


@pytest.mark.parametrize("how", ["gone", "cut off", "no metadata", "a byte"])
def test_a_damaged_checkpoint_is_refused_on_every_rank(tmp_path, how):
    launch(save, str(tmp_path), 2, "adamw", ranks=2)
    damage(tmp_path, how)
    texts = launch(refused, str(tmp_path), 3, "adamw", ranks=3).values
    assert len(set(texts)) == 1 and ("damaged" in texts[0] or "no checkpoint that can be read" in texts[0])


@settings(max_examples=12, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255))
def test_one_changed_byte_of_the_description_is_refused_on_every_rank(saved_once, share, flipped):
    """A setting, a count of steps or a dtype with a turned bit is as plausible as what was saved."""
    file, start, length = saved_once
    whole = file.read_bytes()
    at = start + int(share * length)
    file.write_bytes(whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :])
    try:
        texts = launch(refused, str(file.parent), 3, "adamw", ranks=2).values
    finally:
        file.write_bytes(whole)
    assert len(set(texts)) == 1 and "is damaged: its " in texts[0]


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory) -> tuple[Path, int, int]:
    """A checkpoint: the file with its description, where that begins there, and its length."""
    path = tmp_path_factory.mktemp("checkpoint")
    launch(save, str(path), 2, "adamw", ranks=2)
    [found] = launch(lambda: read_entries({"meta": b""}, path)["meta"], ranks=1).values
    found = found.decode("latin-1").encode()  # as torch writes bytes
    [file] = [each for each in path.glob("*.distcp") if found in each.read_bytes()]
    return file, file.read_bytes().index(found), len(found)


def test_a_list_of_entries_with_another_name_is_refused(tmp_path):
    launch(save, str(tmp_path), 2, "adamw", ranks=2)
    listed = tmp_path / ".metadata"
    listed.write_bytes(listed.read_bytes().replace(b"exp_avg/layers.2.bias/0", b"exp_avg/layers.2.bias/8"))
    [text, _] = launch(refused, str(tmp_path), 3, "adamw", ranks=2).values
    assert "is damaged: 'exp_avg/layers.2.bias/0' was saved and is not listed" in text


def test_bad_places_and_optimizers_get_one_clear_error(tmp_path):
    def twice() -> None:
        zero = made(1, "sgd")
        save_checkpoint(zero, tmp_path / "one", 0)
        assert load_checkpoint(zero, tmp_path / "one") == 0  # before the first step there is no state
        save_checkpoint(zero, tmp_path / "one", 1)

    def nowhere() -> None:
        load_checkpoint(made(1, "sgd"), tmp_path / "nowhere")

    def other(make) -> None:
        zero = Zero(Net(), make, 2)
        train(zero, range(1))
        save_checkpoint(zero, tmp_path / "other", 1)

    def two_groups(params: list) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": params}, {"params": [nn.Parameter(torch.ones(1))]}], lr=0.1)

    for program, args, message in (
        (twice, (), "a checkpoint needs a new folder"),
        (nowhere, (), "there is no checkpoint that can be read in"),
        (other, (partial(Adam8bit, block_size=8, min_8bit_size=0),), "a checkpoint cuts the optimizer's state"),
        (other, (two_groups,), "a checkpoint keeps one group of settings: got 2"),
    ):
        with pytest.raises(RankError, match=message):
            launch(program, *args, ranks=2)
