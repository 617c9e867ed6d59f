"""The memory tracker counts what a program holds: closed forms, a plain model of what lives, torch's tracker."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from lablib import RankError, launch
from lablib.hardware import find_cluster
from lablib.models import GPT, GPTConfig
from lablib.record.memory import Memory
from lablib.sim.memory.memory_tracker import MemoryTracker
from lablib.sim.operators.clock import Clock


def memory_of(program: Callable[..., Any], *args: Any, ranks: int = 1) -> Memory:
    return launch(program, *args, ranks=ranks).memory


def held_at_end(memory: Memory, rank: int = 0) -> dict[str, int]:
    """What was alive when the rank ended: what its program returned."""
    return {name: size for name, size in memory.at(rank, float("inf")).items() if size}


def my_tracker() -> MemoryTracker:
    """The memory tracker of the rank that asks."""
    [clock] = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Clock)]
    assert clock.memory_tracker is not None
    return clock.memory_tracker


# ---- what a training step holds ----


@pytest.mark.parametrize(
    ("make_optimizer", "state_copies"),
    [
        (lambda params: torch.optim.SGD(params, lr=0.1), 0),
        (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), 1),
        (lambda params: torch.optim.AdamW(params), 2),
    ],
    ids=["SGD", "momentum", "AdamW"],
)
@pytest.mark.parametrize("sizes", [(8, 16), (64, 32, 10)])
@pytest.mark.parametrize("is_made_before_the_launch", [False, True])
def test_a_step_holds_parameters_gradients_and_the_state_of_its_optimizer(
    make_optimizer, state_copies, sizes, is_made_before_the_launch
):
    def make() -> tuple:
        model = nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)))
        return model, make_optimizer(model.parameters())

    given = make()

    def program() -> tuple:
        model, optimizer = given if is_made_before_the_launch else make()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, sizes[0])).sum().backward()
            optimizer.step()
        return model, optimizer

    parameters = 4 * sum(a * b + b for a, b in zip(sizes, sizes[1:], strict=False))
    # AdamW counts its steps in a tensor of 4 bytes for each parameter.
    counters = 4 * 2 * (len(sizes) - 1) if state_copies == 2 else 0
    expected = {"parameter": parameters, "gradient": parameters}
    if state_copies:
        expected["optimizer state"] = state_copies * parameters + counters
    assert held_at_end(memory_of(program)) == expected


def test_gradients_are_known_when_an_optimizer_runs_inside_backward():
    def program() -> None:
        model = nn.Linear(16, 16, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(param: torch.Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        model.weight.register_post_accumulate_grad_hook(step)
        model(torch.ones(2, 16)).sum().backward()

    gradients = [b for b in memory_of(program).allocations if b.category == "gradient"]
    assert [b.size_bytes for b in gradients] == [4 * 16 * 16] and gradients[0].end_event < 2**62


def test_what_an_optimizer_steps_is_a_parameter_though_it_is_a_plain_tensor():
    def program() -> Any:
        weight = torch.ones(8, requires_grad=True)
        (weight * 2).sum().backward()
        torch.optim.SGD([weight], lr=0.1).step()
        return weight

    assert held_at_end(memory_of(program)) == {"parameter": 32, "gradient": 32}


class Wide(nn.Module):
    """One allocation of a chain: D to 4 D and back."""

    def __init__(self, width: int, reentrant: bool | None):
        super().__init__()
        self.up, self.down, self.reentrant = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reentrant is None:
            return self.run(x)
        return checkpoint(self.run, x, use_reentrant=self.reentrant)  # type: ignore[return-value]

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize(("layers", "batch", "width"), [(1, 2, 8), (5, 16, 32)])
@pytest.mark.parametrize(("reentrant", "kept_of_a_layer"), [(None, 4 + 4 + 1), (False, 1), (True, 1)])
def test_forward_keeps_what_backward_needs_and_checkpointing_the_inputs_of_layers(
    layers, batch, width, reentrant, kept_of_a_layer
):
    def program() -> tuple:
        model = nn.Sequential(*(Wide(width, reentrant) for _ in range(layers)))
        x = torch.ones(batch, width, requires_grad=True)
        return model, x, model(x).sum()

    # The sum is a number of 4 bytes; the last layer's result, which it does not keep, has died.
    kept = (layers * kept_of_a_layer - 1) * 4 * batch * width + 4
    assert held_at_end(memory_of(program))["activation"] == kept


def test_recomputed_activations_are_activations_of_the_phase_recompute():
    def program() -> None:
        model, x = Wide(8, False), torch.ones(2, 8, requires_grad=True)
        model(x).sum().backward()

    run = launch(program, ranks=1)
    again = [b for b in run.memory.allocations if b.phase == "recompute"]
    # The recomputation stops once it has what backward needs: `down`'s result is not among it.
    assert [(b.category, b.name) for b in again] == [("activation", "aten.addmm"), ("activation", "aten.gelu")]


def test_a_backward_that_is_itself_recorded_is_no_recomputation():
    def program() -> None:
        x = torch.ones(4, requires_grad=True)
        [gradient] = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        gradient.sum().backward()

    run = launch(program, ranks=1)
    assert "backward" in {s.phase for s in run.timeline} and not any(s.is_recompute for s in run.timeline)


# ---- storages ----


def test_a_storage_that_changes_its_size_ends_one_block_and_begins_another():
    def program() -> list[int]:
        tracker, held = my_tracker(), []
        weight = nn.Parameter(torch.ones(100))
        torch.add(weight, 1)
        for size in (0, 400, 400, 800):
            weight.untyped_storage().resize_(size)
            held.append(tracker.allocated_bytes())
        out = torch.empty(0)
        torch.add(torch.ones(5), 1, out=out)
        out.resize_(50)
        held.append(tracker.allocated_bytes() - 800)
        return held

    run = launch(program, ranks=1)
    assert run.values == [[0, 400, 400, 800, 200]]
    of_weight = [b for b in run.memory.allocations if b.category == "parameter"]
    assert [b.size_bytes for b in of_weight] == [400, 400, 800]
    assert [b.name for b in of_weight] == ["aten.ones", "resize_", "resize_"]


@pytest.mark.parametrize(
    "make",
    [lambda: torch.tensor([1.0, 2.0]), lambda: torch.from_numpy(numpy.ones(2, "f4")), lambda: torch.Tensor([1.0, 2.0])],
    ids=["tensor", "from_numpy", "Tensor"],
)
def test_tensors_made_where_no_dispatcher_looks_are_counted(make):
    def program() -> Any:
        x = make()
        x.add_(1)
        return x

    assert held_at_end(memory_of(program)) == {"other": 8}


def test_sparse_gradients_count_by_their_indices_and_values():
    def program() -> Any:
        table = nn.Embedding(50, 4, sparse=True)
        table(torch.tensor([1, 2, 3])).sum().backward()
        return table

    assert held_at_end(memory_of(program)) == {"parameter": 800, "gradient": 3 * 8 + 3 * 16}


tensors_to_change = st.lists(
    st.tuples(st.sampled_from(["make", "view", "add", "in place", "del"]), st.integers(0, 7), st.integers(1, 50)),
    max_size=25,
)


@settings(max_examples=40)
@given(tensors_to_change)
def test_any_program_holds_what_its_names_reach(steps):
    def program() -> list[int]:
        """Each name is [tensor, number of its storage]; a plain list of sizes is the model."""
        names: list[tuple[torch.Tensor, int]] = []
        sizes: list[int] = []
        held, tracker = [], my_tracker()
        for what, which, size in steps:
            chosen = names[which % len(names)] if names else None
            if what == "make" or chosen is None:
                names.append((torch.zeros(size), len(sizes)))
                sizes.append(4 * size)
            elif what == "view":
                names.append((chosen[0][:1], chosen[1]))
            elif what == "add":
                names.append((chosen[0] + 1, len(sizes)))
                sizes.append(4 * chosen[0].numel())
            elif what == "in place":
                chosen[0].add_(1)
            else:
                del names[which % len(names)]
            del chosen
            held.append(tracker.allocated_bytes() - sum(sizes[number] for number in {number for _, number in names}))
        return held

    assert set(launch(program, ranks=1).values[0]) <= {0}


# ---- ranks ----


def test_a_tensor_is_counted_for_the_rank_that_made_it_and_one_from_before_for_all_who_read_it():
    shared: list[torch.Tensor] = []
    from_before = torch.ones(100)

    def program() -> Any:
        mine = from_before + 1
        if dist.get_rank() == 0:
            shared.append(torch.zeros(1000))
        dist.barrier()
        shared[0].view(-1)
        shared[0].add_(1)
        return mine, from_before

    memory = memory_of(program, ranks=3)
    assert [sum(memory.at(r, float("inf")).values()) for r in range(3)] == [4000 + 800, 800, 800]


def test_buffers_of_collectives_are_communication_unless_they_are_something_else():
    def program() -> Any:
        model = nn.Linear(10, 10, bias=False)
        loss = model(torch.ones(1, 10)).sum()
        loss.backward()
        dist.all_reduce(model.weight.grad)
        parts = torch.empty(2, 5)
        dist.all_gather([parts[0], parts[1]], torch.ones(5))
        activation = model(torch.ones(1, 10))
        dist.all_reduce(activation)
        return model, parts, activation

    memory = memory_of(program, ranks=2)
    # "Other" is the input of the last product, which its graph keeps.
    expected = {"parameter": 400, "gradient": 400, "communication": 40, "activation": 40, "other": 40}
    assert held_at_end(memory) == expected
    assert [b.size_bytes for b in memory.allocations.of_rank(0) if b.category == "communication"] == [40, 20]  # type: ignore


def test_a_message_is_in_communication_buffers_on_both_sides():
    def program() -> Any:
        x = torch.zeros(6)
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        return x

    memory = memory_of(program, ranks=2)
    assert [held_at_end(memory, rank) for rank in range(2)] == [{"communication": 24}] * 2


@pytest.mark.parametrize(("is_view", "gradients", "buckets"), [(False, 1, 1), (True, 1, 0)])
def test_the_buckets_of_ddp_are_communication_or_the_gradients_themselves(is_view, gradients, buckets):
    def program() -> Any:
        model = nn.Linear(16, 16)
        ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=is_view)
        for _ in range(3):
            ddp(torch.ones(1, 16)).sum().backward()
        return ddp

    held = held_at_end(memory_of(program, ranks=2))
    one = 4 * (16 * 16 + 16)
    assert held["parameter"] == one and held["gradient"] == gradients * one
    assert held.get("communication", 0) == buckets * one


def test_what_other_ranks_have_not_yet_seen_of_a_collective_holds_no_memory():
    def program() -> int | None:
        x = torch.ones(1000)
        dist.all_reduce(x)
        del x
        return my_tracker().allocated_bytes()

    assert launch(program, ranks=4).values == [0] * 4


# ---- torch's own tracker ----


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module, reentrant: bool):
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)  # type: ignore[return-value]


def gpt_step(config: GPTConfig, batch: int, reentrant: bool | None, optimizer_class: type) -> None:
    model = GPT(config)
    if reentrant is not None:
        model.blocks = nn.ModuleList(Checkpointed(block, reentrant) for block in model.blocks)
    optimizer = optimizer_class(model.parameters(), lr=1e-3, foreach=False)  # torch's default on a CPU
    tokens = torch.ones(batch, config.max_seq_len + 1, dtype=torch.long)
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def tracked(program: Callable[..., Any], *args: Any) -> dict[str, int]:
    """The peak that torch's tracker sees, by its own categories."""
    tracker = MemTracker()
    with tracker:
        program(*args)
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {getattr(name, "value", name): size for name, size in peak.items()}


