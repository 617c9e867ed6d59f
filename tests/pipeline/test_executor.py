"""The executor: raw gradients of every plan equal those of one device, in float64, and repeat to the bit."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import average_gradients
from lablib.pipeline import Costs, Plan, naive_communication, schedules, with_communication
from lablib.pipeline.executor import Pipeline, cut, cut_at, seed_of, token_weights
from lablib.pipeline.schedules import SCHEDULES
from tests.pipeline.drawn_plans import any_plan, plans

CONFIG = GPTConfig(num_layers=4, d_model=8, num_heads=2, vocab_size=16, max_seq_len=6)
Found = dict[str, Tensor]


class Block(nn.Module):
    """A norm, two products and a residual, with dropout where it is asked for."""

    def __init__(self, width: int = 4, dropout: float = 0.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 6), nn.Linear(6, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.dropout(torch.tanh(self.up(self.norm(x)))))


def blocks(number: int, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(dropout=dropout) for _ in range(number))).double()


def mean_square(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def rows(sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Micro-batches of so many rows, and their targets."""
    generator = torch.Generator().manual_seed(1)
    both = [torch.randn(2, size, 4, dtype=torch.float64, generator=generator) for size in sizes]
    return [x for x, _ in both], [y for _, y in both]


def tokens(num_microbatches: int, size: int = 2, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    drawn = torch.randint(0, 16, (num_microbatches, size, 7), generator=torch.Generator().manual_seed(seed))
    return list(drawn[..., :-1]), list(drawn[..., 1:])


def own_gradients(pipeline: Pipeline, model: nn.Module) -> Found:
    """The gradients of this rank's pieces, by the model's names; a parameter without one is zero."""
    names = {param: name for name, param in model.named_parameters()}
    return {names[p]: torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in pipeline.parameters()}


def gradients_of(model: nn.Module) -> Found:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def one_device(model: nn.Module, loss_fn: Callable, inputs: Any, targets: Any, weights: Sequence[float]) -> Found:
    """The gradients of one model, micro-batch by micro-batch."""
    for x, y, weight in zip(inputs, targets, weights, strict=True):
        (weight * loss_fn(model(x), y)).backward()
    return gradients_of(model)


def assert_same(found: Sequence[Found], expected: Found, rtol: float = 1e-9) -> None:
    assert set().union(*found) == set(expected)
    for of_rank in found:
        for name, grad in of_rank.items():
            torch.testing.assert_close(grad, expected[name], rtol=rtol, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def gpt_step(plan: Any, recompute: bool = False, steps: int = 1) -> tuple[Found, list[float]]:
    plan_of = getattr(plan, "plan", plan)
    model = GPT(CONFIG, dtype=torch.float64)
    pipeline = Pipeline(plan, cut(model, plan_of.num_pieces), next_token_loss, recompute=recompute)
    losses: list[Tensor] = []
    for _ in range(steps):
        for param in pipeline.parameters():
            param.grad = None
        losses = pipeline.step(*tokens(plan_of.num_microbatches))
    return own_gradients(pipeline, model), [loss.item() for loss in losses]


def assert_gpt(run: Any, m: int) -> None:
    """All ranks together have the gradients of one device on the whole batch, and its loss."""
    model, (inputs, targets) = GPT(CONFIG, dtype=torch.float64), tokens(m)
    loss = next_token_loss(model(torch.cat(inputs)), torch.cat(targets))
    loss.backward()
    assert_same([found for found, _ in run.values], gradients_of(model))
    (losses,) = [each for _, each in run.values if each]
    assert sum(losses) / m == pytest.approx(loss.item(), rel=1e-12)


# ---- every schedule, and plans of nobody's


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("p", "m", "v"),
    [(3, 5, 2), pytest.param(1, 2, 2, marks=pytest.mark.thorough), pytest.param(2, 7, 3, marks=pytest.mark.thorough)],
)
def test_a_gpt_with_a_tied_head_has_the_gradients_of_one_device(name, p, m, v):
    plan = any_plan(name, p, m, v)
    assert_gpt(launch(gpt_step, plan, ranks=p, like="nccl"), plan.num_microbatches)


@settings(max_examples=30, deadline=None)
@given(plan=plans(), more=st.integers(0, 2), uneven=st.booleans(), recompute=st.booleans())
def test_any_valid_plan_has_the_gradients_of_one_device(plan, more, uneven, recompute):
    """Pieces anywhere, backwards split or not, micro-batches of unequal size; NCCL would not hang either."""
    inputs, targets = rows([1 + i * uneven for i in range(plan.num_microbatches)])
    weights = token_weights(targets)

    def program() -> Found:
        model = blocks(plan.num_pieces + more)
        pipeline = Pipeline(plan, cut(model, plan.num_pieces), mean_square, recompute=recompute)
        pipeline.step(inputs, targets, weights)
        return own_gradients(pipeline, model)

    run = launch(program, ranks=plan.num_stages, like="nccl")
    assert not run.notes
    expected = one_device(blocks(plan.num_pieces + more), mean_square, inputs, targets, weights)
    assert_same(run.values, expected)


def test_a_rank_between_others_may_have_nothing_to_do():
    plan = Plan.parse("holes", ["0F0 0I0 0W0", "", "1F0 1B0"], rank_of=(0, 2))
    inputs, targets = rows([3])

    def program() -> Found:
        model = blocks(2)
        pipeline = Pipeline(plan, cut_at(model, [0, 1]), mean_square)
        pipeline.step(inputs, targets)
        return own_gradients(pipeline, model)

    run = launch(program, ranks=3)
    assert run.values[1] == {}
    assert_same(run.values, one_device(blocks(2), mean_square, inputs, targets, [1.0]))


def test_every_run_is_the_same_to_the_bit_and_as_on_real_processes():
    plan = with_communication(schedules.zb_v(2, 3), Costs(forward_s=1, backward_s=3, send_s=0.5))
    first, again = launch(gpt_step, plan, False, 2, ranks=2), launch(gpt_step, plan, False, 2, ranks=2)
    real = launch(gpt_step, plan, False, 2, ranks=2, backend="gloo")
    for run in (again, real):
        for (found, losses), (expected, expected_losses) in zip(run.values, first.values, strict=True):
            torch.testing.assert_close(found, expected, rtol=0 if run is again else 1e-12, atol=0)
            assert losses == pytest.approx(expected_losses, rel=1e-12)
    assert first.timeline.makespan_s == again.timeline.makespan_s


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_repeats_whatever_the_plan(recompute):
    """With a seed the numbers depend on step, piece and micro-batch: another plan, and one device, draw the same."""
    inputs, targets = rows([3, 3, 3, 3])

    def program(plan: Plan) -> Found:
        model = blocks(4, dropout=0.5)
        pipeline = Pipeline(plan, cut_at(model, [0, 1, 2, 3]), mean_square, seed=7, recompute=recompute)
        pipeline.step(inputs, targets)
        model.zero_grad()
        pipeline.step(inputs, targets)
        return own_gradients(pipeline, model)

    model = blocks(4, dropout=0.5)
    for microbatch, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        for piece, layer in enumerate(model):
            torch.manual_seed(seed_of(7, 1, piece, microbatch))
            x = layer(x)
        (mean_square(x, y) / 4).backward()
    for plan in (schedules.gpipe(4, 4), schedules.zb_v(2, 4)):
        assert_same(launch(program, plan, ranks=plan.num_stages).values, gradients_of(model))


def test_checkpoints_inside_a_piece_and_a_split_backward_go_together():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, layer: nn.Module):
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.layer, x, use_reentrant=False)

    inputs, targets = rows([2] * 4)

    def program() -> Found:
        model = blocks(4)
        names = {param: name for name, param in model.named_parameters()}
        pipeline = Pipeline(
            schedules.zb_h1(2, 4), cut_at(nn.Sequential(*map(Checkpointed, model)), [0, 2]), mean_square
        )
        pipeline.step(inputs, targets)
        return {names[p]: p.grad for p in pipeline.parameters() if p.grad is not None}

    assert_same(launch(program, ranks=2).values, one_device(blocks(4), mean_square, inputs, targets, [0.25] * 4))


