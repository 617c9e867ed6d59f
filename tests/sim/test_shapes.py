"""`fidelity="shapes"`: a program on tensors without values takes the same virtual time and moves the same bytes."""

import gc
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from lablib import RankError, Run, ValueNeededError, launch, phase
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.precision.autocast import OPERATORS
from lablib.sim.operators import meta_kernels


def blocks() -> nn.Sequential:
    def block():
        return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    return nn.Sequential(*[block() for _ in range(4)])


def ddp():
    model = DDP(blocks())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp_accumulating():
    model = DDP(blocks(), static_graph=False, gradient_as_bucket_view=True)
    with model.no_sync():
        model(torch.randn(8, 16)).square().mean().backward()
    model(torch.randn(8, 16)).square().mean().backward()


def fsdp():
    model = blocks()
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(8, 16)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def pipeline():
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(blocks()[rank], rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).square().mean())
    x = torch.randn(8, 16)
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=x) if rank == size - 1 else schedule.step()


def zero_one():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # importing it warns

    model = DDP(blocks())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()


def checkpointed():
    x = torch.randn(8, 16, requires_grad=True)
    for block in blocks():
        x = checkpoint(block, x, use_reentrant=False)
    x.sum().backward()


def gpt():
    model = GPT(GPTConfig(vocab_size=64, max_seq_len=32, num_layers=2, num_heads=2, d_model=32))
    ids = torch.randint(0, 64, (2, 32))
    next_token_loss(model(ids), ids).backward()


def torchs_own_transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    layer(torch.randn(2, 8, 16), src_mask=torch.ones(8, 8, dtype=torch.bool).triu(1)).sum().backward()


def under_autocast():
    model = GPT(GPTConfig(vocab_size=64, max_seq_len=32, num_layers=2, num_heads=2, d_model=32))
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 64, (2, 32))
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = next_token_loss(model(ids), ids) + next_token_loss(model(ids), ids)  # parameters are cast once
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss + next_token_loss(model(ids), ids)  # and again in another block
            with torch.autocast("cpu", enabled=False):
                loss = loss + model(ids).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def objects():
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {"rank": dist.get_rank()})
    assert everyone == [{"rank": r} for r in range(dist.get_world_size())]


def batches_from_numpy():
    data = TensorDataset(torch.from_numpy(np.zeros((8, 16), np.float32)), torch.arange(8))
    model = blocks()
    for x, _ in DataLoader(data, batch_size=4, shuffle=True):
        model(x).sum().backward()


PROGRAMS = [
    ddp,
    ddp_accumulating,
    fsdp,
    pipeline,
    zero_one,
    checkpointed,
    gpt,
    torchs_own_transformer,
    under_autocast,
    objects,
    batches_from_numpy,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_takes_the_same_time_and_traffic_with_and_without_values(program):
    values, shapes = launch(program, ranks=4), launch(program, ranks=4, fidelity="shapes")
    assert list(shapes.timeline) == list(values.timeline)
    assert shapes.traffic == values.traffic
    assert (values.fidelity, shapes.fidelity) == ("values", "shapes")


def two_steps_of_a_product_of_three_dimensions():
    layer, x = nn.Linear(16, 64, bias=False), torch.randn(2, 8, 16)
    for _ in range(2):
        layer(x).relu().sum().backward()  # the product's `_unsafe_view` is a view, and its schema says otherwise


@pytest.mark.parametrize("program", [two_steps_of_a_product_of_three_dimensions, gpt, fsdp, checkpointed])
def test_a_program_holds_the_same_memory_with_and_without_values(program):
    values, shapes = (launch(program, ranks=4, fidelity=fidelity).memory for fidelity in ("values", "shapes"))
    for rank in range(4):
        assert shapes.curve(rank)[0].tolist() == values.curve(rank)[0].tolist()
        assert all((values.curve(rank)[1][name] == held).all() for name, held in shapes.curve(rank)[1].items())


def tensor_parallel():
    with phase("setup"):  # torch sends no initial weights that have no values
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        dist.barrier()  # the host waits for the weights; else it would launch the first kernels of a step meanwhile
    for _ in range(2):
        model(torch.randn(8, 16)).square().mean().backward()


def test_tensor_parallel_steps_take_the_same_time_with_and_without_values():
    values, shapes = (launch(tensor_parallel, ranks=4, fidelity=f) for f in ("values", "shapes"))
    a, b = (list(run.timeline.without("setup")) for run in (values, shapes))
    assert [(s.rank, s.stream, s.name, s.flops, s.size_bytes) for s in a] == [
        (s.rank, s.stream, s.name, s.flops, s.size_bytes) for s in b
    ]
    assert [s.start_s for s in a] == pytest.approx([s.start_s for s in b], rel=1e-9)
    assert shapes.traffic.count("all_reduce") == values.traffic.count("all_reduce") == 2


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_sharded_product_costs_a_rank_its_share(fidelity, ranks):
    """DTensor: the op that the program writes has the whole shape, the op that a rank runs that of its shard."""
    timeline = launch(tensor_parallel, ranks=ranks, fidelity=fidelity).timeline.without("setup")
    forward_and_backward = 2 * 3 * 2 * 8 * 16 * 64 * 2 - 2 * 2 * 8 * 16 * 64  # the input needs no gradient
    for rank in range(ranks):
        assert sum(s.flops for s in timeline.select(rank, "compute")) == forward_and_backward / ranks


def test_tensors_without_values_take_no_memory():
    def program():
        x = torch.empty(1 << 20, 1 << 20, device="cpu")
        y = (x @ x).to("cpu", torch.bfloat16)
        dist.all_reduce(y)
        return y

    run = launch(program, ranks=2, fidelity="shapes")
    assert run.values[0].is_meta and run.values[0].dtype == torch.bfloat16
    assert sum(s.flops for s in run.timeline.select(0)) == 2 * 2.0**60
    assert run.traffic.transfers[0].tensor_bytes == 2 * 2.0**40


def test_real_tensors_from_outside_count_by_their_shape_and_stay_as_they_are():
    weight = torch.full((4, 4), 3.0)

    def program():
        y = torch.randn(4, 4) @ weight
        weight.add_(y)  # cannot be known, so nothing happens to the values
        return y

    run = launch(program, ranks=1, fidelity="shapes")
    assert run.values[0].is_meta
    assert torch.equal(weight, torch.full((4, 4), 3.0))


def reads_a_value():
    loss = torch.ones(3).sum()
    return loss.item()


def branches_on_a_value():
    if torch.ones(3).sum() > 1:
        return 1


def lists_values():
    return torch.ones(3).tolist()


def goes_to_numpy():
    return torch.ones(3).numpy()


def has_a_shape_that_depends_on_values():
    return torch.ones(3).nonzero()


def reads_inside_backward():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: grad * float(grad.sum()))
    x.sum().backward()


