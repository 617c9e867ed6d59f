"""The plain GPT with its sequences shared by ranks: loss and raw gradients of one device."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from lablib import RankError, launch, parallel
from lablib.batches.packed_attention import attend_by_length, packed_logits
from lablib.batches.packing import PackedBlocks
from lablib.models import GPT, GPTConfig, next_token_loss

EXACT: Any = {"rtol": 1e-9, "atol": 1e-12}
WAYS: dict[str, Any] = {
    "ring": parallel.ring_attention,
    "gather": parallel.gathered_attention,
    "ulysses": parallel.ulysses_attention,
}
CONFIG = GPTConfig(2, 12, 6, vocab_size=11, max_seq_len=32, d_ff=7)


def gpt(config: GPTConfig = CONFIG) -> GPT:
    """Biases and norms away from 0 and 1, so that none may be forgotten."""
    model = GPT(config, dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)
    for param in model.parameters():
        param.data += 0.1 * torch.randn(param.shape, generator=generator, dtype=param.dtype)
    return model


def batch(seq_len: int, rows: int = 2, seed: int = 3) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, 11, (rows, seq_len + 1), generator=torch.Generator().manual_seed(seed))
    return drawn[:, :-1], drawn[:, 1:].clone()


def grads_of(model: nn.Module) -> dict[str, Tensor]:
    named = ((name.removeprefix("module."), param.grad) for name, param in model.named_parameters())
    return {name: grad for name, grad in named if grad is not None}


def one_device(seq_len: int) -> tuple[float, dict[str, Tensor]]:
    model, (tokens, targets) = gpt(), batch(seq_len)
    loss = next_token_loss(model(tokens), targets)
    loss.backward()
    return loss.item(), grads_of(model)


def step(order: str, way: str, seq_len: int) -> tuple[float, dict[str, Tensor]]:
    context = parallel.ContextParallel(order=parallel.ORDERS[order], attention=WAYS[way])
    replica = parallel.DataParallel(context.parallelize(gpt()), reduce=parallel.all_reduce_sum)
    tokens, targets = context.shard(*batch(seq_len))
    loss = context.loss(replica(tokens), targets)
    loss.backward()
    return loss.item(), grads_of(replica)


def same(values: list[Any], expected: tuple[float, dict[str, Tensor]]) -> None:
    for loss, grads in values:
        assert loss == pytest.approx(expected[0], rel=1e-12)
        torch.testing.assert_close(grads, expected[1], **EXACT)


@given(
    order=st.sampled_from(list(parallel.ORDERS)),
    way=st.sampled_from(list(WAYS)),
    n=st.sampled_from([1, 2, 3]),
    more=st.integers(0, 7),
)
@settings(max_examples=12)
def test_loss_and_gradients_are_those_of_one_device(order: str, way: str, n: int, more: int):
    """Uneven shards too: a mean of the ranks' means would show."""
    same(launch(step, order, way, 2 * n + more, ranks=n).values, one_device(2 * n + more))


def test_real_processes_give_what_the_simulator_gives_and_the_simulator_repeats_to_the_bit():
    first, again = (launch(step, "zigzag", "ring", 13, ranks=2).values for _ in range(2))
    for (loss, grads), (loss_2, grads_2) in zip(first, again, strict=True):
        assert loss == loss_2 and all(torch.equal(grad, grads_2[name]) for name, grad in grads.items())
    same(launch(step, "zigzag", "ring", 13, ranks=2, backend="gloo").values, one_device(13))


def test_ulysses_inside_the_ring_beside_data_and_targets_that_do_not_count():
    """Two replicas of four context ranks: tokens are counted over all eight, as the replicas' numbers differ."""
    tokens, targets = batch(17, rows=4)
    targets[:2, :9] = -100

    def program() -> tuple[float, dict[str, Tensor]]:
        mesh = parallel.Mesh(data=2, ring=2, heads=2)
        both = parallel.UlyssesRing(mesh.group("heads"), mesh.group("ring"))
        everyone: Any = dist.group.WORLD
        context = parallel.ContextParallel(mesh.group("ring", "heads"), both.order, both.attention, everyone)
        replica = parallel.DataParallel(context.parallelize(gpt()), reduce=parallel.all_reduce_sum)
        rows = slice(0, 2) if mesh.coordinates(dist.get_rank())["data"] == 0 else slice(2, 4)
        own, own_targets = context.shard(tokens[rows], targets[rows])
        loss = context.loss(replica(own), own_targets)
        loss.backward()
        return loss.item(), grads_of(replica)

    model = gpt()
    expected = next_token_loss(model(tokens), targets)
    expected.backward()
    same(launch(program, ranks=8).values, (expected.item(), grads_of(model)))


def test_beside_tensor_parallelism_each_has_some_heads_of_some_tokens():
    def program() -> tuple[float, dict[str, Tensor]]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("context", "tensor"))
        context = parallel.ContextParallel(mesh.get_group("context"))
        plan = {name: style for name, style in parallel.GPT_PLAN.items() if name not in ("head", "token_embedding")}
        model = parallel.parallelize(context.parallelize(gpt()), mesh["tensor"], plan)
        replica = parallel.DataParallel(model, mesh.get_group("context"), reduce=parallel.all_reduce_sum)
        tokens, targets = context.shard(*batch(9))
        loss = context.loss(replica(tokens), targets)
        loss.backward()
        return loss.item(), parallel.full_gradients(model)

    same(launch(program, ranks=4).values, one_device(9))


