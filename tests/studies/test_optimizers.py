"""The search, what seeds can say, what is recorded, and the choice made of it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.models import GPT, GPTConfig
from lablib.optim.memory import OPTIMIZERS, state_bytes
from lablib.studies.optimizer_choice import choose, state_of
from lablib.studies.optimizer_search import best_of_means, search
from lablib.studies.optimizers import PUBLISHED, OptimizerResult, difference, recorded_results, table

# ---- the search ----


@given(
    best=st.integers(-6, 9),
    start=st.sampled_from([1e-3, 0.02]),
    num_rates=st.integers(1, 5),
    decay=st.sampled_from([0, 1]),
)
def test_the_search_finds_the_valley_wherever_it_begins(best, start, num_rates, decay):
    tried: list[tuple[float, float]] = []

    def loss_of(rate: float, weight_decay: float) -> float:
        tried.append((rate, weight_decay))
        return abs(math.log2(rate / start) - best) + 0.1 * abs(weight_decay - 0.1 * decay)

    found = search(loss_of, start, num_rates, (0.0, 0.1), max_trials=100)
    assert found.best[0] == pytest.approx(start * 2.0**best)
    assert found.best[1] == 0.1 * decay and found.is_inside
    assert tried == list(found.losses), "no setting is tried twice"
    assert len(tried) >= 2 * num_rates


def test_a_search_ends_and_says_that_its_best_lies_at_the_edge():
    found = search(lambda rate, decay: -rate, 1.0, 3, (0.0,), max_trials=5)
    assert found.best == (16.0, 0.0) and not found.is_inside and len(found.losses) == 5


def test_a_rate_that_diverges_is_no_best():
    found = search(lambda rate, decay: math.inf if rate > 1 else 1 / rate, 1.0, 3, (0.0,))
    assert found.best == (1.0, 0.0) and found.is_inside


def test_the_runner_up_is_the_better_neighbour_at_the_same_decay():
    losses = {(1.0, 0.0): 3.0, (2.0, 0.0): 1.0, (4.0, 0.0): 2.0, (2.0, 0.1): 1.1}
    found = search(lambda rate, decay: losses.get((rate, decay), 9.0), 1.0, 3, (0.0, 0.1))
    assert (found.best, found.runner_up) == ((2.0, 0.0), (4.0, 0.0))


def test_what_is_best_on_one_seed_must_hold_on_others():
    losses = {(1.0, 0.0): [2.0, 2.0, 2.0], (2.0, 0.0): [1.0, math.inf, 1.0], (4.0, 0.0): [1.5]}
    assert best_of_means(losses) == (1.0, 0.0)


# ---- what seeds can say ----


def test_the_interval_is_students():
    """By hand: 1, 2, 3 has mean 2, deviation 1; 4.303 / sqrt(3) = 2.484."""
    found = difference({1: 1.0, 2: 2.0, 3: 3.0}, {1: 0.0, 2: 0.0, 3: 0.0})
    assert (found.mean, found.half_width) == (2.0, pytest.approx(2.4843, abs=1e-3)) and found.is_noise
    assert "within noise (+2.000 +- 2.484 nats, 3 seeds)" in found.sentence("a", "b")


def test_a_seed_that_is_hard_for_both_is_no_noise():
    found = difference({1: 1.0, 2: 5.0, 3: 3.0}, {1: 1.1, 2: 5.11, 3: 3.09, 4: 0.0})
    assert not found.is_noise and found.sentence("a", "b").startswith("a loses 0.100 +- 0.025 nats less than b")
    back = difference({1: 1.1, 2: 5.11, 3: 3.09}, {1: 1.0, 2: 5.0, 3: 3.0})
    assert (back.mean, back.half_width) == (pytest.approx(-found.mean), pytest.approx(found.half_width))
    assert "more than" in back.sentence("b", "a")


def test_many_seeds_are_taken_as_normal():
    many = {seed: float(seed % 2) for seed in range(30)}
    assert difference(many, dict.fromkeys(many, 0.0)).half_width == pytest.approx(
        1.96 * 0.50855 / math.sqrt(30), rel=1e-4
    )


def test_one_seed_says_nothing():
    with pytest.raises(ValueError, match="at least 2 seeds in common: got 1; run more"):
        difference({1: 1.0, 2: 1.0}, {2: 1.0, 3: 1.0})


# ---- what is recorded ----


def row(part: str, optimizer: str, **more: Any) -> str:
    return json.dumps({"part": part, "optimizer": optimizer} | more)


def rows_of(name: str, losses: list[float], kept: int) -> list[str]:
    settings = [{"lr": 0.1 * 2**k, "weight_decay": 0.0} for k in range(3)]
    search_rows = [
        row("search", name, **one, seed=0, loss=loss) for one, loss in zip(settings, (2.0, 1.0, 3.0), strict=True)
    ]
    curve = [[0, 5.0], [10, 2.0]]
    final = [row("final", name, **settings[1], seed=1 + i, loss=loss, curve=curve) for i, loss in enumerate(losses)]
    memory = row("memory", name, state_bytes=kept, temporary_bytes=40, num_parameters=10)
    return [*search_rows, *final, memory, row("speed", name, step_ratio=1.5, optimizer_ratio=3.0)]


def test_rows_become_results_the_least_loss_first(tmp_path: Path):
    file = tmp_path / "evidence.jsonl"
    lines = rows_of("adamw", [2.0, 2.1, 2.2], 80) + rows_of("lion", [1.0, 1.1, 1.21], 40)
    file.write_text(
        "\n".join([row("settings", "all", batch=[8, 64, 10]), *lines, row("search", "muon", loss=0.0)]) + "\n"
    )
    found = recorded_results(file)
    assert list(found) == ["lion", "adamw"], "an optimizer that was not finished is not there"
    lion = found["lion"]
    assert (lion.lr, lion.weight_decay, lion.num_trials, lion.is_inside) == (0.2, 0.0, 3, True)
    assert (lion.losses, lion.tokens, lion.curve) == ({1: 1.0, 2: 1.1, 3: 1.21}, [0, 5120], [5.0, 2.0])
    assert (lion.bytes_per_parameter, lion.temporary_bytes_per_parameter, lion.step_ratio) == (4.0, 4.0, 1.5)
    shown = table(found)
    assert list(shown["verdict"]) == ["less", "itself"] and shown.loc["lion", "less adamw's"] == pytest.approx(
        -0.99667, abs=1e-4
    )


@pytest.mark.parametrize("text", ["", "[]\n", '{"part": "final"}\n', "nonsense\n", row("speed", "adamw") + "\n"])
def test_another_file_is_refused(tmp_path, text):
    file = tmp_path / "evidence.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match="must hold trials as benchmarks/optimizer_evidence.py writes them"):
        recorded_results(file)


def test_what_is_recorded_is_a_fair_comparison():
    """AdamW has as many trials as any other, all were compared on the same seeds, none of them the search's."""
    results = recorded_results()
    assert results["adamw"].num_trials == max(result.num_trials for result in results.values())
    for result in results.values():
        assert sorted(result.losses) == sorted(results["adamw"].losses) and len(result.losses) >= 3
        assert 0 not in result.losses and result.num_trials >= 6
        assert all(1.0 < loss < 4.0 for loss in result.losses.values()), "between good and hopeless for bytes"
    assert set(results) <= set(OPTIMIZERS)


