"""The trainer on every kind of parallelism: gradients of one device, one curve, exact resume, a learner's parts."""

import hashlib
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from lablib import RankError, launch, train
from lablib.data import Batch, Corpus, ResumableBatches
from lablib.parallel import Mesh
from lablib.precision.loss_scaling import LossScaler, ScaleRule

EXACT: Any = {"rtol": 1e-9, "atol": 1e-13}
SLOWER = pytest.mark.thorough
BASE = {
    "model": {"num_layers": 2, "d_model": 16, "num_heads": 4, "max_seq_len": 16},
    "data": {"seq_len": 16, "batch_size": 8, "micro_batch": 2},
    "precision": {"parameters": "float64"},
}
SGD = {"name": "sgd", "lr": 0.1}
LLAMA = ["model.family=llama", "model.num_kv_heads=2", "model.rope_base=100.0"]


def config_of(*overrides: str, **optimizer: Any) -> train.TrainConfig:
    return train.parse_config(train.with_overrides({**BASE, "optimizer": optimizer or SGD}, overrides))


def text() -> Corpus:
    """Real text without a cache: the source of a module."""
    content = Path(os.__file__).read_bytes()
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return Corpus("os.py", tokens, len(content), hashlib.sha256(content).hexdigest(), "standard library")


def loader_of(config: train.TrainConfig, corpus: Corpus) -> ResumableBatches:
    """This rank's batches of a text, as `make_loader` has them of a corpus."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if config.parallel.is_mesh:
        rank, ranks = 0, 1
    return ResumableBatches(corpus, config.data.batch_size, config.data.seq_len, 0, rank, ranks)


def curve(config: train.TrainConfig, corpus: Corpus, num_steps: int = 6) -> list[tuple[float, float]]:
    """Loss and norm of each step."""
    found: list[Any] = []
    trainer = train.build(config, loader=loader_of(config, corpus), on_step=[found.append])
    trainer.train(num_steps)
    return [(one["loss"], one["grad_norm"]) for one in found]


# ---- gradients ----


def padded_batch(config: train.TrainConfig) -> Batch:
    """Random tokens; sequences end after different numbers of tokens, some at once."""
    sizes, generator = config.data, torch.Generator().manual_seed(3)
    drawn = torch.randint(0, 256, (sizes.batch_size, sizes.seq_len + 1), generator=generator)
    targets = drawn[:, 1:].clone()
    for row in range(sizes.batch_size):
        targets[row, (0, 0, 5, 1, 16, 7, 9, 3)[row % 8] :] = -100
    return Batch(drawn[:, :-1].contiguous(), targets)


def gradients(config: train.TrainConfig, scale: float) -> tuple[float, int, dict[str, Tensor]]:
    """Loss, number of tokens and whole gradients of the padded batch."""
    config = config.on(dist.get_world_size())
    step = train.make_step(config, train.make_model(config), train.make_optimizer(config.optimizer), None)
    batch = padded_batch(config)
    if not isinstance(step, train.MeshStep):
        batch = Batch(*(tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in batch))
    loss, num_tokens = step.backward(batch, scale)
    if isinstance(step, train.MeshStep):
        found = step.combined.full_gradients()
    elif isinstance(step, train.ZeroStep):
        found = step.zero.full_gradients()
    else:
        assert isinstance(step, train.ReplicaStep)
        named = [(name.removeprefix("module."), param.grad) for name, param in step.model.named_parameters()]
        found = {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in named}
    if config.parallel.expert > 1 and not config.parallel.is_mesh:
        spread = Mesh(data=config.parallel.data or 1, expert=config.parallel.expert).group("expert")
        for name in [name for name in found if ".experts." in name]:
            parts: list[Any] = [None] * config.parallel.expert
            dist.all_gather_object(parts, found[name], group=spread)
            found[name] = torch.cat(parts)
    return loss.item(), int(num_tokens), found  # pyright: ignore[reportReturnType]


def assert_is_one_device(config: train.TrainConfig, ranks: int) -> None:
    model, batch = train.make_model(config), padded_batch(config)
    logits = model(batch.inputs).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, batch.targets.flatten(), ignore_index=-100)
    loss.backward()
    wanted = {name: 8 * param.grad for name, param in model.named_parameters() if param.grad is not None}
    for found_loss, num_tokens, found in launch(gradients, config, 8.0, ranks=ranks, trace=False).values:
        assert found_loss == pytest.approx(loss.item(), rel=1e-12)
        assert num_tokens == int((batch.targets != -100).sum())
        torch.testing.assert_close(found, wanted, **EXACT)


@pytest.mark.parametrize(
    ("overrides", "ranks"),
    [
        ([], 1),
        ([], 2),
        (["parallel.library=torch"], 2),
        (["parallel.zero_stage=1"], 1),
        (["parallel.zero_stage=1"], 2),
        (["parallel.zero_stage=2"], 4),
        (["parallel.zero_stage=3", "memory.recompute=full"], 2),
        pytest.param(["parallel.zero_stage=2", "parallel.library=torch"], 2, marks=SLOWER),
        (["parallel.zero_stage=3", "parallel.library=torch", "memory.recompute=selective"], 2),
        (["model.num_experts=4"], 2),
        (["model.num_experts=4", "parallel.expert=2"], 4),
        (["parallel.tensor=2", "parallel.sequence_parallel=true"], 4),
        (["parallel.pipeline=2"], 4),
        (["parallel.context=2"], 4),
        (["parallel.tensor=2", "parallel.pipeline=2", "memory.recompute=full"], 8),
        (LLAMA, 2),
        pytest.param([*LLAMA, "parallel.library=torch"], 2, marks=SLOWER),
        pytest.param([*LLAMA, "parallel.zero_stage=1"], 2, marks=SLOWER),
        pytest.param([*LLAMA, "parallel.zero_stage=2"], 2, marks=SLOWER),
        ([*LLAMA, "parallel.zero_stage=3", "memory.recompute=full"], 2),
        ([*LLAMA, "parallel.zero_stage=3", "parallel.library=torch", "memory.recompute=selective"], 2),
        ([*LLAMA, "parallel.tensor=2", "parallel.context=2", "parallel.sequence_parallel=true"], 4),
        ([*LLAMA, "parallel.tensor=2", "parallel.pipeline=2", "model.head_dim=6"], 4),
        pytest.param([*LLAMA, "parallel.pipeline=2", "model.tied_head=true"], 4, marks=SLOWER),
        pytest.param([*LLAMA, "model.num_experts=4"], 2, marks=SLOWER),
        ([*LLAMA, "model.num_experts=4", "parallel.expert=2"], 4),
        ([*LLAMA, "model.num_experts=4", "parallel.expert=2", "parallel.tensor=2", "parallel.context=2"], 8),
        (["model.num_experts=4", "parallel.expert=2", "parallel.tensor=2", "parallel.sequence_parallel=true"], 4),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else str(one),
)
def test_gradients_of_padded_batches_are_those_of_one_device(overrides: list[str], ranks: int):
    assert_is_one_device(config_of(*overrides), ranks)


@given(data=st.data())
@settings(max_examples=5)
def test_drawn_settings_have_the_gradients_of_one_device(data: Any):
    axes = {axis: data.draw(st.sampled_from([1, 1, 2])) for axis in ("tensor", "pipeline", "context")}
    replicas, micro = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(1, 2))
    parallel: dict[str, Any] = {**axes, "data": replicas}
    if math.prod(axes.values()) == 1:
        parallel |= {"zero_stage": data.draw(st.integers(0, 3)), "library": "lablib"}
    sizes = {"batch_size": replicas * micro * data.draw(st.integers(1, 3)), "micro_batch": micro, "seq_len": 16}
    tables = {**BASE, "optimizer": SGD, "parallel": parallel, "data": sizes}
    if sizes["batch_size"] < 3:
        tables["data"] = sizes = {**sizes, "batch_size": replicas * micro * 3}  # the first two rows are padding
    assert_is_one_device(train.parse_config(tables), replicas * math.prod(axes.values()))


@given(stage=st.integers(1, 3), mesh=st.sampled_from([(1, 2), (2, 2), (1, 3), (3, 2)]), data=st.data())
@settings(max_examples=6)
def test_drawn_shards_of_spread_experts_have_the_gradients_of_one_device(stage: int, mesh: tuple[int, int], data: Any):
    """The state of experts is cut over data, everything else over data and expert ranks."""
    replicas, expert = mesh
    parallel: dict[str, Any] = {"zero_stage": stage, "data": replicas, "expert": expert}
    parallel["bucket_bytes"] = data.draw(st.sampled_from([1, 20_000, 2**20]))
    sizes = {"batch_size": 2 * replicas * expert * data.draw(st.integers(1, 3)), "micro_batch": 2, "seq_len": 16}
    tables = {**BASE, "optimizer": SGD, "parallel": parallel, "data": sizes}
    sizes = {
        "num_experts": expert * data.draw(st.integers(1, 2)),
        "family": data.draw(st.sampled_from(["gpt", "llama"])),
    }
    tables["model"] = {**BASE["model"], **sizes}
    tables["memory"] = {"recompute": data.draw(st.sampled_from(["none", "full"]))}
    assert_is_one_device(train.parse_config(tables), replicas * expert)


UNITS = [[], ["parallel.zero_stage=3"], ["parallel.zero_stage=3", "parallel.library=torch"], ["parallel.tensor=2"]]


@pytest.mark.parametrize("overrides", UNITS, ids=lambda one: " ".join(one))
def test_each_layer_is_recomputed_and_gathered_by_itself(overrides: list[str]):
    """No policy by names of classes, which could match none without an error."""
    corpus, layers = text(), [*overrides, "model.num_layers=4"]
    configs = [config_of(*layers, f"memory.recompute={one}") for one in ("none", "full")]
    kept, recomputed = (launch(curve, config, corpus, 1, ranks=2) for config in configs)
    peaks = [max(run.memory.curve(0)[1]["activation"]) for run in (kept, recomputed)]
    flops = [sum(span.flops for span in run.timeline.select(0, "compute")) for run in (kept, recomputed)]
    assert peaks[1] < peaks[0] / 2 and flops[1] > 1.1 * flops[0]
    num_gathers = sum("gather" in transfer.name for transfer in kept.traffic.transfers)
    assert num_gathers >= (2 * 4 if configs[0].parallel.zero_stage == 3 else 0)


# ---- curves ----


def test_a_run_on_real_text_has_the_same_curve_on_1_2_and_4_ranks():
    options: dict[str, Any] = {"name": "adamw", "lr": 1e-2, "max_norm": 1.0, "schedule": "cosine", "num_warmup": 2}
    corpus = text()
    (reference,) = launch(curve, config_of(**options), corpus, 10, ranks=1, trace=False).values
    losses, norms = zip(*reference, strict=True)
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)  # knows nothing
    assert losses[-1] < losses[0] - 1 and max(norms) > 1  # learns, and is clipped
    for overrides, ranks in (
        (["parallel.zero_stage=2"], 2),
        (["parallel.zero_stage=3", "parallel.library=torch"], 2),
        ([], 4),
        (["parallel.tensor=2"], 4),
        (["parallel.pipeline=2", "parallel.context=2"], 4),
    ):
        for found in launch(curve, config_of(*overrides, **options), corpus, 10, ranks=ranks, trace=False).values:
            assert found == [pytest.approx(pair, rel=1e-7) for pair in reference]  # Adam divides by roots near 0


SPREAD = {"expert=4": 4, "expert=2": 4, "expert=2 zero_stage=3": 4, "expert=2 tensor=2 pipeline=2": 8}
OTHERS = [(["model.num_experts=4"], SPREAD), (LLAMA, {"zero_stage=3": 4, "tensor=2 pipeline=2": 4})]
OTHERS += [([*LLAMA, "model.num_experts=4"], {"expert=2 tensor=2 pipeline=2": 8, "expert=2 zero_stage=1": 2})]


@pytest.mark.parametrize(("model", "layouts"), OTHERS, ids=["experts", "llama", "llama with experts"])
def test_other_models_have_the_curve_of_one_device(model: list[str], layouts: dict[str, int]):
    """With clipping, whose norm counts the experts of all ranks, and the other parameters once."""
    options, corpus = {"name": "adamw", "lr": 1e-2, "max_norm": 0.5}, text()
    (reference,) = launch(curve, config_of(*model, **options), corpus, ranks=1, trace=False).values
    assert reference[0][0] == pytest.approx(math.log(256), abs=0.1) and reference[-1][0] < reference[0][0] - 0.5
    assert max(norm for _, norm in reference) > 1
    for axes, ranks in layouts.items():
        config = config_of(*model, *(f"parallel.{axis}" for axis in axes.split()), **options)
        for found in launch(curve, config, corpus, ranks=ranks, trace=False).values:
            assert found == [pytest.approx(pair, rel=1e-7) for pair in reference]


def test_a_llama_with_fewer_key_value_heads_than_tensor_ranks_is_refused():
    with pytest.raises(RankError, match="num_kv_heads must be a multiple of the ranks: got 2 .* on 4 ranks; try 2"):
        launch(curve, config_of(*LLAMA, "parallel.tensor=4"), text(), ranks=4)


def test_real_processes_have_the_curve_of_the_simulator():
    config, corpus = config_of("parallel.zero_stage=2", name="adamw"), text()
    simulated = launch(curve, config, corpus, 3, ranks=2, trace=False).values
    real = launch(curve, config, corpus, 3, ranks=2, backend="gloo").values
    assert real == [[pytest.approx(pair, rel=1e-10) for pair in values] for values in simulated]


def test_ranks_with_a_gpu_have_the_same_curve():
    """On simulated GPUs: each part must put its tensors on the rank's device."""
    corpus, options = text(), {"name": "adamw", "max_norm": 1.0}
    (reference,) = launch(curve, config_of(**options), corpus, 2, ranks=1, trace=False).values
    for overrides in (["parallel.zero_stage=3"], ["parallel.tensor=2"]):
        found = launch(curve, config_of(*overrides, **options), corpus, 2, ranks=2, device="cuda", trace=False).values
        assert found == [[pytest.approx(pair, rel=1e-7) for pair in reference]] * 2