@pytest.mark.parametrize(
    "program",
    [
        reads_a_value,
        branches_on_a_value,
        lists_values,
        goes_to_numpy,
        has_a_shape_that_depends_on_values,
        reads_inside_backward,
    ],
    ids=lambda program: program.__name__,
)
def test_a_program_that_needs_a_value_is_told_where(program):
    with pytest.raises(ValueNeededError, match=r'under fidelity="shapes" tensors have shapes only \(test_shapes.py:'):
        launch(program, ranks=1, fidelity="shapes")


def test_moves_keep_shapes_and_change_dtypes():
    def program():
        x = torch.ones(2, 3)
        assert x.to("cuda") is x and x.cuda() is x and x.cpu() is x and x.to(torch.device("cpu")) is x
        assert x.to("cpu", torch.float64).dtype == x.double().dtype == torch.float64
        assert x.to(torch.zeros(1, dtype=torch.int8)).dtype == torch.int8
        assert x.to(torch.float16, copy=True) is not x
        model = nn.Linear(2, 3).to("cuda", dtype=torch.bfloat16)
        return model(torch.zeros(1, 2, dtype=torch.bfloat16)).dtype

    assert launch(program, ranks=1, fidelity="shapes").values == [torch.bfloat16]


def test_a_run_without_a_trace_has_shapes_too():
    run = launch(lambda: torch.zeros(1 << 40).sum(), ranks=2, fidelity="shapes", trace=False)
    assert run.values[0].is_meta and len(run.timeline) == 0


def test_torch_is_asked_once_what_an_operator_on_lists_gives(monkeypatch):
    """`_foreach_addcmul_` writes its first list and returns nothing. Ten steps of two ranks ask as often as one."""
    asked, run = [], meta_kernels._run

    def noting(func, args, kwargs):
        asked.append(str(func))
        return run(func, args, kwargs)

    def steps(num_steps):
        params = [torch.zeros(3, 4, requires_grad=True), torch.zeros(5, requires_grad=True)]
        optimizer = torch.optim.AdamW(params, foreach=True)
        for _ in range(num_steps):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()

    def times_asked(num_steps):
        asked.clear()
        launch(steps, num_steps, ranks=2, fidelity="shapes")
        return {name: asked.count(name) for name in asked if "addcmul" in name or "lerp" in name}

    monkeypatch.setattr(meta_kernels, "_run", noting)
    assert times_asked(10) == {"aten._foreach_lerp_.Scalar": 1, "aten._foreach_addcmul_.Scalar": 1}


def test_lists_that_do_not_fit_are_refused_as_in_torch():
    def program():
        add_ = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]
        add_([torch.ones(2)], [torch.ones(2)])
        add_([torch.ones(2)], [torch.ones(3)])

    with pytest.raises(RankError, match="must match|not match|broadcast"):
        launch(program, ranks=1, fidelity="shapes")


def test_torch_is_as_before_after_a_run_that_failed():
    changed = [
        (F, "scaled_dot_product_attention"),
        (dist, "_verify_params_across_processes"),
        (torch.autograd, "_engine_run_backward"),
    ]
    before = [getattr(owner, name) for owner, name in changed]
    with pytest.raises(ValueNeededError):
        launch(reads_a_value, ranks=2, fidelity="shapes")
    assert [getattr(owner, name) for owner, name in changed] == before
    assert torch.ones(2).device.type == "cpu"


