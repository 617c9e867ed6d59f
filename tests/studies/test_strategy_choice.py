"""The table of strategies computed anew: definitions, closed forms, the simulator, and what is refused."""

from dataclasses import replace
from functools import partial

import pytest

from lablib import launch
from lablib.figures import figure_scaling
from lablib.models import GPTConfig
from lablib.plan import IDEAL, STACKS, Parallel, predict
from lablib.studies import StrategyRow, strategies, strategy_verdicts
from lablib.studies.strategy_choice import CLAIMS, efficiencies
from tests.plan.gpt_step import Job, train

RANKS = (2, 4, 8, 16)


@pytest.fixture(scope="module")
def rows() -> tuple[StrategyRow, ...]:
    return strategies("gpt3-1.3b", "dgx-a100", RANKS, seq_len=2048)


def one(rows: tuple[StrategyRow, ...], strategy: str, ranks: int) -> StrategyRow:
    return next(row for row in rows if (row.strategy, row.ranks) == (strategy, ranks))


def test_every_strategy_has_a_row_for_each_number_of_ranks_that_divides(rows):
    assert {row.strategy for row in rows} == set(CLAIMS)
    assert sum(row.strategy == "data" for row in rows) == len(RANKS)
    odd = strategies("gpt3-1.3b", "dgx-a100", (2, 3, 32), seq_len=2048)
    assert [row.ranks for row in odd if row.strategy == "model"] == [2]  # 24 heads, and a vocabulary of any size
    assert [row.ranks for row in odd if row.strategy == "pipeline"] == [2, 3]  # 24 layers


def test_efficiency_is_throughput_over_n_times_that_of_one(rows):
    base = predict("gpt3-1.3b", "dgx-a100", batch=8, seq_len=2048)
    splits = {"data": Parallel(data=8), "model": Parallel(tensor=8), "pipeline": Parallel(pipeline=8)}
    for name, split in splits.items():
        many = predict("gpt3-1.3b", "dgx-a100", split, batch=64, seq_len=2048)
        row = one(rows, name, 8)
        assert row.efficiency == pytest.approx(many.tokens_per_s / (8 * base.tokens_per_s))
        assert row.saved == pytest.approx(1 - many.peak_memory_bytes / base.peak_memory_bytes)


def test_data_saves_nothing_and_zero_3_saves_states_as_its_closed_form(rows):
    assert all(row.saved == 0 and row.saved_holds for row in rows if row.strategy == "data")
    for n in RANKS:
        assert one(rows, "ZeRO-3", n).states_saved == pytest.approx(1 - 1 / n, abs=0.01)


def test_fsdp_is_zero_3_so_the_two_ranges_cannot_both_hold(rows):
    for n in RANKS:
        zero, fsdp = one(rows, "ZeRO-3", n), one(rows, "FSDP", n)
        assert replace(fsdp, strategy="ZeRO-3") == zero
        assert not (zero.efficiency_holds and fsdp.efficiency_holds)
        assert one(rows, "FSDP, gathered once", n).sent_bytes < zero.sent_bytes


def test_pipeline_sends_least_and_tensor_more_than_data_here(rows):
    """So "high, medium, low" for data, model and pipeline is not so for this model on any of these ranks."""
    for n in RANKS:
        sent = {name: one(rows, name, n).sent_bytes for name in ("data", "model", "pipeline")}
        assert sent["pipeline"] < sent["data"] < sent["model"]
    few_tokens = strategies("gpt3-1.3b", "dgx-a100", (8,), sequences=1, seq_len=128)
    pipeline, model, data = (one(few_tokens, name, 8).sent_bytes for name in ("pipeline", "model", "data"))
    assert pipeline < model < data


def test_verdicts_say_on_which_ranks_a_range_holds(rows):
    for verdict in strategy_verdicts(rows):
        some = [row for row in rows if row.strategy == verdict.strategy]
        low, high = CLAIMS[verdict.strategy].efficiency
        inside = [row.ranks for row in some if low - 0.005 <= row.efficiency <= high + 0.005]
        assert list(verdict.efficiency_holds_on) == inside
        assert verdict.efficiency == (min(r.efficiency for r in some), max(r.efficiency for r in some))
        text = verdict.sentence()
        assert text.startswith(f"{verdict.strategy}: efficiency") and text.endswith(".")
        assert ("on none of these ranks" in text) or ("ranks alone" in text) or ("on all of these" in text)


def test_a_slower_network_changes_the_verdict():
    near, far = (
        one(strategies("gpt3-1.3b", name, (16,), seq_len=2048), "ZeRO-3", 16) for name in ("dgx-h100", "pcie-a100")
    )
    assert far.efficiency < 0.7 * near.efficiency and far.exposed_share > near.exposed_share


def test_efficiencies_are_what_the_scaling_figure_takes(rows):
    series = efficiencies(rows, RANKS)
    assert set(series) == set(CLAIMS)
    figure_scaling(list(RANKS), series)


def test_the_simulator_has_the_same_efficiency():
    """Torch's DDP, weak scaling from 1 to 4 ranks, to 2% of the share."""
    config = GPTConfig(num_layers=4, d_model=256, num_heads=8, vocab_size=512, max_seq_len=64)
    cluster = "pcie-a100"
    took = {}
    for ranks in (1, 4):
        job = Job(config, "ddp" if ranks > 1 else "one", ranks=ranks, batch=1, micro_batches=1, cluster=cluster)
        run = launch(partial(train, job), ranks=ranks, cluster=cluster, fidelity="shapes")
        took[ranks] = run.timeline.without("setup").makespan_s
    stack = replace(STACKS["torch"], has_master=False)
    found = strategies(config, cluster, (4,), 1, stack=stack, derating=IDEAL, precision="float32")
    assert "ZeRO-2" not in {row.strategy for row in found}, "of which torch has none"
    assert one(found, "data", 4).efficiency == pytest.approx(took[1] / took[4], abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": 8}, "batch is chosen by the strategy"),
        ({"model": "gpt3-1.4b"}, "gpt3-1.3b"),
        ({"cluster": "dgx-z"}, "cluster"),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments, words: str):
    usual = {"model": "gpt3-1.3b", "cluster": "dgx-a100", "ranks": (2,), "seq_len": 2048}
    with pytest.raises(ValueError, match=words) as raised:
        strategies(**usual | arguments)
    assert "\n" not in str(raised.value)