def test_shapes_take_the_time_and_memory_of_values():
    config, corpus = config_of("parallel.zero_stage=3", name="adamw"), text()
    values, shapes = (launch(curve, config, corpus, 2, ranks=2, fidelity=one) for one in ("values", "shapes"))
    assert shapes.values == [[(None, None)] * 2] * 2
    # Only with values the numbers of the report are read.
    assert shapes.timeline.makespan_s == pytest.approx(values.timeline.makespan_s, rel=1e-3)
    assert shapes.memory.peak_bytes(0) == pytest.approx(values.memory.peak_bytes(0), rel=0.01)


def test_sixteen_bits_train_as_32_bits_do():
    options: dict[str, Any] = {"name": "adamw", "lr": 1e-2}
    low = ["precision.parameters=float32", "precision.products=bfloat16", "parallel.zero_stage=2"]
    corpus = text()
    (whole,) = launch(curve, config_of("precision.parameters=float32", **options), corpus, 6, ranks=1).values
    mesh = ["parallel.zero_stage=1", "parallel.tensor=2"]
    for more in (["precision.master=true"], ["precision.master=false"], mesh):
        for found in launch(curve, config_of(*low, *more, **options), corpus, 6, ranks=2, trace=False).values:
            assert found[0] != whole[0]
            assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in whole], rel=0.01)


