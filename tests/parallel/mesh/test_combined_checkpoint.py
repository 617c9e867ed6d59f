"""Checkpoints of a step on a mesh, loaded on another: the same to the bit, and training goes on as on one device."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import RankError, launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import Combination, CombinedStep, Mesh, Zero
from lablib.parallel.mesh.checkpoint import boxes_of_run, load_checkpoint, save_checkpoint
from lablib.parallel.zero.checkpoint import load_checkpoint as load_zero
from lablib.parallel.zero.checkpoint import save_checkpoint as save_zero
from lablib.precision.loss_scaling import LossScaler, ScaleRule

SLOWER = pytest.mark.thorough
CONFIG = GPTConfig(3, 8, 4, vocab_size=13, max_seq_len=8, d_ff=9)  # 13 words, 9 wide: 2 and 4 ranks do not divide them
ADAM = partial(torch.optim.AdamW, lr=0.01)
Full = dict[str, dict[str, Tensor]]


def how(config: GPTConfig = CONFIG, zero_stage: int = 1, **sizes: int) -> Combination:
    options: dict[str, Any] = {"num_micro_batches": 2, "sequence_parallel": True, "uneven_vocabulary": "pad"}
    if sizes.get("pipeline") == 3:
        options["uneven_vocabulary"] = "chunk"
    return Combination(config, Mesh(**sizes), 8, 8, zero_stage=zero_stage, **options)


def batch(number: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, 13, (8, 9), generator=torch.Generator().manual_seed(number))
    return drawn[:, :-1].clone(), drawn[:, 1:].clone()


def made(combination: Combination, seed: int = 0, optimizer_fn: Any = ADAM) -> CombinedStep:
    return CombinedStep(combination, optimizer_fn, max_norm=0.5, seed=seed, dtype=torch.float64)


def full(step: CombinedStep) -> Full:
    states = {key: step.full_optimizer_state(key) for key in ("exp_avg", "exp_avg_sq")}
    return {"parameters": {name: p.clone() for name, p in step.full_parameters().items()}} | states


def save(combination: Combination, path: str) -> Full:
    step = made(combination)
    for number in range(2):
        step(*batch(number))
    save_checkpoint(step, path, 2)
    return full(step)


def go_on(combination: Combination, path: str) -> tuple[Full, Full]:
    """Another beginning, what the checkpoint makes of it, and two steps more."""
    step = made(combination, seed=1)
    step(*batch(7))
    num_steps = load_checkpoint(step, path)
    assert num_steps == 2
    loaded = full(step)
    for number in range(num_steps, 4):
        step(*batch(number))
    return loaded, full(step)


def one_device(steps: int) -> dict[str, Tensor]:
    model = GPT(CONFIG, dtype=torch.float64)
    optimizer = ADAM(model.parameters())
    for number in range(steps):
        tokens, targets = batch(number)
        optimizer.zero_grad()
        next_token_loss(model(tokens), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return {name: param.detach() for name, param in model.named_parameters()}


def assert_goes_on(before: dict[str, int], after: dict[str, int], path: str) -> None:
    first, second = how(CONFIG, **before), how(CONFIG, **after)
    saved = launch(save, first, path, ranks=first.mesh.num_ranks, trace=False).values[0]
    wanted = one_device(4)
    for loaded, later in launch(go_on, second, path, ranks=second.mesh.num_ranks, trace=False).values:
        for part, tensors in saved.items():
            assert loaded[part].keys() == tensors.keys() == wanted.keys()
            for name, tensor in tensors.items():
                assert torch.equal(loaded[part][name], tensor), (part, name)
        torch.testing.assert_close(later["parameters"], wanted, rtol=1e-7, atol=1e-9)  # Adam divides by small numbers


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"data": 2, "pipeline": 2, "tensor": 2}, {"tensor": 4, "data": 2}),
        ({"context": 2, "pipeline": 3}, {"data": 4, "tensor": 2}),
        ({"data": 2, "tensor": 2, "zero_stage": 3}, {"context": 2, "data": 2, "zero_stage": 2}),
        pytest.param({"tensor": 2}, {"pipeline": 2, "data": 2, "context": 2}, marks=SLOWER),
        pytest.param({"tensor": 4}, {"pipeline": 1}, marks=SLOWER),
        pytest.param({"pipeline": 1}, {"data": 4, "pipeline": 2, "tensor": 2}, marks=SLOWER),
    ],
    ids=str,
)
def test_another_mesh_has_the_same_state_to_the_bit_and_goes_on_as_one_device(before, after, tmp_path):
    assert_goes_on(before, after, str(tmp_path))


SIZES = st.fixed_dictionaries(
    {
        "data": st.sampled_from([1, 2, 4]),
        "context": st.sampled_from([1, 2]),
        "pipeline": st.sampled_from([1, 2, 3]),
        "tensor": st.sampled_from([1, 2]),
    }
)


@SLOWER
@given(before=SIZES, after=SIZES)
@settings(max_examples=6, deadline=None)
def test_any_mesh_loads_from_any(before, after, tmp_path_factory):
    assert_goes_on(before, after, str(tmp_path_factory.mktemp("checkpoint")))


@SLOWER
def test_real_processes_load_what_simulated_ranks_saved(tmp_path):
    first, second = how(data=2, pipeline=2), how(pipeline=2, tensor=2)
    launch(save, first, str(tmp_path), ranks=4)
    wanted = one_device(4)
    for _, later in launch(go_on, second, str(tmp_path), ranks=4, backend="gloo").values:
        torch.testing.assert_close(later["parameters"], wanted, rtol=1e-7, atol=1e-9)


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), data=st.data())
def test_a_run_of_numbers_is_its_boxes(shape: tuple[int, ...], data: st.DataObject):
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    start = data.draw(st.integers(0, whole.numel() - 1))
    numel = data.draw(st.integers(1, whole.numel() - start))
    boxes = boxes_of_run(shape, start, numel)
    found = [
        whole[tuple(slice(at, at + size) for at, size in zip(box.corner, box.sizes, strict=True))].flatten()
        for box in boxes
    ]
    assert torch.cat(found).tolist() == list(range(start, start + numel))
    assert len(boxes) <= 2 * len(shape) - 1


def test_a_loss_scale_goes_on_where_it_was(tmp_path):
    combination = how(pipeline=2)

    def program(initial: float, is_saved: bool) -> float:
        scaler = LossScaler(ScaleRule(initial, interval=1))
        step = CombinedStep(combination, ADAM, scaler=scaler)
        if is_saved:
            step(*batch(0))
            save_checkpoint(step, tmp_path, 1)
        else:
            load_checkpoint(step, tmp_path)
        return scaler.loss_scale

    assert launch(program, 8.0, True, ranks=2, trace=False).values == [16.0, 16.0]
    assert launch(program, 2.0, False, ranks=2, trace=False).values == [16.0, 16.0]


# ---- what is refused ----


def damage(path: Path) -> None:
    file = max(path.glob("*.distcp"), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    half = len(content) // 2
    content[half : half + 400] = bytes(byte ^ 1 for byte in content[half : half + 400])
    file.write_bytes(content)


def test_what_cannot_be_loaded_is_refused_on_all_ranks_and_changes_nothing(tmp_path):
    combination = how(data=2, tensor=2)
    path, of_zero = tmp_path / "mesh", tmp_path / "zero"
    launch(save, combination, str(path), ranks=4, trace=False)

    def program() -> list[str]:
        """What is said of each; the state is compared after all of them."""
        found: list[str] = []

        def refused(step: CombinedStep, path: Path) -> None:
            before = full(step)
            with pytest.raises(ValueError) as error:
                load_checkpoint(step, path)
            found.append(str(error.value))
            for part, tensors in full(step).items():
                assert all(torch.equal(tensor, before[part][name]) for name, tensor in tensors.items())

        step = made(combination, seed=1)
        step(*batch(7))
        refused(step, tmp_path / "nowhere")
        zero = Zero(torch.nn.Linear(2, 2), ADAM, 1)
        save_zero(zero, of_zero, 0)
        refused(step, of_zero)
        with pytest.raises(ValueError, match="did not write"):
            load_zero(zero, path)
        other = made(how(GPTConfig(3, 8, 2, vocab_size=13, max_seq_len=8, d_ff=9), data=2, tensor=2))
        other(*batch(7))
        refused(other, path)
        with pytest.raises(ValueError) as error:
            load_checkpoint(made(combination, optimizer_fn=partial(torch.optim.SGD, lr=0.1)), path)
        found.append(str(error.value))
        with pytest.raises(ValueError, match="needs a new folder"):
            save_checkpoint(step, path, 3)
        return found

    for found in launch(program, ranks=4, trace=False).values:
        assert "there is no checkpoint that can be read" in found[0]
        assert "that save_checkpoint did not write" in found[1]
        assert "must be of the same model: num_heads is 4 there, and 2 here" in found[2]
        assert "must be of the same optimizer: it was 'AdamW', and is 'SGD' here" in found[3]


@pytest.mark.parametrize("what", ["tensors", "description"])
def test_a_damaged_checkpoint_is_refused_on_all_ranks(tmp_path, what):
    launch(save, how(tensor=2), str(tmp_path), ranks=2, trace=False)
    if what == "tensors":
        damage(tmp_path)
    else:
        [file] = [one for one in tmp_path.glob("*.distcp") if b"weight_decay" in one.read_bytes()]
        file.write_bytes(file.read_bytes().replace(b"weight_decay", b"weight_Decay"))
    with pytest.raises(RankError, match="damaged"):
        launch(go_on, how(pipeline=2), str(tmp_path), ranks=2, trace=False)
