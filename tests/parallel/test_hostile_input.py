"""Cases that nobody chose: odd memory, odd orders, numbers that are no words, any value where a formula asks one."""

from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import RankError, launch, parallel
from lablib.errors import ValueNeededError
from lablib.models import GPT, GPTConfig
from lablib.parallel.mesh.checkpoint import load_checkpoint, save_checkpoint
from lablib.plan.axis_by_axis import axis_by_axis
from lablib.studies import far_bytes, place, placements, step_calls, step_traffic, strategies, strategy_verdicts
from tests.fuzz.held import outcome
from tests.fuzz.test_functions import arguments

CONFIG = GPTConfig(2, 8, 4, vocab_size=12, max_seq_len=16)

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

# ---- memory ----


def laid_out(shape: list[int], dims: list[int], seed: int) -> Tensor:
    """Numbers of that shape whose dimensions lie in memory in the order `dims`."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    back = [dims.index(dim) for dim in range(4)]
    return drawn.permute(dims).contiguous().permute(back)


@given(
    shape=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    layouts=st.lists(st.permutations(range(4)), min_size=4, max_size=4),
    is_causal=st.booleans(),
)
@settings(max_examples=40)
def test_attention_in_blocks_is_the_same_however_its_tensors_lie_in_memory(
    shape: list[int], layouts: list[list[int]], is_causal: bool
):
    """torch's kernel takes a row's numbers to be neighbours: elsewhere it read what was no part of the tensor."""
    blocks, results = parallel.blocks_of([range(shape[2])], [range(shape[2])], None, is_causal), []
    for dims in (layouts, [[0, 1, 2, 3]] * 4):
        q, k, v, grad = (laid_out(shape, list(each), seed) for seed, each in enumerate(dims))
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        o = parallel.attention_in_blocks(q, k, v, blocks)
        results.append([o.detach(), *torch.autograd.grad(o, (q, k, v), grad)])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)


# ---- orders ----


@st.composite
def any_pieces(draw: Any) -> tuple[tuple[range, ...], ...]:
    """Every position on some rank, in ranges of whatever steps they happen to have."""
    owners = draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    ranks = []
    for rank in range(3):
        left, pieces = [t for t, owner in enumerate(owners) if owner == rank], []
        while left:
            most = draw(st.integers(1, len(left)))
            step = left[1] - left[0] if most > 1 else draw(st.integers(1, 3))
            run = 1
            while run < most and left[run] - left[run - 1] == step:
                run += 1
            pieces.append(range(left[0], left[run - 1] + draw(st.integers(1, step)), step))
            left = left[run:]
        ranks.append(tuple(pieces))
    return tuple(ranks)


@given(pieces=any_pieces(), cuts=st.sets(st.integers(1, 11)), is_causal=st.booleans())
@settings(max_examples=150)
def test_an_order_is_refused_or_its_blocks_are_the_pairs_that_are_seen_each_once(
    pieces: Any, cuts: set[int], is_causal: bool
):
    try:
        order = parallel.Order("drawn", pieces)
    except ValueError as error:
        assert "must have one step" in str(error)
        assert len({piece.step for rank in pieces for piece in rank if len(piece) > 1}) > 1
        return
    ends = [0, *sorted(cut for cut in cuts if cut < order.seq_len), order.seq_len]
    documents = [range(a, b) for a, b in pairwise(ends)]
    for a in range(order.num_ranks):
        for b in range(order.num_ranks):
            queries, keys, seen = order.tokens(a), order.tokens(b), Counter[tuple[int, int]]()
            for block in parallel.blocks_of(order.pieces[a], order.pieces[b], (tuple(documents),), is_causal):
                for i, q in enumerate(queries[block.queries]):
                    seen.update((q, k) for j, k in enumerate(keys[block.keys]) if j <= i or not block.is_causal)
            wanted = [
                (q, k)
                for d in documents
                for q in queries
                for k in keys
                if q in d and k in d and (k <= q or not is_causal)
            ]
            assert seen == Counter(wanted)


@given(seq_len=st.integers(6, 16), ranks=st.integers(1, 4), more=st.integers(-1, 2), wider=st.integers(-1, 1))
def test_an_order_of_other_tokens_or_ranks_is_refused_before_any_starts(
    seq_len: int, ranks: int, more: int, wider: int
):
    made = parallel.order_of("contiguous", seq_len + more, max(1, ranks + wider))

    def order(*_: int) -> parallel.Order:
        return made

    if (made.seq_len, made.num_ranks) == (seq_len, ranks):
        assert parallel.check_context(seq_len, 4, 4, ranks, order) is made
        return
    with pytest.raises(ValueError, match=f"got one for {made.seq_len} tokens on {made.num_ranks} ranks"):
        parallel.check_context(seq_len, 4, 4, ranks, order)


@pytest.mark.parametrize("made", [None, 3, "zigzag", lambda *_: 0])
def test_an_order_that_is_none_is_refused(made: Any):
    with pytest.raises(ValueError, match="what it returns must be"):
        parallel.Combination(CONFIG, parallel.Mesh(context=2), 4, 8, order=lambda *_: made)
    with pytest.raises(ValueError, match="rank must be"):
        parallel.zigzag_order(8, 2).tokens(-1)


# ---- a combination ----


def test_too_many_stages_are_refused_before_a_plan_is_made_of_them():
    tried: list[Any] = [{}, {"schedule": "interleaved", "num_chunks": 10**6}, {"schedule": "zb-v"}]
    for options in tried:
        with pytest.raises(ValueError, match="every piece of the pipeline needs a layer"):
            parallel.Combination(CONFIG, parallel.Mesh(pipeline=4000), 4000, 8, num_micro_batches=4000, **options)


@given(
    sizes=st.sampled_from([{"data": 2}, {"tensor": 2}, {"pipeline": 2}, {"context": 2}]),
    place=st.tuples(st.integers(0, 3), st.integers(0, 7)),
    word=st.sampled_from([-100, -1, 12, 2**40]),
    in_targets=st.booleans(),
)
@settings(max_examples=12)
def test_a_number_that_is_no_word_is_refused_and_the_next_step_is_as_ever(
    sizes: Any, place: tuple[int, int], word: int, in_targets: bool
):
    """An ignored target would weigh a micro-batch's mean wrongly; another one is an error from torch's insides."""
    how = parallel.Combination(CONFIG, parallel.Mesh(**sizes), 4, 8, num_micro_batches=2)

    def program() -> tuple[float, str, float]:
        tokens = torch.arange(32).view(4, 8) % 12
        step = parallel.CombinedStep(how, partial(torch.optim.SGD, lr=0.1), dtype=torch.float64)
        before = step.backward(tokens, tokens).item()
        odd = tokens.clone()
        odd[place] = word
        try:
            step.backward(*((tokens, odd) if in_targets else (odd, tokens)))
        except ValueError as error:
            return before, str(error), step.backward(tokens, tokens).item()
        raise AssertionError("not refused")

    for before, said, after in launch(program, ranks=2, trace=False).values:
        assert before == after
        assert f"{'targets' if in_targets else 'tokens'} must be 0 to 11" in said and f"got {word}" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_norm": "1"}, "max_norm must be a number"),
        ({"max_norm": True}, "max_norm must be a number"),
        ({"max_norm": float("nan")}, "max_norm must be a number, above 0: got nan"),
        ({"scaler": 2.0}, "scaler must be"),
        ({"dtype": "float64"}, "dtype must be"),
        ({"seed": 1.5}, "seed must be"),
    ],
)
def test_a_step_explains_what_it_cannot_take(options: Any, message: str):
    how = parallel.Combination(CONFIG, parallel.Mesh(data=1), 4, 8)
    with pytest.raises(RankError, match=message):
        launch(lambda: parallel.CombinedStep(how, partial(torch.optim.SGD, lr=0.1), **options), ranks=1)
    with pytest.raises(ValueError, match="data 1 = 1 for 2; try data=2"):
        how.mesh.require(2)


# ---- experts ----


@pytest.mark.parametrize("every", [1, 2])
def test_sequence_parallelism_beside_a_mixture_is_refused_by_one_sentence(every: int):
    model = parallel.with_experts(GPT(CONFIG, device="meta"), 4, 2, every=every)
    plan = {key: style for key, style in parallel.GPT_SEQUENCE_PLAN.items() if every == 2 or ".mlp." not in key}
    with pytest.raises(ValueError, match=f"mixture of experts sees all tokens .* 'blocks.{every - 1}.mlp'"):
        parallel.check_plan(model, plan, 2)


@given(
    k=st.integers(1, 4),
    normalized=st.sampled_from([None, True, False]),
    scale=st.sampled_from([1.0, 2.5, 0.0, -1.0, float("nan"), float("inf"), 5e-324]),
    groups=st.integers(1, 5),
    of_token=st.integers(1, 5),
)
def test_what_a_router_refuses_its_config_refuses_before(
    k: int, normalized: Any, scale: float, groups: int, of_token: int
):
    options: Any = {"normalized": normalized, "scale": scale, "groups": groups, "groups_of_token": of_token}
    said = []
    for call in (
        lambda: parallel.route(torch.zeros(3, 4), k, **options),
        lambda: parallel.MixtureConfig(4, k, **options),
    ):
        try:
            call()
        except ValueError as error:
            said.append(str(error).removeprefix("route: ").removeprefix("MixtureConfig: "))
        else:
            said.append("")
    assert said[0] == said[1]


@given(ranks=st.lists(st.lists(st.integers(-1, 4), max_size=3), max_size=4), num_experts=st.integers(0, 4))
def test_a_placement_has_every_expert_or_is_refused(ranks: list[list[int]], num_experts: int):
    slots = [expert for rank in ranks for expert in rank]
    is_good = set(slots) == set(range(num_experts)) and num_experts > 0 and len({len(rank) for rank in ranks}) == 1
    try:
        found = parallel.ExpertPlacement(tuple(map(tuple, ranks)), num_experts)
    except ValueError as error:
        assert not is_good and "got" in str(error)
        return
    assert is_good and sum(found.copies) == len(slots) and min(found.copies) > 0
    assert sum(found.rank_loads([1.0] * num_experts)) == pytest.approx(num_experts)


@pytest.mark.parametrize(
    "call",
    [
        lambda: parallel.place_balanced([1e308, 1e308], 1, 2),
        lambda: parallel.least_possible_load([1e308] * 2, 1, 2),
        lambda: parallel.place_in_order(10**9, 1),
        lambda: parallel.place_balanced([1.0] * 4, 2, 10**9),
        lambda: parallel.place_in_order(4, 2).rank_loads(None),  # pyright: ignore
        lambda: place("gpt3-13b", parallel.Mesh(data=2), "dgx-a100", 8).traffic.sent_bytes("Data"),
    ],
)
def test_what_would_be_nan_nothing_or_never_is_one_error(call: Any):
    with pytest.raises(ValueError, match="must|unknown"):
        call()


@given(
    num_tokens=st.integers(1, 9), ranks=st.integers(1, 4), k=st.integers(1, 4), factor=st.sampled_from([0.5, 1.0, 2.0])
)
def test_a_capacity_is_refused_if_any_tensor_ranks_part_of_the_tokens_has_none(
    num_tokens: int, ranks: int, k: int, factor: float
):
    parts = [len(part) for part in torch.zeros(num_tokens).split(-(-num_tokens // ranks))]
    is_possible = min(parts) * k * factor / (4 * ranks) >= 1
    options: Any = {"num_tokens": num_tokens, "capacity_factor": factor, "tensor_ranks": ranks, "cuts_experts": False}
    if is_possible:
        assert parallel.check_experts(4 * ranks, k, 1, **options) == 4
        return
    with pytest.raises(ValueError, match="room for at least one token"):
        parallel.check_experts(4 * ranks, k, 1, **options)


# ---- a checkpoint ----


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "one"
    launch(lambda: save_checkpoint(stepped(), path, 7), ranks=1)
    return path


def stepped() -> parallel.CombinedStep:
    tokens = torch.arange(32).view(4, 8) % 12
    step = parallel.CombinedStep(
        parallel.Combination(CONFIG, parallel.Mesh(data=1), 4, 8), partial(torch.optim.AdamW, lr=0.1)
    )
    step(tokens, tokens)
    return step


@given(place=st.integers(-40, 500), bit=st.integers(0, 7))
@settings(max_examples=15)
def test_a_bit_that_is_turned_in_a_checkpoints_description_is_noticed_or_changes_nothing(
    saved: Path, place: int, bit: int
):
    """It says how many steps were taken, and the learning rate: nothing else would show that they are wrong."""
    file = next(each for each in saved.glob("*.distcp") if b"num_steps" in each.read_bytes())
    whole = file.read_bytes()
    at = whole.index(b"num_steps") + place

    def program() -> tuple[int, float]:
        step = stepped()
        return load_checkpoint(step, saved), step.sharded.optimizer.param_groups[0]["lr"]

    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:
        assert launch(program, ranks=1).values == [(7, 0.1)]
    except RankError as error:
        assert "damaged" in str(error)
    finally:
        file.write_bytes(whole)


# ---- any value of any type ----

HOST_SIDE = [
    *(
        parallel.attention_flops,
        parallel.check_context,
        parallel.check_experts,
        parallel.choose_tokens,
        parallel.context_sent_bytes,
    ),
    *(
        parallel.expert_capacity,
        far_bytes,
        parallel.least_possible_load,
        parallel.order_of,
        place,
        parallel.place_balanced,
        parallel.place_in_order,
    ),
    *(placements, step_calls, step_traffic, strategies, strategy_verdicts, parallel.visible_pairs, axis_by_axis),
    *(parallel.Combination, parallel.ExpertPlacement, parallel.MixtureConfig, parallel.Order),
]


@pytest.mark.parametrize("call", HOST_SIDE, ids=lambda call: call.__name__)
def test_every_call_is_answered_or_explained(call: Any):
    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=SLOW)
    @given(arguments(call))
    def every_call(drawn: tuple[list[Any], dict[str, Any]]) -> None:
        try:
            outcome(Counter(), call, *drawn[0], **drawn[1])
        except ValueNeededError:
            pass

    every_call()