# ---- checkpoints ----


@pytest.mark.parametrize(
    ("overrides", "ranks"),
    [
        ([], 1),
        ([], 2),
        (["parallel.zero_stage=3"], 2),
        (["parallel.zero_stage=3", "parallel.library=torch"], 2),
        (["parallel.tensor=2"], 4),
        (["model.num_experts=4", "parallel.expert=2"], 2),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else str(one),
)
def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path, overrides: list[str], ranks: int):
    """Through torch.distributed.checkpoint, into a trainer that has not stepped."""
    config, corpus = config_of(*overrides, name="adamw", lr=1e-2, schedule="linear", num_warmup=3), text()

    def program() -> tuple[list[Any], list[Any], float]:
        straight = curve(config, corpus, 4)
        first = train.build(config, loader=loader_of(config, corpus))
        first.train(2)
        save(first.state_dict(), checkpoint_id=tmp_path)
        drawn = torch.rand(()).item()
        found: list[Any] = []
        second = train.build(config, loader=loader_of(config, corpus), on_step=[found.append])
        state = second.state_dict()
        load(state, checkpoint_id=tmp_path)
        torch.manual_seed(99)
        second.load_state_dict(state)
        assert torch.rand(()).item() == drawn
        second.train(2)
        assert [one["step"] for one in found] == [3, 4]
        return straight, [(one["loss"], one["grad_norm"]) for one in found], drawn

    for straight, resumed, _ in launch(program, ranks=ranks, trace=False).values:
        assert resumed == straight[2:]