@pytest.mark.parametrize("reentrant", [None, False, True], ids=["no checkpointing", "checkpointing", "reentrant"])
@pytest.mark.parametrize(
    "optimizer_class", [pytest.param(torch.optim.SGD, marks=pytest.mark.thorough), torch.optim.AdamW]
)
@pytest.mark.parametrize(
    ("config", "batch"),
    [(GPTConfig(2, 32, 2, 100, 16), 2), (GPTConfig(4, 48, 4, 256, 64), 6)],
    ids=["peak in the optimizer", "peak in backward"],
)
def test_the_peak_of_a_gpt_step_equals_torchs_tracker_to_the_byte(config, batch, optimizer_class, reentrant):
    args = (config, batch, reentrant, optimizer_class)
    theirs, ours = tracked(gpt_step, *args), memory_of(gpt_step, *args)
    assert ours.peak_bytes() == theirs["Total"]
    assert ours.at_peak()["parameter"] == theirs["Parameter"]


def fsdp_step(is_checkpointed: bool, is_resharded: bool) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(Wide(32, False if is_checkpointed else None) for _ in range(3)), nn.Linear(32, 4))
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=is_resharded)
    fully_shard(model, mesh=mesh, reshard_after_forward=is_resharded)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(64, 32)).sum().backward()
    optimizer.step()