def test_published_findings_say_where_they_stand():
    assert all("arXiv" in one.source and one.claim.endswith(".") for one in PUBLISHED)


# ---- the choice ----


def result(name: str, losses: list[float], kept: float, step_ratio: float = 1.0) -> OptimizerResult:
    by_seed = dict(enumerate(losses, 1))
    return OptimizerResult(name, 1e-3, 0.0, 6, True, by_seed, [], [], kept, 4.0, step_ratio, step_ratio)


SOME = {
    one.name: one
    for one in (
        result("best", [1.00, 1.10, 1.20], 24.0, 3.0),
        result("as good", [1.01, 1.09, 1.21], 4.0),
        result("larger", [1.0, 1.1, 1.21], 8.0),
        result("worse", [2.00, 2.10, 2.20], 1.0),
    )
}


def test_ties_share_a_place_and_the_smaller_state_stands_first():
    assert [(one.name, one.place) for one in choose(SOME, 30.0)] == [
        ("as good", 1),
        ("larger", 1),
        ("best", 1),
        ("worse", 4),
    ]
    assert "as good as best, at most 0.032 nats more; needs 8.00" in choose(SOME, 30.0)[0].reason


def test_every_pair_has_a_verdict_and_the_other_way_round_its_opposite():
    found = {name: dict(table(SOME, name)["verdict"]) for name in SOME}
    assert [found[name]["best"] for name in SOME] == ["itself", "noise", "noise", "less"]
    assert list(found["best"].values()) == ["itself", "noise", "noise", "more"]