@pytest.mark.parametrize(("fidelity", "backend"), [("shape", "sim"), ("shapes", "gloo")])
def test_an_unknown_fidelity_and_one_for_another_backend_are_refused(fidelity, backend):
    with pytest.raises(ValueError, match="fidelity"):
        launch(reads_a_value, ranks=1, fidelity=fidelity, backend=backend)


def test_autocast_holds_the_same_memory_with_and_without_values():
    """At one moment torch lets go of all the casts it kept, in no particular order: so blocks, not a curve."""
    memories = [launch(under_autocast, ranks=1, fidelity=fidelity).memory for fidelity in ("values", "shapes")]
    values, shapes = (
        sorted((one.category, one.name, one.size_bytes, one.start_s, one.end_s) for one in memory.allocations)
        for memory in memories
    )
    assert shapes == values
    assert memories[0].peak_bytes(0) == memories[1].peak_bytes(0)


# A CPU keeps the statistics of a 16-bit norm in 16 bits and refuses two dtypes; "meta", like a GPU, does neither.
AUTOCAST_NAMES = sorted(set(OPERATORS) - {"layer_norm"})


@given(st.data())
def test_autocast_casts_the_same_with_and_without_values(data):
    """Operators nobody chose, one after another, on tensors of both dtypes."""
    names = data.draw(st.lists(st.sampled_from(AUTOCAST_NAMES), min_size=1, max_size=5))
    dtypes = data.draw(st.lists(st.sampled_from((torch.float32, torch.bfloat16)), min_size=2, max_size=2))
    lower = data.draw(st.sampled_from((torch.bfloat16, torch.float16)))

    def program() -> list[torch.dtype]:
        x, y = (torch.ones(8, 8, dtype=dtype, requires_grad=True) for dtype in dtypes)
        given = []
        with torch.autocast("cpu", dtype=lower):
            for name in names:
                try:
                    out = OPERATORS[name](x, y)
                except RuntimeError as error:  # dtypes that it cannot mix
                    out = type(error)
                given.append(out.dtype if isinstance(out, torch.Tensor) else out)
                if isinstance(out, torch.Tensor) and out.shape == x.shape:
                    x = out
        return given

    values, shapes = (launch(program, ranks=1, fidelity=fidelity) for fidelity in ("values", "shapes"))
    assert shapes.values == values.values
    assert list(shapes.timeline) == list(values.timeline)


def einsum(equation: str) -> Any:
    return lambda x: torch.einsum(equation, x, x)


# Written in Python, or calling operators that cast: of arguments, of views of them, of copies.
COMPOSED: dict[str, Any] = {
    "attention": lambda x: nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x, need_weights=False)[0],
    "two inputs": lambda x: nn.MultiheadAttention(8, 2)(x, x + 1, x * 2)[0],
    "encoder": lambda x: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)(x),
    "einsum": einsum("bsd,btd->bst"),
    "einsum of columns": einsum("bsd,btd->bsdt"),
    "tensordot": lambda x: torch.tensordot(x, x.permute(2, 1, 0), dims=1),
    "norm": lambda x: torch.norm(x, dim=-1),
    "losses": lambda x: F.huber_loss(x, x.detach()) + F.l1_loss(x, x.detach()),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=-1),
}


@settings(max_examples=20)
@given(names=st.lists(st.sampled_from(list(COMPOSED)), min_size=1, max_size=3), is_lower=st.booleans())
def test_autocast_casts_inside_of_functions_as_with_values(names: list[str], is_lower: bool):
    def program() -> list[torch.dtype]:
        x = torch.ones(2, 4, 8, dtype=torch.bfloat16 if is_lower else torch.float32, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outs = [COMPOSED[name](x) for name in names]
        torch.stack([out.float().sum() for out in outs]).sum().backward()
        return [out.dtype for out in outs]

    values, shapes = (launch(program, ranks=1, fidelity=fidelity) for fidelity in ("values", "shapes"))
    assert shapes.values == values.values
    assert products(shapes) == products(values)


def products(run: Run) -> Counter[tuple[str, float]]:
    """Matrix products with their seconds: those of two dtypes differ. A cast may change places with a copy."""
    spans = (span for span in run.timeline if any(name in span.name for name in ("mm", "attention")))
    return Counter((span.name, round(span.duration_s, 15)) for span in spans)


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_autocast_refuses_the_other_16_bits_beside_32(fidelity):
    def program():
        with torch.autocast("cpu", dtype=torch.float16):
            torch.cat([torch.ones(2, dtype=torch.bfloat16), torch.ones(2)])

    with pytest.raises(RankError, match="at::autocast::prioritize"):
        launch(program, ranks=1, fidelity=fidelity)


def test_a_real_tensor_that_met_a_shape_is_let_go_without_the_collector():
    def program() -> bool:
        gc.disable()
        try:
            real = torch.from_numpy(np.zeros(3))
            seen = weakref.ref(real)
            torch.add(real, torch.zeros(3))
            del real
            return seen() is None
        finally:
            gc.enable()

    assert launch(program, ranks=1, fidelity="shapes").values == [True]