def fsdp_on_fake_ranks(*args: Any) -> dict[str, int]:
    """torch's fake process group: one of two ranks, with shapes as they are and values that mean nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        return tracked(fsdp_step, *args)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("is_resharded", [False, True])
def test_the_peak_of_fsdp2_equals_torchs_tracker_to_the_byte(is_checkpointed, is_resharded):
    theirs = fsdp_on_fake_ranks(is_checkpointed, is_resharded)
    memory = memory_of(fsdp_step, is_checkpointed, is_resharded, ranks=2)
    assert memory.peak_bytes(0) == memory.peak_bytes(1) == theirs["Total"]
    assert memory.at_peak(0)["parameter"] == theirs["Parameter"]


def test_fsdp2_frees_what_it_gathered_and_shards_parameters_gradients_and_state():
    def program() -> Any:
        model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
        return model, optimizer

    held = held_at_end(memory_of(program, ranks=4))
    shard = 4 * 2 * 16 * 32 // 4
    assert [held[name] for name in ("parameter", "gradient", "optimizer state")] == [shard] * 3


# ---- the memory tracker and the run ----


def test_the_tracker_keeps_nothing_alive_and_hears_nothing_after_the_run():
    alive: list[weakref.ref] = []

    def program() -> torch.Tensor:
        model = nn.Linear(4, 4)
        alive.append(weakref.ref(model.weight))
        return model(torch.ones(2, 4)).detach() + 1

    run = launch(program, ranks=2)
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    before = list(run.memory.allocations)
    assert run.values[0].shape == (2, 4) and float(run.values[1].sum()) == float(run.values[1].sum())
    run.values.clear()
    assert list(run.memory.allocations) == before


def test_after_a_run_that_fails_a_storage_is_resized_and_freed_as_ever():
    kept: list[torch.Tensor] = []
    resize = torch.UntypedStorage.resize_

    def program() -> None:
        kept.append(torch.ones(4))
        raise KeyError("on purpose")

    with pytest.raises(RankError):
        launch(program, ranks=2)
    assert torch.UntypedStorage.resize_ is resize
    kept[0].untyped_storage().resize_(0)
    kept.clear()


def test_a_program_may_ask_what_it_holds_and_start_a_new_peak():
    def program() -> list[int]:
        tracker = my_tracker()
        x = torch.zeros(100)
        y = torch.zeros(50)
        del y
        answers = [tracker.allocated_bytes(), tracker.peak_bytes()]
        tracker.reset_peak()
        answers.append(tracker.peak_bytes())
        torch.add(x, 1)
        return [*answers, tracker.peak_bytes()]

    assert launch(program, ranks=1).values == [[400, 600, 400, 800]]


def test_a_rank_that_needs_more_than_its_device_has_is_noted_and_goes_on():
    device = find_cluster("dgx-h100").device

    def program() -> None:
        if dist.get_rank() == 1:
            torch.empty(95 * 10**9, dtype=torch.int8, device="meta")

    run = launch(program, ranks=2)
    assert run.notes == (run.memory.notes(device)[0],)
    assert run.notes[0].startswith(f"rank 1 needs 95 GB at its peak, an {device.name} has 80 GB")


def test_without_a_trace_nobody_counts():
    assert launch(lambda: torch.ones(4), ranks=2, trace=False).memory == Memory((), 2)


# ---- where ----


def test_spans_and_blocks_name_the_line_of_the_program():
    def program() -> None:
        x = torch.ones(8, 8, requires_grad=True)
        y = x @ x  # the product
        y.sum().backward()  # backward
        dist.all_reduce(y.detach())  # together

    run = launch(program, ranks=2)
    [product] = [s for s in run.timeline.select(0) if s.name == "aten.mm" and s.phase == "forward"]
    assert product.source.startswith("test_memory_tracker.py:") and product.source.endswith("y = x @ x  # the product")
    assert {s.source.split("  # ")[1] for s in run.timeline.select(0, phase="backward")} == {"backward"}
    [together] = run.timeline.select(0, stream="comm")
    assert together.source.endswith("dist.all_reduce(y.detach())  # together")
    [allocation] = [b for b in run.memory.allocations if b.rank == 0 and b.name == "aten.mm" and b.phase == "forward"]
    assert allocation.source == product.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_products_say_what_they_computed_in(dtype):
    def program() -> None:
        x = torch.ones(4, 4, dtype=dtype)
        _ = x @ x + 1

    spans = launch(program, ranks=1).timeline.select(0)
    assert {s.name: s.dtype for s in spans if s.name in ("aten.mm", "aten.add")} == {
        "aten.mm": str(dtype).removeprefix("torch."),
        "aten.add": "",
    }


def sum_as_a_function() -> None:
    under_way = functional.all_reduce(torch.ones(1000), "sum", dist.distributed_c10d._get_default_group())
    under_way.sum()


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_a_functional_collective_holds_its_result_once(fidelity):
    """While it is under way torch wraps it in a tensor that shows the same size and has no memory."""
    memory = launch(sum_as_a_function, ranks=4, fidelity=fidelity).memory
    assert memory.peak_bytes(0) == 4 * 1000 * 2  # what is sent, and the result
