"""The search: as good as asking for every plan in turn, and honest about those that it rejects."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from lablib.figures import describe
from lablib.pipeline.closed_form import WITH_CLOSED_FORM
from lablib.plan import STACKS, Parallel, SearchResult, predict, search
from lablib.plan.search_result import MEMORY

QUESTION = {"model": "gpt3-13b", "cluster": "dgx-a100", "batch": 48}  # 40 layers, 40 heads
SMALL = {"schedule": ["1f1b", "interleaved", "zb-v"], "chunks": [1, 2], "recompute": ["none", "full"]}


@pytest.fixture(scope="module")
def small() -> SearchResult:
    return search(**QUESTION, gpus=16, micro_batch=[1, 2, 4], zero_stage=[0, 1], context=[1, 2], **SMALL)


def brute_force():
    """Every plan of the same space, asked for one by one: (step time, peak) of those that fit; reasons of others."""
    fit, refused, too_large = [], [], []
    axes = product([1, 2, 4, 8], [1, 2, 4, 8, 16], [1, 2])
    for (tensor, pipeline, context), micro, zero, again in product(axes, [1, 2, 4], [0, 1], ["none", "full"]):
        data, rest = divmod(16, tensor * pipeline * context)
        if rest or (zero and data * context == 1):
            continue
        for schedule, chunks in [("1f1b", 1), ("interleaved", 2), ("zb-v", 2)]:
            if pipeline == 1 and schedule != "1f1b":
                continue
            parallel = Parallel(data, tensor, pipeline, context, chunks=chunks, zero_stage=zero)
            kinds = {"micro_batch": micro, "recompute": again, "schedule": schedule}
            try:
                found = predict(**QUESTION, parallel=parallel, **kinds)
            except ValueError as error:
                refused.append(str(error))
                continue
            (fit if found.fits else too_large).append((found.step_time_s, found.peak_memory_bytes))
    return fit, refused, too_large


def test_it_finds_what_asking_for_every_plan_in_turn_finds(small):
    fit, refused, too_large = brute_force()
    assert len(small.plans) == len(fit) + len(refused) + len(too_large)
    assert len(fit) > 100 and len(refused) > 10 and len(too_large) > 10
    assert (small.best.step_time_s, small.best.peak_memory_bytes) == pytest.approx(min(fit))
    times = [(small.plans.step_time_s[i], small.plans.peak_memory_bytes[i]) for i in small.order]
    assert np.array(times) == pytest.approx(np.array(sorted(fit)), rel=1e-9)
    reasons = [each.reason for each in small.rejected if each.kind != MEMORY]
    assert sorted(reasons) == sorted(refused)


def test_every_rejected_plan_has_its_true_reason(small):
    kinds = set()
    for each in small.rejected:
        kinds.add(each.kind)
        if each.kind != MEMORY:
            with pytest.raises(ValueError) as raised:
                small.plans[each.plan]
            assert str(raised.value) == each.reason
            continue
        found = small.plans[each.plan]
        needed = found.peak_memory_bytes
        assert not found.fits
        assert each.reason.endswith("too much") and f"of {found.memory_limit_bytes / 1e9:.3g} GB a GPU" in each.reason
        said = float(each.reason.split()[1]) * (1e9 if each.reason.split()[2] == "GB" else 1e12)
        assert said == pytest.approx(needed, rel=0.01)
    assert {MEMORY, "batch", "rounds"} <= kinds
    assert sum(small.rejected.counts.values()) == len(small.rejected) == len(small.plans) - len(small.order)


def test_the_example_of_those_that_do_not_fit_is_the_nearest_miss(small):
    found = small.rejected.examples()
    assert found.keys() == small.rejected.counts.keys()
    over = small.plans.over_bytes
    assert over[found[MEMORY].plan] == over[over > 0].min()
    assert all(each.kind == kind for kind, each in found.items())


def test_no_plan_is_both_as_fast_and_as_small_as_one_of_the_front(small):
    fit = [(small.plans.step_time_s[i], small.plans.peak_memory_bytes[i]) for i in small.order]
    front = [(each.step_time_s, each.peak_memory_bytes) for each in small.pareto]
    assert front[0] == pytest.approx(fit[0]) and len(front) > 2
    for time_s, size in front:
        others = [(t, s) for t, s in fit if t <= time_s * (1 - 1e-9) and s <= size or t <= time_s and s < size - 1]
        assert not others
    smallest = min(size for _, size in fit)
    assert front[-1][1] == pytest.approx(smallest)


@pytest.mark.parametrize(
    "constraints",
    [
        {"tensor": 8, "pipeline": range(2, 9)},
        {"data": [4, 8], "micro_batch": 2},
        {"schedule": "interleaved", "chunks": 5, "pipeline": [4, 8]},
        {"zero_stage": 3, "recompute": "every 4", "context": 2},
        {"zero_stage": 2, "pipeline": 4},
    ],
)
def test_constraints_are_kept(constraints):
    found = search(**QUESTION, nodes=4, **constraints).plans
    assert len(found) and (found.num_gpus == 32).all()
    for name, allowed in constraints.items():
        values = set(found.choices[name].values if name in found.choices else found.numbers[name].tolist())
        assert values <= ({allowed} if isinstance(allowed, (int, str)) else set(allowed)), name


def test_by_default_everything_that_makes_sense_is_tried():
    found = search(**QUESTION, nodes=4).plans
    assert set(found.choices["schedule"].values) == set(WITH_CLOSED_FORM)
    assert set(found.numbers["tensor"]) == {1, 2, 4, 8} and set(found.numbers["pipeline"]) == {1, 2, 4, 8, 16, 32}
    chunks, pipeline = found.numbers["chunks"], found.numbers["pipeline"]
    assert (40 % (chunks * pipeline) == 0)[chunks > 1].all() and chunks.max() == 10
    assert ((chunks == 1) | (pipeline > 1)).all()
    zero = np.array(found.choices["zero_stage"].values)[found.choices["zero_stage"].codes]
    assert set(zero[pipeline == 1]) == {0, 1, 2, 3} and set(zero[pipeline > 1]) == {0, 1, 3}
    assert not (zero[found.numbers["data"] * found.numbers["context"] == 1] > 0).any()


@pytest.mark.parametrize(
    "choice",
    [
        {"zero_plus_plus": ("qwZ",)},
        {"reshard_after_forward": False},
        {"stack": replace(STACKS["torch"], has_master=False, has_wide_shards=True)},
    ],
)
def test_a_kind_of_zero_3_is_tried_with_that(choice):
    found = search("gpt2", "dgx-a100", 8, gpus=8, schedule="1f1b", **choice)
    assert len(found.order) and found.plans.choices["zero_stage"].values == (3,)
    with pytest.raises(ValueError, match="zero_stage=3"):
        search("gpt2", "dgx-a100", 8, gpus=8, schedule="1f1b", zero_stage=[1, 3], **choice)


@pytest.mark.parametrize("stack", [name for name, stack in STACKS.items() if stack.is_eager])
@pytest.mark.parametrize(("compression", "stages"), [("none", {0, 1, 3}), ("powersgd", {0, 1})])
def test_torch_has_no_zero_2(stack, compression, stages):
    given = {"stack": stack, "compression": compression}
    found = search("gpt2", "dgx-a100", 8, gpus=8, schedule="1f1b", **given)
    assert {found.plans[i].parallel.zero_stage for i in found.order} == stages
    assert found.rejected.counts["ZeRO-2"] > 0
    with pytest.raises(ValueError, match="got zero_stage=2 with a stack of torch's own; try 1, or 3 with resh"):
        predict("gpt2", "dgx-a100", Parallel(data=8, zero_stage=2), 8, **given)


def test_no_plan_is_tried_twice():
    found = search(**QUESTION, nodes=1).plans
    columns = [*found.numbers.values(), *(each.codes for each in found.choices.values())]
    assert len(np.unique(np.stack(columns), axis=1).T) == len(found)


def test_experts_are_spread_in_every_way_that_divides_them():
    found = search("mixtral-8x7b", "dgx-h100", 64, nodes=4, seq_len=4096, schedule="1f1b", recompute="full")
    assert set(found.plans.numbers["expert"]) == {1, 2, 4, 8}
    assert "expert" in found.rejected.counts and found.best.fits


def test_where_nothing_fits_it_says_by_how_much_the_nearest_misses():
    found = search("gpt3-175b", "dgx-a100", 8, gpus=8, tensor=8)
    assert not len(found.order) and not found.pareto and found.nearest is not None
    least = np.nanmin(found.plans.peak_memory_bytes)
    assert found.nearest.peak_memory_bytes == pytest.approx(least) and least > 175e9 * 16 / 8
    with pytest.raises(
        ValueError, match="none fits; the nearest \\(tensor 8\\) needs .* of 77.2 GB a GPU: .* too much"
    ):
        _ = found.best
    assert found.table().empty


def test_where_no_plan_is_possible_it_says_which_rule_they_break():
    found = search("gpt3-13b", "dgx-a100", 7, nodes=1, data=2)
    assert found.nearest is None
    assert "0 possible: data * micro_batch must divide batch: got 2 and 7; try 1" in found.sentence()


def test_the_table_has_the_fastest_first_and_equal_plans_once(small):
    table = small.table(20)
    assert table["step_time_s"].is_monotonic_increasing and len(table) == 20
    assert not table.duplicated(["step_time_s", "peak_memory_bytes"]).any()
    assert table["step_time_s"][0] == small.best.step_time_s
    assert "products" in table["bound_by"][0]
    assert "plans tried" in repr(small) and "<table" in small._repr_html_()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "gpt3-12b"}, "did you mean"),
        ({"cluster": "dgx-a10"}, "dgx-a100"),
        ({"schedule": "1f1c"}, "did you mean '1f1b'"),
        ({"recompute": "some"}, "recompute is"),
        ({"stack": "megatron"}, "unknown stack"),
        ({"nodes": None}, "give nodes or gpus, one of the two"),
        ({"gpus": 8}, "give nodes or gpus, one of the two"),
        ({"nodes": 10**30}, "a search takes 10,000,000 GPUs or fewer: got"),
        ({"micro_batch": b"x"}, "micro_batch must be whole numbers"),
        ({"tensor": 0}, "tensor must be whole numbers, 1 or more: got 0"),
        ({"micro_batch": []}, "micro_batch must be whole numbers, 1 or more: got None"),
        ({"zero_stage": 4}, "zero_stage is 0, 1, 2 or 3: got 4"),
        ({"tensor": 3, "pipeline": 4}, "got tensor 3, pipeline 4 and 8 GPUs; try divisors of 8"),
        ({"schedule": "1f1b", "chunks": 2}, "no schedule of 1f1b has chunks 2; try interleaved"),
        ({"schedule": "interleaved", "chunks": 2, "pipeline": 1}, "no plan has pipeline 1, schedule interleaved"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(changes, words):
    with pytest.raises(ValueError, match=words):
        search(**(QUESTION | {"nodes": 1} | changes))


def test_one_value_may_be_an_array_without_dimensions():
    one, array = (
        search(**(QUESTION | {"nodes": 1, "tensor": size, "recompute": again}))
        for size, again in ((2, "full"), (np.array(2), np.array("full")))
    )
    assert len(one.plans) == len(array.plans) and one.best == array.best


def test_a_search_draws_every_plan_that_is_possible():
    found = search("gpt3-6.7b", "dgx-a100", batch=64, nodes=1)
    figure = found.figure()
    assert f"{len(found.order):,} of {int(found.plans.is_possible.sum()):,} plans fit" in describe(figure)


@pytest.mark.parametrize(
    ("given", "words"), [({"schedule": 5}, "unknown schedule 5"), ({"recompute": 5}, "recompute is .* got 5")]
)
def test_a_search_for_another_type_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        search("gpt2", "dgx-a100", **{"batch": 8, "gpus": 8, **given})