def test_two_plans_before_a_step_add_up_and_tied_gradients_are_summed_once():
    inputs, targets = tokens(5)
    weights = token_weights(targets)

    def program() -> Found:
        model = GPT(CONFIG, dtype=torch.float64)
        pieces = cut(model, 2)
        first = Pipeline(schedules.one_f_one_b(2, 3), pieces, next_token_loss)
        second = Pipeline(schedules.zb_h1(2, 2), pieces, next_token_loss)
        first.step(inputs[:3], targets[:3], weights[:3], is_last=False)
        second.step(inputs[3:], targets[3:], weights[3:])
        return own_gradients(second, model)

    expected = one_device(GPT(CONFIG, dtype=torch.float64), next_token_loss, inputs, targets, [0.2] * 5)
    assert_same(launch(program, ranks=2).values, expected)


def test_beside_data_parallel_replicas_the_gradients_are_those_of_the_whole_batch():
    """2 replicas of 2 ranks: each averages a piece as soon as its gradients are complete."""
    plan = schedules.interleaved_1f1b(2, 2, 2)

    def program() -> tuple[Found, list[int]]:
        replica, place = divmod(dist.get_rank(), 2)
        pipelines: list[Any] = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        replicas: list[Any] = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        model, called = GPT(CONFIG, dtype=torch.float64), []
        pipeline = Pipeline(plan, cut(model, 4), next_token_loss, group=pipelines[replica])

        def average(number: int, piece: nn.Module) -> None:
            called.append(number)
            average_gradients(piece, replicas[place])

        pipeline.step(*tokens(2, seed=replica), on_gradients=average)
        return own_gradients(pipeline, model), called

    run = launch(program, ranks=4)
    (x0, y0), (x1, y1) = tokens(2, seed=0), tokens(2, seed=1)
    expected = one_device(GPT(CONFIG, dtype=torch.float64), next_token_loss, x0 + x1, y0 + y1, [0.25] * 4)
    assert_same([found for found, _ in run.values], expected)
    assert [called for _, called in run.values] == [[2, 0], [3, 1]] * 2