def test_a_budget_leaves_out_and_says_why():
    found = choose(SOME, 10.0)
    assert [(one.name, one.place) for one in found] == [("as good", 1), ("worse", 2), ("best", None), ("larger", None)]
    assert found[2].reason == "needs 28.00 bytes per parameter, and the budget is 10."
    assert [one.name for one in choose(SOME, 30.0, slowest_step=2.0) if one.place is None] == ["best"]
    assert "3.00 of AdamW's, and 2 is allowed" in choose(SOME, 30.0, slowest_step=2.0)[-1].reason


def test_bytes_may_be_those_of_another_model():
    kept = {"best": 1.0, "as good": 9.0, "larger": 9.0, "worse": 9.0}
    assert [one.name for one in choose(SOME, 8.0, needed_bytes_per_parameter=kept) if one.place] == ["best"]


def test_what_a_step_needs_counts_beside_the_state():
    """Of state "larger" keeps 8 bytes, and a step needs 4 more: 12."""
    places = {budget: {one.name: one.place for one in choose(SOME, budget)} for budget in (11.9, 12.0)}
    assert places[11.9]["larger"] is None and places[12.0]["larger"] == 1


def test_a_wide_interval_is_no_tie_and_a_difference_too_small_to_matter_is_one():
    """By hand: noisy less best is 0.3, 0.0, -0.2: 0.033 +- 0.625, within noise; close is 0.01 more on each seed."""
    noisy, close = result("noisy", [1.30, 1.10, 1.00], 1.0), result("close", [1.01, 1.11, 1.21], 1.0)
    table = {"best": SOME["best"], "noisy": noisy, "close": close}
    assert difference(noisy.losses, SOME["best"].losses).is_noise
    assert [(one.name, one.place) for one in choose(table, 30.0)] == [("close", 1), ("best", 1), ("noisy", 3)]
    assert [one.place for one in choose(table, 30.0, margin=0.005)] == [1, 2, 3]


def test_nothing_fits():
    assert all(one.place is None for one in choose(SOME, 0.0)) and len(choose(SOME, 0.0)) == 4


@given(budget=st.floats(0, 30), slowest=st.floats(0, 4))
def test_every_optimizer_stands_in_the_list_once(budget, slowest):
    found = choose(SOME, budget, slowest)
    assert sorted(one.name for one in found) == sorted(SOME)
    places = [one.place for one in found if one.place]
    assert places == sorted(places) and all(one.reason for one in found)


@given(layers=st.integers(1, 3), width=st.sampled_from([64, 96]))
def test_state_of_a_model_is_the_formulas(layers, width):
    """Muon, SOAP, GaLore and 8 bits leave embeddings to AdamW; a rank of a quarter of the width."""
    config = GPTConfig(layers, width, 2, vocab_size=100, max_seq_len=10)
    model = GPT(config, device="meta")
    found, numel = state_of(model), sum(param.numel() for param in model.parameters())
    assert set(found) == set(OPTIMIZERS)
    for name in found:
        want = 0
        for key, param in model.named_parameters():
            is_hidden = param.ndim == 2 and key.startswith("blocks.")
            plain = not is_hidden and name in ("muon", "galore", "q_galore", "soap")
            plain = plain or ("embedding" in key and name == "adam8bit")
            want += state_bytes("adamw" if plain else name, tuple(param.shape), rank=width // 4)
        assert found[name] == pytest.approx(want / numel), name
