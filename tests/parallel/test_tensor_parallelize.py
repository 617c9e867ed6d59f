# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
"""The plain GPT cut by a plan: the raw gradients of one device, beside torch's own plan, and plans that are refused."""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from lablib import RankError, launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import (
    GPT_PLAN,
    GPT_SEQUENCE_PLAN,
    SEQUENCE,
    Column,
    OnTokens,
    Row,
    SharedInput,
    Vocabulary,
    check_plan,
    full_gradients,
    full_parameters,
    gradient_norm,
    parallelize,
    vocabulary_parallel_loss,
)
from lablib.parallel.tensor_plan import Plan

EXACT: Any = {"rtol": 1e-10, "atol": 1e-13}
PLANS = {"f and g": GPT_PLAN, "sequence": GPT_SEQUENCE_PLAN}


def batch(config: GPTConfig, seq_len: int, rows: int = 2) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, config.vocab_size, (rows, seq_len + 1), generator=torch.Generator().manual_seed(3))
    drawn = drawn.to(torch.get_default_device())
    return drawn[:, :-1], drawn[:, 1:]


def moved(model: nn.Module) -> nn.Module:
    """Biases and norms away from 0 and 1, so that none of them may be forgotten."""
    generator = torch.Generator().manual_seed(7)
    for param in model.parameters():
        param.data += 0.1 * torch.randn(param.shape, generator=generator, dtype=param.dtype)
    return model


def gpt(config: GPTConfig) -> nn.Module:
    return moved(GPT(config, dtype=torch.float64))