def test_a_frozen_piece_and_one_that_does_not_use_its_input():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight.expand(x.shape)

    inputs, targets = rows([2, 2])

    def built() -> nn.Sequential:
        model = nn.Sequential(*blocks(2), Constant(), *blocks(1))
        model[0].requires_grad_(False)
        return model

    def program() -> Found:
        model = built()
        pipeline = Pipeline(schedules.zb_h1(4, 2), cut_at(model, [0, 1, 2, 3]), mean_square)
        pipeline.step(inputs, targets)
        return own_gradients(pipeline, model)

    assert_same(launch(program, ranks=4).values, one_device(built(), mean_square, inputs, targets, [0.5] * 2))


def test_what_is_received_in_step_without_values_runs_on_shapes_alone():
    def program() -> tuple[int, ...]:
        model = GPT(CONFIG, device="meta")
        pipeline = Pipeline(schedules.zb_v(2, 3), cut(model, 4), next_token_loss)
        x = [torch.empty(2, 6, dtype=torch.int64, device="meta")] * 3
        pipeline.step(x, x)
        return tuple(len(p.grad.shape) for p in pipeline.parameters() if p.grad is not None)

    assert all(launch(program, ranks=2, fidelity="shapes").values)


def test_a_batch_of_messages_may_be_one_work_as_on_nccl(monkeypatch: pytest.MonkeyPatch):
    class All:
        def __init__(self, works: Sequence[Any]):
            self.works = works

        def wait(self) -> None:
            for work in self.works:
                work.wait()

        def is_completed(self) -> bool:
            return all(work.is_completed() for work in self.works)

    each = dist.batch_isend_irecv
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda ops: [All(each(ops))])
    assert_gpt(launch(gpt_step, schedules.one_f_one_b(3, 4), ranks=3), 4)