@pytest.mark.parametrize("way", WAYS)
def test_packed_documents_have_the_loss_and_gradients_of_packed_attention(way: str):
    documents = torch.tensor([[0] * 4 + [1] * 7 + [2] * 2 + [-1], [0] * 9 + [1] * 5])
    starts = torch.tensor([[0] * 4 + [4] * 7 + [11] * 2 + [13], [0] * 9 + [9] * 5])
    tokens, targets = batch(14)
    targets[documents < 0] = -100

    def program() -> tuple[float, dict[str, Tensor]]:
        context = parallel.ContextParallel(attention=WAYS[way])
        replica = parallel.DataParallel(
            context.parallelize(gpt(GPTConfig(2, 12, 6, 11, 9, 7))), reduce=parallel.all_reduce_sum
        )
        own, own_targets = context.shard(tokens, targets, documents_BT=documents)
        loss = context.loss(replica(own), own_targets)
        loss.backward()
        return loss.item(), grads_of(replica)

    model = gpt(GPTConfig(2, 12, 6, 11, 9, 7))  # as long as the longest document, not as the block
    blocks = PackedBlocks(tokens, targets, torch.arange(14) - starts, documents)
    expected = next_token_loss(packed_logits(model, blocks, attend_by_length(documents)), targets)
    expected.backward()
    same(launch(program, ranks=3).values, (expected.item(), grads_of(model)))


def test_five_steps_of_sgd_leave_the_parameters_of_one_device():
    def train(model: nn.Module, loss_of: Any) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(5):
            optimizer.zero_grad()
            loss_of(model, *batch(9 + seed, seed=seed)).backward()  # each of another length
            optimizer.step()
        return {name.removeprefix("module."): param.detach() for name, param in model.named_parameters()}

    def program() -> dict[str, Tensor]:
        context = parallel.ContextParallel()

        def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
            own, own_targets = context.shard(tokens, targets)
            return context.loss(model(own), own_targets)

        return train(parallel.DataParallel(context.parallelize(gpt()), reduce=parallel.all_reduce_sum), loss_of)

    expected = train(gpt(), lambda model, tokens, targets: next_token_loss(model(tokens), targets))
    for found in launch(program, ranks=3).values:
        torch.testing.assert_close(found, expected, **EXACT)


def test_a_copy_of_the_model_sees_the_same_batch_and_has_the_names_of_the_plain_one():
    def program() -> tuple[float, list[str]]:
        context = parallel.ContextParallel(parallel.Mesh(context=2).group("context"))
        model = copy.deepcopy(context.parallelize(gpt()))
        tokens, targets = context.shard(*batch(9))
        return context.loss(model(tokens), targets).item(), list(model.state_dict())

    for loss, names in launch(program, ranks=2).values:
        assert loss == pytest.approx(one_device(9)[0], rel=1e-12)
        assert sorted(names) == sorted(gpt().state_dict())


# ---- bad input ----


def test_what_cannot_be_is_refused_before_any_rank_starts():
    assert parallel.check_context(16, 6, 6, 4) == parallel.zigzag_order(16, 4)
    with pytest.raises(ValueError, match="got 7 tokens for the 8 pieces of zigzag on 4 ranks; try 8 tokens"):
        parallel.check_context(7, 6, 6, 4)
    with pytest.raises(ValueError, match="num_heads must be a multiple of the ranks.*got 6 heads on 4 ranks; try 3"):
        parallel.check_context(16, 6, 6, 4, attention=parallel.ulysses_attention)
    parallel.check_context(16, 6, 6, 4, order=parallel.ORDERS["striped"], attention=parallel.gathered_attention)
    assert parallel.check_context(16, 6, 6, 4, heads_ranks=2) == parallel.nested_order(parallel.zigzag_order(16, 2), 2)
    with pytest.raises(ValueError, match="num_heads must be a multiple of the ranks.*got 5 heads on 2 ranks"):
        parallel.check_context(16, 5, 5, 4, heads_ranks=2)
    with pytest.raises(ValueError, match="heads_ranks must divide the ranks: got 3 of 4; try 1"):
        parallel.check_context(16, 6, 6, 4, heads_ranks=3)
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_kv_heads: got 6 and 4"):
        parallel.check_context(16, 6, 4, 4)


def test_what_does_not_fit_is_refused_on_the_rank():
    def ulysses() -> None:
        parallel.ContextParallel(attention=parallel.ulysses_attention).parallelize(gpt())

    def uncut() -> None:
        parallel.ContextParallel().parallelize(gpt())(batch(8)[0])

    def longer(documents: Tensor | None = None) -> None:
        context = parallel.ContextParallel()
        context.parallelize(gpt())(*context.shard(batch(33)[0], documents_BT=documents))

    def unequal() -> None:
        parallel.ContextParallel().shard(batch(8)[0], batch(9)[1])

    refused: list[tuple[Any, tuple, str]] = [
        (ulysses, (), "got 6 heads on 4 ranks; try 3 ranks"),
        (uncut, (), r"call context.shard\(tokens, targets\) first"),
        (longer, (), "must have at most max_seq_len=32 tokens: got 33"),
        (longer, (torch.zeros(2, 33, dtype=torch.long),), "must have at most max_seq_len=32 tokens: got 33"),
        (unequal, (), r"must be \[B, T\], as the tokens: got \(2, 9\) beside \(2, 8\)"),
    ]
    for program, args, message in refused:
        with pytest.raises(RankError, match=message):
            launch(program, *args, ranks=4)