def one_device(config: GPTConfig, seq_len: int) -> tuple[float, dict[str, Tensor]]:
    model, (tokens, targets) = gpt(config), batch(config, seq_len)
    loss = next_token_loss(model(tokens), targets)
    loss.backward()
    return loss.item(), {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


def step(config: GPTConfig, seq_len: int, plan: Plan) -> tuple[float, dict[str, Tensor], float]:
    model, (tokens, targets) = parallelize(gpt(config), plan=plan), batch(config, seq_len)
    loss = vocabulary_parallel_loss(model(tokens), targets, config.vocab_size)
    loss.backward()
    return loss.item(), full_gradients(model), gradient_norm(model).item()


def with_vocabulary(plan: Plan, **options: Any) -> Plan:
    region = SEQUENCE if plan is GPT_SEQUENCE_PLAN else GPT_PLAN["head"].region
    return {**plan, "token_embedding": Vocabulary(region, **options), "head": Vocabulary(region, **options)}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@given(data=st.data(), n=st.integers(1, 5))
@settings(max_examples=8)
def test_a_gpt_has_the_gradients_of_one_device_whatever_its_sizes(plan: Plan, data: Any, n: int):
    """Uneven hidden widths and vocabularies, shards of nothing, tied heads or not, overlapped or not."""
    num = partial(st.integers, 1)
    heads, vocab = n * data.draw(num(2)), data.draw(st.integers(2, 14))
    config = GPTConfig(
        num_layers=data.draw(num(2)),
        d_model=heads * data.draw(num(3)),
        num_heads=heads,
        vocab_size=vocab,
        max_seq_len=2 * n + 3,
        d_ff=data.draw(num(9)),
        tied_head=data.draw(st.booleans()),
    )
    plan = with_vocabulary(plan, uneven=data.draw(st.sampled_from(["chunk", "pad"])))
    if data.draw(st.booleans()):
        plan = {**plan, "blocks.*.mlp.up": Column(plan["blocks.*.mlp.up"].region, overlaps=True)}
    loss, expected = one_device(config, 2 * n)
    norm = torch.cat([grad.flatten() for grad in expected.values()]).norm().item()
    for found_loss, found, found_norm in launch(step, config, 2 * n, plan, ranks=n).values:
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert found_norm == pytest.approx(norm, rel=1e-11)
        torch.testing.assert_close(found, expected, **EXACT)


CONFIG = GPTConfig(2, 8, 4, vocab_size=12, max_seq_len=8, d_ff=12)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_real_processes_give_what_the_simulator_gives_and_the_simulator_repeats_to_the_bit(plan: Plan):
    first, again = (launch(step, CONFIG, 4, plan, ranks=2).values for _ in range(2))
    for (loss, grads, norm), (loss_2, grads_2, norm_2) in zip(first, again, strict=True):
        assert (loss, norm) == (loss_2, norm_2)
        assert all(torch.equal(grad, grads_2[name]) for name, grad in grads.items())
    for loss, grads, _ in launch(step, CONFIG, 4, plan, ranks=2, backend="gloo").values:
        assert loss == pytest.approx(first[0][0], rel=1e-12)
        torch.testing.assert_close(grads, first[0][1], **EXACT)


def test_five_steps_of_sgd_leave_the_parameters_of_one_device_on_a_mesh_of_two_axes():
    """Tensor parallel inside a data-parallel mesh: each pair of ranks is a group of its own."""
    tokens, targets = batch(CONFIG, 4)

    def program() -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        model = parallelize(gpt(CONFIG), mesh["tensor"], GPT_SEQUENCE_PLAN)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            loss = vocabulary_parallel_loss(model(tokens), targets, 12, mesh.get_group("tensor"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return full_parameters(model)

    model = gpt(CONFIG)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        next_token_loss(model(tokens), targets).backward()
        optimizer.step()
    for found in launch(program, ranks=4).values:
        torch.testing.assert_close(found, {n: p.detach() for n, p in model.named_parameters()}, **EXACT)


def test_ranks_that_built_different_models_train_the_first_one():
    def program() -> dict[str, Tensor]:
        model = parallelize(GPT(CONFIG, seed=dist.get_rank(), dtype=torch.float64))
        return full_parameters(model)

    expected = {name: param.detach() for name, param in GPT(CONFIG, dtype=torch.float64).named_parameters()}
    for found in launch(program, ranks=2).values:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_logits_may_be_gathered_for_a_loss_that_knows_nothing_of_ranks():
    def program(plan: Plan) -> dict[str, Tensor]:
        model, (tokens, targets) = parallelize(gpt(CONFIG), plan=plan), batch(CONFIG, 4)
        next_token_loss(model(tokens), targets).backward()
        return full_gradients(model)

    for plan in PLANS.values():
        gathers = with_vocabulary(plan, gathers=True)
        for found in launch(program, gathers, ranks=2).values:
            torch.testing.assert_close(found, one_device(CONFIG, 4)[1], **EXACT)


def test_without_a_shared_input_queries_keys_and_values_reduce_three_times():
    plan = {name: style for name, style in GPT_PLAN.items() if not isinstance(style, SharedInput)}

    def sums(plan: Plan) -> int:
        run = launch(step, CONFIG, 4, plan, ranks=2)
        torch.testing.assert_close(run.values[0][1], one_device(CONFIG, 4)[1], **EXACT)
        spans = run.timeline.select(rank=0, stream="comm", phase="backward")
        return Counter(span.name for span in spans)["all_reduce"]

    assert sums(GPT_PLAN) == 2 * 2 + 1
    assert sums(plan) == 2 * 4 + 1


def test_checkpointing_and_copies_of_a_cut_model_work():
    """A copy has entrances of its own; backward that computes forward again finds them."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, block: nn.Module):
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=False)

    def program() -> dict[str, Tensor]:
        model, (tokens, targets) = copy.deepcopy(parallelize(gpt(CONFIG), plan=GPT_SEQUENCE_PLAN)), batch(CONFIG, 4)
        blocks = list(model.blocks)
        model.blocks = nn.ModuleList(map(Checkpointed, blocks))
        vocabulary_parallel_loss(model(tokens), targets, 12).backward()
        model.blocks = nn.ModuleList(blocks)
        return full_gradients(model)

    for found in launch(program, ranks=2).values:
        torch.testing.assert_close(found, one_device(CONFIG, 4)[1], **EXACT)


# ---- beside DTensor ----


def torchs_plan(sequence: bool) -> dict[str, Any]:
    """The same cuts, as torch's tutorial on tensor parallelism writes them."""
    inside, outside = Replicate(), Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
        "head": ColwiseParallel(input_layouts=outside, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        plan |= {"final_norm": SequenceParallel(use_local_output=True)}
    for i in range(2):
        block = f"blocks.{i}."
        plan |= {
            block + "attention": PrepareModuleInput(input_layouts=outside, desired_input_layouts=inside),
            **{block + f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            block + "attention.out": RowwiseParallel(output_layouts=outside),
            block + "mlp.up": ColwiseParallel(input_layouts=outside),
            block + "mlp.down": RowwiseParallel(output_layouts=outside),
        }
        if sequence:
            plan |= {block + name: SequenceParallel(use_local_output=True) for name in ("attention_norm", "mlp_norm")}
    return plan


class OwnPositions(nn.Module):
    """What torch's plan has no style for: positions of this rank's tokens, their gradient summed by a hook."""

    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        self.weight = embedding.weight
        self.weight.register_hook(self.summed)

    def summed(self, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad

    def forward(self, positions: Tensor) -> Tensor:
        own = positions.chunk(dist.get_world_size())[dist.get_rank()]
        return torch.nn.functional.embedding(own, self.weight)


def torchs_step(config: GPTConfig, seq_len: int, sequence: bool, dtype: torch.dtype) -> dict[str, Tensor]:
    model = GPT(config, dtype=dtype)
    if dtype == torch.float64:
        model = moved(model)
    tokens, targets = batch(config, seq_len)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, torchs_plan(sequence))
    if sequence:
        model.position_embedding = OwnPositions(model.position_embedding)
    dist.barrier()
    logits = model(tokens)
    with loss_parallel():
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).backward()
    if dtype != torch.float64:
        return {}
    named = ((name, param.grad) for name, param in model.named_parameters())
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in named}


def our_step(config: GPTConfig, seq_len: int, sequence: bool, dtype: torch.dtype) -> None:
    model = parallelize(GPT(config, dtype=dtype), plan=GPT_SEQUENCE_PLAN if sequence else GPT_PLAN)
    tokens, targets = batch(config, seq_len)
    dist.barrier()
    vocabulary_parallel_loss(model(tokens), targets, config.vocab_size).backward()
