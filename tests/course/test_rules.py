"""The rules that checks share: each lets a right answer pass and says of each kind of wrong one what it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.course.checks import rules
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import Expect, NotAttempted, RuleBroken
from lablib.course.checks.observe import observe
from lablib.text.units import format_quantity, plural


def broken(rule: Callable[..., Any], *args: Any, **options: Any) -> RuleBroken:
    with pytest.raises(RuleBroken) as raised:
        rule(*args, **options)
    return raised.value


def calls(answer: Callable[[torch.Tensor], Any], ranks: int = 3, dtype: torch.dtype = torch.float64, length: int = 5):
    """A run of `answer` on tensors that differ by rank."""

    def program():
        x = torch.arange(1.0, length + 1, dtype=dtype) * (dist.get_rank() + 1)
        return observe(answer, x)

    return launch(program, ranks=ranks)


def right(x: torch.Tensor) -> torch.Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def mean_of(ranks: int, dtype: torch.dtype = torch.float64, length: int = 5) -> torch.Tensor:
    return torch.arange(1.0, length + 1, dtype=dtype) * ((ranks + 1) / 2)


@given(ranks=st.integers(1, 7), dtype=st.sampled_from([torch.float64, torch.float32]), length=st.integers(1, 9))
def test_a_right_answer_keeps_every_rule(ranks: int, dtype: torch.dtype, length: int):
    run, like, expect = calls(right, ranks, dtype, length), mean_of(1, dtype, length), Expect()
    rules.returns_new_tensors(expect, run, like)
    rules.changes_nothing(expect, run)
    rules.is_mean(expect, run, mean_of(ranks, dtype, length))
    rules.calls_only(expect, run, "all_reduce")
    rules.communications_within(expect, run, 1)
    rules.sent_bytes_within(expect, run, calls(dist.all_reduce, ranks, dtype, length))
    rules.same_on_every_rank(expect, [call.value for call in run.values], "the mean")


@pytest.mark.parametrize("factor", [-1.0, 1 + 1e-5])
def test_a_factor_is_told_where_it_is_one_and_not_where_an_answer_is_nearly_right(factor: float):
    error = broken(rules.is_mean, Expect(), calls(lambda x: right(x) * factor), mean_of(3))
    assert ("-1 times the mean" in error.saw) is (factor == -1) and ("times the mean" in error.saw) is (factor == -1)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_how_near_a_mean_must_be_goes_with_its_size_and_type(scale: float, dtype: torch.dtype):
    wanted = torch.tensor([1.0, 2.0, -4.0], dtype=dtype) * scale
    rounding = torch.finfo(dtype).eps * 4 * scale  # of the largest
    near, far = (wanted + torch.tensor([error, 0, 0], dtype=dtype) for error in (rounding, 1e-2 * scale))
    rules.is_mean(Expect(), [observe(lambda: near)], wanted)
    assert "elements differ" in broken(rules.is_mean, Expect(), [observe(lambda: far)], wanted).saw


@given(ranks=st.integers(2, 7), wrong=st.sampled_from(["sum", "twice divided", "first half"]))
def test_what_is_no_mean_is_told_by_its_factor(ranks: int, wrong: str):
    def answer(x):
        mean = right(x)
        if wrong == "first half":
            return torch.cat([mean[:2], 0 * mean[2:]])
        return mean * ranks if wrong == "sum" else mean / ranks

    error = broken(rules.is_mean, Expect(), calls(answer, ranks), mean_of(ranks))
    assert error.rule.startswith("the result is the mean over ranks")
    said = {"sum": f"{ranks} times the mean, as a sum over {ranks} ranks is", "twice divided": " times the mean"}
    assert said.get(wrong, "elements differ") in error.saw


@pytest.mark.parametrize(
    ("answer", "rule", "saw"),
    [
        (lambda x: None, "a tensor is returned", "NoneType None on rank 0 of 3"),
        (lambda x: x.tolist(), "a tensor is returned", "list"),
        (lambda x: x.sum(), "the shape of the result is that of the input", "() on rank 0"),
        (lambda x: x.half(), "the type of the result is that of the input", "float16 on rank 0"),
        (lambda x: x, "the result is a new tensor", "shares its memory with an argument on rank 0"),
        (lambda x: x[:5], "the result is a new tensor", "shares its memory"),
    ],
)
def test_what_is_returned_must_be_a_new_tensor_like_the_input(answer, rule, saw):
    error = broken(rules.returns_new_tensors, Expect(), calls(answer), mean_of(1))
    assert error.rule == rule and saw in error.saw


def test_ellipsis_is_a_stub():
    with pytest.raises(NotAttempted):
        rules.returns_tensors(Expect(), calls(lambda x: ...), mean_of(1))


def test_a_changed_input_is_named():
    error = broken(rules.changes_nothing, Expect(), calls(dist.all_reduce))
    assert error.saw == "argument 1 changed on rank 0 of 3"
    error = broken(rules.changes_nothing, Expect(), [observe(lambda x, items: items.pop(), torch.ones(1), [1])])
    assert error.saw == "argument 2 (a list) changed"


def gives_the_name_to_another(x: torch.Tensor) -> None:
    x = right(x) * dist.get_world_size()


def returns_another(x: torch.Tensor) -> torch.Tensor:
    return right(x) * dist.get_world_size()


def test_work_in_place_is_seen_and_its_commonest_mistake_is_told():
    sums = [mean_of(3) * 3] * 3
    rules.works_in_place(Expect(), calls(lambda x: dist.all_reduce(x)), sums, "the sum")
    for answer, saw in ((gives_the_name_to_another, "x is as it was"), (returns_another, "a new tensor was returned")):
        error = broken(rules.works_in_place, Expect(), calls(answer), sums, "the sum")
        assert error.saw.startswith(saw) and "`x = ...` gives the name to another tensor" in error.saw
    error = broken(rules.works_in_place, Expect(), calls(lambda x: x.mul_(2)), sums, "the sum")
    assert error.rule.startswith("x holds the sum on rank 0")


def gives_it_other_memory(x: torch.Tensor) -> None:
    total = x.clone()
    dist.all_reduce(total)
    x.data = total


def returns_early(x: torch.Tensor) -> None:
    if x.numel() < 100:
        return
    dist.all_reduce(x)


@given(length=st.integers(1, 9), ranks=st.integers(2, 4))
def test_other_ways_not_to_work_in_place_are_told_apart(length: int, ranks: int):
    sums = [mean_of(ranks, length=length) * ranks] * ranks
    run = calls(gives_it_other_memory, ranks, length=length)
    assert "x was given other memory on rank 0" in broken(rules.works_in_place, Expect(), run, sums).saw
    for answer in (returns_early, lambda x: returns_early(x)):
        error = broken(rules.works_in_place, Expect(), calls(answer, ranks, length=length), sums)
        where = f"on rank 0 of {ranks} ({plural(length, 'elements')})"
        assert error.saw == f"nothing wrote to x {where}: did the function return early?"
    answer = gives_the_name_to_another
    wrapped = calls(lambda x: answer(x), ranks, length=length)
    assert "x is as it was" in broken(rules.works_in_place, Expect(), wrapped, sums).saw


def test_one_rank_that_sums_alone_has_worked_in_place_although_nothing_changed():
    rules.works_in_place(Expect(), calls(lambda x: dist.all_reduce(x), ranks=1), [mean_of(1)])


def test_calls_bytes_and_messages_of_a_run_are_held_to_what_is_allowed():
    run = calls(lambda x: [dist.all_reduce(x), dist.barrier()])
    error = broken(rules.calls_only, Expect(), run, "send")
    assert (error.saw, error.expected) == ("all_reduce and barrier", "send")
    assert broken(rules.communications_within, Expect(), run, 1).saw.startswith("2 calls, 2 times the budget")
    assert "3 ranks" in broken(rules.sent_bytes_within, Expect(), run, 10).rule
    assert broken(rules.sent_bytes_within, Expect(), calls(lambda x: None), 99, at_least=8).saw.startswith("0 B: less")
    rules.calls_only(Expect(), calls(lambda x: None))
    rules.sent_bytes_within(Expect(), calls(lambda x: None), 99)  # nothing need be sent unless the rule says so


@given(ranks=st.integers(2, 6), length=st.integers(1, 50))
def test_the_fewest_bytes_are_told_beside_what_is_needed(ranks: int, length: int):
    expect, run = Expect(), calls(dist.all_reduce, ranks, torch.float64, length)
    fewest = min(run.traffic.sent_bytes(rank) for rank in range(ranks))
    rules.sent_bytes_within(expect, run, run, at_least=8)
    *_, told = expect.measured
    assert told.rule == f"fewest bytes a rank sends ({ranks} ranks)"
    assert told.text == f"{format_quantity(fewest, 'B', digits=4)}, at least 8 B"
    error = broken(rules.sent_bytes_within, Expect(), run, run, at_least=fewest + 1)
    assert error.rule == told.rule and "less than the task needs" in error.saw


@given(factor=st.floats(0.1, 8).filter(lambda f: abs(f - 1) > 1e-3))
def test_a_gradient_of_the_wrong_size_is_told_apart_from_a_wrong_one(factor: float):
    reference = torch.arange(1.0, 9.0, dtype=torch.float64)
    rules.equals_one_device(Expect(), [reference.clone()] * 2, reference)
    error = broken(rules.equals_one_device, Expect(), [factor * reference] * 2, reference)
    assert error.rule.startswith("the gradient has the size of one device's")
    error = broken(rules.equals_one_device, Expect(), [reference.flip(0)] * 2, reference)
    assert error.rule.startswith("the gradient is that of the whole batch")
    error = broken(rules.equals_one_device, Expect(), [reference, 2 * reference], reference)
    assert error.rule.startswith("every rank ends with the same gradients")


@given(seed=st.integers(0, 10**6))
def test_a_gradient_whose_terms_cancel_may_differ_by_their_rounding_and_one_sent_in_fewer_bits_may_not(seed: int):
    terms = Draw(seed).tensor((5, 2000), torch.float64)
    there, back = terms.sum(0), terms.flip(0).sum(0)  # the same sums in another order
    rules.equals_one_device(Expect(), [there] * 2, back)
    error = broken(rules.equals_one_device, Expect(), [there.float().double()] * 2, back)
    assert error.rule.startswith("the gradient is that of the whole batch")


@given(ranks=st.integers(2, 5), length=st.integers(4, 9))
def test_float64_summed_in_float32_is_told_so(ranks: int, length: int):
    def answer(x):
        x.div_(11)
        half = x.float()
        dist.all_reduce(half)
        x.copy_(half)

    run = calls(answer, ranks, length=length)
    error = broken(rules.works_in_place, Expect(), run, [mean_of(ranks, length=length) * ranks / 11] * ranks, "the sum")
    assert error.rule.startswith("x holds the sum on rank 0") and "float32 accuracy, x is float64" in error.saw
    assert f"{length} elements, float64, shape {length}" in error.saw


@given(sizes=st.lists(st.integers(1, 50), min_size=2, max_size=5, unique=True))
def test_unequal_shares_are_told_where_the_sum_is_right(sizes: list[int]):
    def program():
        rank, n = dist.get_rank(), dist.get_world_size()
        left = (rank - 1) % n
        work = dist.isend(torch.ones(sizes[rank]), (rank + 1) % n)
        dist.recv(torch.empty(sizes[left]), left)
        assert work is not None
        work.wait()

    run = launch(program, ranks=len(sizes))
    mean = 4 * sum(sizes) / len(sizes)
    error = broken(rules.sent_bytes_within, Expect(), run, 4 * max(sizes), at_least=mean)
    least, most = (f"{4 * size(sizes)} B" for size in (min, max))
    assert error.saw == f"ranks send unequal shares, the least {least}, less than the task needs, the most {most}"