# ---- what is refused, before anything is sent


def refused(words: str, program: Callable, ranks: int = 2) -> None:
    with pytest.raises(RankError, match=words) as found:
        launch(program, ranks=ranks)
    assert isinstance(found.value.__cause__, ValueError)


def of_blocks(plan: Any, pieces: Sequence[nn.Module] | None = None, **options: Any) -> Pipeline:
    plan_of = getattr(plan, "plan", plan)
    pieces = cut(blocks(plan_of.num_pieces), plan_of.num_pieces) if pieces is None else pieces
    return Pipeline(plan, pieces, mean_square, **options)


def test_a_pipeline_that_does_not_fit_its_plan_is_refused():
    gpipe = schedules.gpipe(2, 2)
    refused("the plan is for 3 ranks, and the group has 2: launch 3", lambda: of_blocks(schedules.gpipe(3, 2)))
    refused(r"the plan has 2 pieces: got 3; try cut\(model, 2\)", lambda: of_blocks(gpipe, cut(blocks(3), 3)))
    refused("piece 1 has none", lambda: of_blocks(gpipe, [*cut(blocks(1), 1), nn.Sequential()]))
    wrong = Plan.parse("mine", ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])
    refused("mine: R5: no rank can continue: rank 0 waits at step 2, 0B0", lambda: of_blocks(wrong))
    naive = naive_communication(schedules.one_f_one_b(2, 4))
    refused("1f1b: R5: no rank can continue: rank 0 waits at step 4, 0SEND_F1", lambda: of_blocks(naive))


def test_micro_batches_that_do_not_fit_the_plan_are_refused():
    x, y = rows([2, 2])
    uneven = rows([2, 3])
    gpipe = schedules.gpipe(2, 2)
    refused("the plan has 2 micro-batches: got 1 inputs; cut the batch into 2", lambda: of_blocks(gpipe).step(x[:1], y))
    refused("got 1 targets", lambda: of_blocks(gpipe).step(x, y[:1]))
    refused("got 3 weights", lambda: of_blocks(gpipe).step(x, y, [0.3] * 3))
    refused(
        r"unequal size weigh unequally: inputs have shapes \(2, 4\) and \(3, 4\); pass weights",
        lambda: of_blocks(gpipe).step(*uneven),
    )
    refused("weights must be finite", lambda: of_blocks(gpipe).step(x, y, [0.5, float("nan")]))
    with pytest.raises(ValueError, match="number 1 has none; leave it out"):
        token_weights([torch.tensor([1, -100]), torch.tensor([-100])])
    assert token_weights([torch.tensor([1, -100]), torch.tensor([4, 2, 7])]) == [0.25, 0.75]


def test_an_activation_that_is_not_what_the_next_piece_expects_is_refused():
    class Halved(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            y = super().forward(input)
            return y if y.is_meta else y.bfloat16()

    def halved() -> None:
        x, y = rows([2, 2])
        of_blocks(schedules.gpipe(2, 2), [Halved(4, 4).double(), *blocks(1)]).step(x, y)

    refused(r"0SEND_F0: the other end expects float64\[2, 4\].*got bfloat16\[2, 4\]; cast inside", halved)
    refused(
        "a piece must give one floating tensor",
        lambda: of_blocks(schedules.gpipe(2, 2), [Flags(), *blocks(1)]).step(*rows([2, 2])),
    )


class Flags(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x > 0