def test_the_state_before_the_first_step_changes_nothing():
    config, corpus = config_of(name="adamw", weight_decay=0.5), text()
    trainer = train.build(config, loader=loader_of(config, corpus))
    before = {name: tensor.clone() for name, tensor in trainer.state_dict().items() if name.startswith("model.")}
    state = trainer.state_dict()
    assert "optimizer.exp_avg.blocks.0.mlp.up.weight" in state and not trainer.step.optimizer.state
    trainer.load_state_dict(state)
    assert all(torch.equal(tensor, trainer.state_dict()[name]) for name, tensor in before.items())
    trainer.train(2)
    other = train.build(config, loader=loader_of(config, corpus))
    other.train(2)
    assert all(
        torch.equal(one, other.state_dict()[name]) for name, one in trainer.state_dict().items() if name in before
    )


# ---- a learner's parts ----


class SignDescent(torch.optim.Optimizer):
    """A learner's optimizer."""

    is_element_wise = True

    def __init__(self, params: Any, lr: float):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for param in group["params"]:
                param -= group["lr"] * param.grad.sign()


class HalfScaler(LossScaler):
    """A learner's scaler, which halves the scale in each step."""

    def update(self) -> None:
        super().update()
        self.state = type(self.state)(self.state.scale / 2, 0, 1)


