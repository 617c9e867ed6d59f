"""Random numbers on tensor-parallel ranks: what must agree, what must not, and what equal seeds do to a model."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import launch, parallel
from lablib.models import GPT, GPTConfig

WIDTH, HIDDEN, RANKS = 6, 8, 4


@given(n=st.integers(1, 5), rows=st.integers(1, 9), columns=st.integers(1, 5), dim=st.integers(0, 1))
@settings(max_examples=8)
def test_shards_are_those_of_what_one_device_draws(n: int, rows: int, columns: int, dim: int):
    def program() -> Tensor:
        return parallel.gather_from_ranks(
            parallel.sharded_normal((rows, columns), dim, 0.02, 7), dim, (rows, columns)[dim]
        )

    for found in launch(program, ranks=n).values:
        assert torch.equal(found, parallel.whole_normal((rows, columns), 0.02, 7))


def trained(draw: Any, num_steps: int = 20) -> tuple[Tensor, float]:
    """The rows of the first matrix after some steps of an MLP, gathered, and the last loss."""
    up = draw((HIDDEN, WIDTH), 0, 0.5, 0).requires_grad_()
    down = draw((WIDTH, HIDDEN), 1, 0.5, 1).requires_grad_()
    zeros = torch.zeros(len(up), dtype=torch.float64), torch.zeros(WIDTH, dtype=torch.float64)
    x = parallel.whole_normal((4, 16, WIDTH), 1.0, 2)
    target, loss = torch.sin(3 * x), torch.zeros(())
    for _ in range(num_steps):
        loss = (parallel.tensor_mlp(x, parallel.MLPShard(up, zeros[0], down, zeros[1])) - target).square().mean()
        loss.backward()
        for weight in (up, down):
            assert weight.grad is not None
            weight.data -= 1.0 * weight.grad
            weight.grad = None
    return parallel.gather_from_ranks(up.detach(), 0, HIDDEN), loss.item()


def test_equal_seeds_give_copies_of_one_shard_that_stay_copies():
    """The matrix of 8 hidden units has rank 2, to the bit, after any number of steps, and the loss is higher."""
    naive, naive_loss = launch(trained, parallel.naive_sharded_normal, ranks=RANKS).values[0]
    assert all(torch.equal(naive[:2], naive[2 * r : 2 * r + 2]) for r in range(RANKS))
    assert torch.linalg.matrix_rank(naive) == 2
    assert not torch.equal(naive, naive_sharded(0))  # it did train
    real, loss = launch(trained, parallel.sharded_normal, ranks=RANKS).values[0]
    assert torch.linalg.matrix_rank(real) == 6
    assert loss < 0.95 * naive_loss


def naive_sharded(seed: int) -> Tensor:
    return torch.cat([parallel.whole_normal((HIDDEN // RANKS, WIDTH), 0.5, seed)] * RANKS)


def test_wrong_draws_names_shards_that_are_equal_and_wholes_that_differ():
    def program(seeds: str) -> dict[str, str]:
        layers = nn.ModuleDict(
            {"up": parallel.ColumnLinear(nn.Linear(4, 9)), "down": parallel.RowLinear(nn.Linear(9, 4))}
        )
        generators = parallel.TensorGenerators(3)
        for name, param in layers.named_parameters():
            is_whole = name == "down.bias"
            as_it_should = generators.shared if is_whole else generators.own
            wrong = generators.own if is_whole else torch.Generator().manual_seed(5)
            param.data.normal_(generator=as_it_should if seeds == "right" else wrong)
        return parallel.wrong_draws(layers)

    assert launch(program, "right", ranks=3).values == [{}] * 3
    equal = dict.fromkeys(("up.weight", "up.bias", "down.weight"), "equal shards")
    assert launch(program, "wrong", ranks=3).values == [equal | {"down.bias": "differs"}] * 3
    assert launch(program, "wrong", ranks=1).values == [{}]


def test_a_gpt_that_was_cut_has_no_wrong_draws():
    def program() -> dict[str, str]:
        return parallel.wrong_draws(parallel.parallelize(GPT(GPTConfig(1, 8, 4, 12, 8)), plan=parallel.GPT_PLAN))

    assert launch(program, ranks=2).values == [{}, {}]


def test_dropout_outside_agrees_over_ranks_and_inside_does_not():
    x = torch.ones(1000, dtype=torch.float64)

    def program() -> tuple[Tensor, Tensor]:
        generators = parallel.TensorGenerators(11)
        return parallel.dropout(x, 0.25, generators.shared), parallel.dropout(x, 0.25, generators.own)

    first, second = launch(program, ranks=2).values
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    for mask in (first[0], first[1], second[1]):
        assert set(mask.tolist()) == {0.0, 1 / 0.75}
        assert mask.count_nonzero().item() == pytest.approx(750, abs=70)  # five standard deviations
    both = (first[1] > 0) & (second[1] > 0)
    assert both.sum().item() == pytest.approx(562, abs=80)  # independent: 0.75^2


def test_dropout_has_the_gradient_of_what_stays():
    x = torch.full((50,), 2.0, requires_grad=True)
    y = parallel.dropout(x, 0.5, torch.Generator().manual_seed(0))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach() / 2)  # pyright: ignore[reportArgumentType]
    assert parallel.dropout(x, 0.5, torch.Generator(), training=False) is x
    assert parallel.dropout(x, 0.0, torch.Generator()) is x
    with pytest.raises(ValueError, match="p must be from 0 to below 1: got 1"):
        parallel.dropout(x, 1.0, torch.Generator())


def test_a_shard_on_the_naive_way_has_the_shape_of_its_cut():
    def program() -> None:
        assert parallel.naive_sharded_normal((7, 2), 0, 1.0, 0).shape == parallel.shard_of(torch.empty(7, 2), 0).shape

    launch(program, ranks=3)