def test_an_optimizer_scaler_and_schedule_of_a_learner_train_on_every_setting():
    corpus, found = text(), []

    def program(config: train.TrainConfig) -> list[tuple[float, float, float]]:
        steps: list[Any] = []
        train.build(
            config,
            optimizer_fn=partial(SignDescent, lr=0.02),
            scaler=HalfScaler(ScaleRule(8.0)),
            schedule=lambda updates: 1.0 / (1 + updates),
            loader=loader_of(config, corpus),
            on_step=[steps.append],
        ).train(3)
        return [(one["loss"], one["loss_scale"], one["lr"]) for one in steps]

    for overrides in ([], ["parallel.zero_stage=2"], ["parallel.tensor=2"]):
        found += launch(program, config_of(*overrides), ranks=2, trace=False).values
    assert [pair[1:] for pair in found[0]] == [(8, 0.02), (4, 0.02 * (1 / 2)), (2, 0.02 * (1 / 3))]
    assert all(values == [pytest.approx(pair, rel=1e-6) for pair in found[0]] for values in found)
    assert found[0][2][0] < found[0][0][0] - 0.1


@pytest.mark.parametrize("overrides", [[], ["parallel.zero_stage=1"], ["parallel.pipeline=2"]], ids=str)
def test_an_overflow_skips_the_step_on_all_ranks_and_holds_the_schedule(overrides: list[str]):
    corpus = text()

    def program() -> list[tuple[bool, float, float]]:
        config, steps = config_of(*overrides), []
        scaler = LossScaler(ScaleRule(1e308, backoff=1e-300, maximum=math.inf))  # 1e308 overflows float64
        train.build(
            config,
            scaler=scaler,
            schedule=lambda updates: 1.0 / (1 + updates),
            loader=loader_of(config, corpus),
            on_step=[steps.append],
        ).train(3)
        return [(one["skipped"], one["lr"], one["loss"]) for one in steps]

    for values in launch(program, ranks=2, trace=False).values:
        assert [one[:2] for one in values] == [(True, 0.1), (False, 0.1), (False, 0.05)]


def test_a_model_that_does_not_average_is_refused_on_several_ranks():
    def program() -> None:
        model = train.make_model(config_of())
        train.ReplicaStep(model, torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(
        RankError, match="a model on 2 ranks must average its gradients: got GPT; wrap it in DataParallel"
    ):
        launch(program, ranks=2)


def test_a_zero_stage_without_a_process_group_is_refused():
    with pytest.raises(ValueError, match="zero_stage must be 0 without a process group: got 3; try parallel.z"):
        train.build(config_of("parallel.zero_stage=3"))


@pytest.mark.parametrize("overrides", [[], ["parallel.tensor=2"]], ids=str)
def test_a_batch_of_padding_alone_is_refused(overrides: list[str]):
    class Padding(ResumableBatches):
        def __next__(self) -> Batch:
            inputs, targets = super().__next__()
            return Batch(inputs, torch.full_like(targets, -100))

    def program() -> None:
        config = config_of(*overrides)
        rank: dict[str, Any] = {} if overrides else {"rank": dist.get_rank(), "world_size": 2}
        train.build(config, loader=Padding(text(), 8, 16, **rank)).train(1)

    with pytest.raises(RankError, match="a batch must have a token with a loss: the batch of step 1 has none"):
        launch(program, ranks=2)


def test_metrics_and_clock_are_those_of_the_arguments():
    config, corpus, times = config_of(), text(), iter([10.0, 12.0])
    trainer = train.build(config, loader=loader_of(config, corpus))
    clock: Callable[[], float] = lambda: next(times)  # noqa: E731
    (metrics,) = [train.Trainer(trainer.step, trainer.loader, clock=clock).train_step()]
    assert (metrics["tokens"], metrics["step_s"], metrics["tokens_per_s"]) == (8 * 16, 2.0, 64.0)
    assert (metrics["step"], metrics["loss_scale"], metrics["skipped"]) == (1, 1.0, False)
