"""Checks of lab 07: the data pipeline. Times, traces, orders and stops are drawn at random."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from lablib.course import Expect, exercise
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed, observe
from lablib.course.checks.rules import changes_nothing, not_from_lablib
from lablib.text.units import plural

# ---- How many workers -----------------------------------------------------------------------------------------------


@exercise(
    "How many workers?",
    hints=[
        "How long does the device work on one batch, copy included, if nothing delays it? Does the stream matter?",
        "k workers are enough if load_ms / k is no longer than that. So divide, and round up: 2.1 workers are 3. "
        "Compare with `most` last.",
        "`busy = max(copy_ms, step_ms) if own_stream else copy_ms + step_ms`; rounded up, without fractions, "
        "load_ms / busy is `-(-load_ms // busy)`.",
    ],
)
def fewest_workers(expect: Expect, fewest_workers: Callable[..., int | None]) -> None:
    not_from_lablib(fewest_workers)
    for rule, load, copy, step, own, most in _settings(expect.draw):
        expect.measured.clear()
        where = f"{rule} (load {load}, copy {copy}, step {step} ms, {'own stream' if own else 'one stream'}"
        where += f", at most {most})"
        saw = fewest_workers(load, copy, step, own, most)
        wanted = next((k for k in range(1, most + 1) if load <= k * (max(copy, step) if own else copy + step)), None)
        if not _is_count_or_none(saw):
            raise RuleBroken(f"a whole number of workers, or None: {where}", _typed(saw), _typed(wanted))
        expect.equal(where, None if saw is None else int(saw), wanted)


def _is_count_or_none(saw: Any) -> bool:
    """Also a whole number of numpy's."""
    return saw is None or (isinstance(saw, Integral) and not isinstance(saw, bool))


def _typed(value: Any) -> str:
    """The value with its type: 6.0 would be shown as 6."""
    return "None" if value is None else f"{short_repr(value)}, type {type(value).__name__}"


def _same_in_seconds(load_ms: int, busy_ms: int) -> bool:
    return math.ceil((load_ms / 1000) / (busy_ms / 1000)) == -(-load_ms // busy_ms)


def _settings(draw: Draw) -> Iterator[tuple[str, int, int, int, bool, int]]:
    """Rule that a case tests, load, copy, step, own stream, most."""
    # An answer that divides seconds fails the cases for rounding, at the end, and no case for another mistake.
    times = [(10 * tens, k) for tens in range(5, 16) for k in range(3, 7)]
    multiples = ((1, 1), (2, 1), (3, 3))  # of k steps, and of a step
    step, k = draw.choice([(s, k) for s, k in times if all(_same_in_seconds(a * k * s, b * s) for a, b in multiples)])
    first = step // 2 + 1
    copy = draw.choice([c for c in range(first, first + 20) if _same_in_seconds(k * (step + c), step + c)])
    yield "no copy, a load that steps divide", k * step, 0, step, False, 99
    yield "a load just short of k steps needs all k workers", k * step - 1, 0, step, False, 99
    yield "a fraction is rounded up", k * step + step // 4, 0, step, False, 99
    yield "a load as short as a step", step, 0, step, False, 99
    yield "in one stream a long copy and the step follow one another", k * (3 * step) + 1, 2 * step, step, False, 99
    yield "in one stream copy and step follow one another", k * (step + copy), copy, step, False, 99
    yield "on its own stream a short copy hides behind the step", k * step, copy, step, True, 99
    yield "on its own stream a long copy decides", k * 3 * step, 3 * step, step, True, 99
    yield "on its own stream, copy as long as the step", 2 * k * step, step, step, True, 99
    yield "loads far shorter than a step still need a worker", 1, copy, step, True, 99
    yield "just as many as there may be", k * step, 0, step, False, k
    yield "None where even the most are too few", k * step + 1, 0, step, False, k
    yield "None where one is too few", step + 1, 0, step, True, 1
    yield "the same, where one more is needed than there may be", k * step, 0, step, False, k - 1
    yield "many workers", 2 * 96 + 1, 0, 2, False, 99
    yield "one ms more than long steps", 2000 * k + 1, 0, 2000, False, 99
    yield "a copy of one ms", k * (step + 1), 1, step, False, 99
    yield "a load of seven steps", 35, 0, 5, False, 99
    yield "a load of nine steps and copies", 675, 10, 65, False, 99
    yield "a load of three steps and copies", 273, 10, 81, False, 99
    yield "on its own stream, just as many as there may be", k * 3 * step, 3 * step, step, True, k
    yield "on its own stream, None where the most are too few", k * step + 1, copy, step, True, k
    yield "the same times, on its own stream", k * (step + copy), copy, step, True, 99
    yield "the same load and step, with a copy", k * step, copy, step, False, 99
    yield "one ms of the step is the copy's", k * step, copy + 1, step - 1, True, 99
    for _ in range(40):
        load, copy, step, most = draw.integer(1, 900), draw.integer(0, 120), draw.integer(1, 120), draw.integer(1, 12)
        yield "drawn at random", load, copy, step, draw.integer(0, 1) == 1, most


# ---- The smallest prefetch ------------------------------------------------------------------------------------------


@exercise(
    "The smallest prefetch",
    hints=[
        "For one P go through the batches in turn, as in the example by hand. Which three times of each batch do you "
        "need, and which of earlier batches do they come from?",
        "Keep the list of takes. Ordered: takes[i - P], or 0 for the first P. Loaded: the later of that and the last "
        "load's end, plus the load. Taken: the later of loaded and the last take plus the step.",
        "The device never waits if each take comes exactly `step` after the one before. Try P from 1 on; return the "
        "first for which that holds, and None after the loop.",
    ],
)
def smallest_prefetch(expect: Expect, smallest_prefetch: Callable[..., int | None]) -> None:
    not_from_lablib(smallest_prefetch)
    for rule, loads, step in _traces(expect.draw):
        expect.measured.clear()
        shown = str(loads) if len(loads) <= 12 else f"{len(loads)} loads, the first {loads[:6]}"
        call = observe(smallest_prefetch, loads, step)
        if call.changed:
            raise RuleBroken(f"the loads stay as they were ({rule})", "they changed", "as they were: work on a copy")
        wanted = next((p for p in range(1, len(loads) + 1) if not _waits(loads, step, p)), None)
        _expect_count(expect, f"{rule} (steps of {step} ms; {shown})", call.value, wanted, loads, step)


def _expect_count(expect: Expect, rule: str, saw: Any, wanted: int | None, loads: list[int], step: int) -> None:
    if not _is_count_or_none(saw):
        raise RuleBroken(f"a whole number, or None: {rule}", _typed(saw), _typed(wanted))
    if saw is not None and saw < 1:
        raise RuleBroken(f"without an order nothing is loaded: {rule}", f"{saw}", f"{wanted}")
    if saw is not None and (waits := _waits(loads, step, saw)):
        batch, waited = waits[0]
        raise RuleBroken(rule, f"{saw}, where the device waits {waited} ms before batch {batch}", f"{wanted}")
    expect.equal(rule, None if saw is None else int(saw), wanted)


def _waits(loads: Sequence[int], step: int, prefetch: int) -> list[tuple[int, int]]:
    """Batches after the first for which the device waits, and how long: by the clock, order by order."""
    taken: dict[int, int] = {}
    ended, free = 0, 0  # of the step before, of the worker
    waits = []
    for batch, load in enumerate(loads):
        free = max(free, taken.get(batch - prefetch, 0)) + load
        if batch and free > ended:
            waits.append((batch, free - ended))
        taken[batch] = max(free, ended)
        ended = taken[batch] + step
    return waits


def _traces(draw: Draw) -> Iterator[tuple[str, list[int], int]]:
    """Rule that a case tests, loads, step."""
    step = 10 * draw.integer(3, 9)
    quick = step // 3
    yield "one batch, loaded in no time", [0], step
    yield "one batch", [step], step
    yield "nothing is late", [quick] * 6, step
    yield "loads just as long as a step are not late", [step] * 6, step
    yield "the wait for batch 0 does not count", [9 * step, quick, quick, quick], step
    yield "a slow load that comes too early for any P", [quick, 4 * step, *[quick] * 6], step
    yield "too slow on average", [step + 1] * 8, step
    yield "slow loads one after another", [*[1] * 6, 2 * step, 2 * step, 2 * step, 1, 1], step
    for late in (2, 3, 4):
        slow = late * step - quick // 2
        loads = [quick] * 9
        loads[7] = slow
        yield f"one load of nearly {late} steps among quick ones", loads, step
        loads = list(loads)
        loads[7] = slow + quick
        yield f"one load of little more than {late} steps among quick ones", loads, step
    yield "slow loads apart from one another", [1, 1, 1, 2 * step, 1, 1, 1, 2 * step, 1, 1], step
    yield "the last load is slow", [1] * 5 + [3 * step], step
    slow_first = [3 * step, 2 * step, 1, 1, 1]
    yield "a long load of batch 0 gives no time to load others: the worker is not free", slow_first, step
    yield "one worker loads in turn", [1, step + 5, step - 5, step + 3, 1, 1], step
    yield "all orders of the start are needed", [1] * 6 + [6 * step - 1], step
    yield "loads of no time", [0, 0, 0, 2 * step, 0], step
    yield "many orders are needed", [1] * 150 + [120 * step], step
    yield "all orders of the start but one", [step, step // 2, step + step // 3], step
    yield "many slow loads one after another", [1] * 40 + [2 * step] * 20 + [1] * 3, step
    yield "the last of many is slow", [step // 2] * 299 + [12 * step], step
    yield "late by one of many ms", [1] * 5 + [2 * 10**5 + 1], 10**5
    yield "slow at the end", [1] * 6 + [3 * step], step
    yield "the same loads, longer steps", [1] * 6 + [3 * step], 3 * step
    yield "a long first load does not make it too slow", [6 * step, 1, 1, 2 * step, 1], step
    yield "most loads are a little longer than a step", [1, 0, step + 1, step + 2, step + 1], step
    yield "loads of nearly a step between slow ones", [1] * 6 + [2 * step] + [step - 1] * 6 + [2 * step], step
    yield "a slower one, two quick ones after a slow one", [1] * 6 + [step + 2, 0, 0, 3 * step - 5], step
    yield "a slower one, a quick one after a slow one", [1] * 6 + [step + 2, 0, 3 * step - 5], step
    yield "the same loads, the slow one first", [3 * step] + [1] * 6, step
    long = [draw.integer(1, step) for _ in range(300)]
    long[200] = 9 * step
    yield "a long trace", long, step
    for _ in range(40):
        drawn = [draw.integer(1, 14) ** 2 for _ in range(draw.integer(3, 24))]
        yield "drawn at random", drawn, max(1, draw.integer(60, 160))


# ---- Stop and go on -------------------------------------------------------------------------------------------------


@exercise(
    "Stop and go on",
    hints=[
        "After one run, which places of the order are used? And of which list are the parts of the second run places?",
        "Keep a list of the remaining samples, in the epoch's order. For each run: split it into the parts of the "
        "ranks, and take the first `used` samples of each part out of the list. The next run starts from that list.",
        "Rank r of a run with W ranks had `left[r::W]`, and used `[:used]` of it. Collect these samples of all ranks "
        "before you make the new list. In the end deal it: `left[r::ranks]`.",
    ],
)
def resume(expect: Expect, resume: Callable[..., list[list[int]]]) -> None:
    not_from_lablib(resume)
    for rule, order, runs, ranks in _stops(expect.draw):
        expect.measured.clear()
        call = observe(resume, order, runs, ranks)
        if call.changed:
            name = ("the order", "the list of runs")[call.changed[0]]
            raise RuleBroken(f"{name} stays as it was ({rule})", "it changed", "as it was: work on a copy")
        _expect_parts(expect, call.value, order, runs, ranks, rule)


Runs = list[list[tuple[int, int]]]


def _expect_parts(expect: Expect, saw: Any, order: list[int], runs: Runs, ranks: int, rule: str) -> None:
    where = f"{rule}; order {order}, runs {runs}, {plural(ranks, 'ranks')}"
    if not isinstance(saw, list | tuple) or not all(isinstance(part, list | tuple) for part in saw):
        raise RuleBroken(f"a list for each rank is returned ({where})", short_repr(saw), "a list of lists")
    expect.equal(f"there is a list for each rank ({where})", len(saw), ranks)
    if not all(isinstance(sample, Integral) for part in saw for sample in part):
        raise RuleBroken(f"the lists hold samples of the order ({where})", short_repr(saw), "their numbers")
    left = _left(order, runs)
    given = Counter(sample for part in saw for sample in part)
    lost, again = [s for s in left if not given[s]], [s for s in given if s not in left]
    expect.that(f"no sample is lost ({where})", not lost, saw=f"lost: {lost}", expected="each unused sample once")
    expect.that(f"no sample is used again ({where})", not again, saw=f"again: {again}", expected="only unused samples")
    twice = [sample for sample, count in given.items() if count > 1]
    expect.that(f"no sample is dealt twice ({where})", not twice, saw=f"twice: {twice}", expected="each once")
    wanted = [left[rank::ranks] for rank in range(ranks)]
    rule = f"place i of the remaining samples, in the epoch's order, goes to rank i mod {ranks} ({where})"
    expect.equal(rule, [list(part) for part in saw], wanted)


def _left(order: Sequence[int], runs: Runs) -> list[int]:
    """Remaining samples, from the rank and place in its part of each sample."""
    left = list(order)
    for run in runs:
        ranks = len(run)
        left = [s for place, s in enumerate(left) if place // ranks >= run[place % ranks][1]]
    return left


def _stops(draw: Draw) -> Iterator[tuple[str, list[int], Runs, int]]:
    """Rule that a case tests, the order, the runs, the number of ranks that go on."""

    def order(num: int) -> list[int]:
        return draw.shuffled(list(range(num)))

    yield "no run so far", order(6), [], 2
    yield "one rank, one more goes on", order(6), [[(2, 2)]], 1
    yield "one rank, samples loaded and not used", order(6), [[(4, 2)]], 1
    yield "two ranks used as many, two go on", order(8), [[(2, 2), (2, 2)]], 2
    yield "two ranks used as many, three go on", order(9), [[(2, 2), (2, 2)]], 3
    yield "two ranks used as many, one goes on", order(8), [[(3, 2), (4, 2)]], 1
    yield "three ranks, each at another place", order(12), [[(2, 1), (1, 0), (4, 3)]], 2
    yield "the first rank is ahead", order(8), [[(4, 3), (2, 1)]], 2
    yield "the last rank is ahead", order(8), [[(1, 0), (3, 3)]], 3
    yield "nothing was used, much was loaded", order(7), [[(3, 0), (3, 0)]], 2
    yield "samples that are no multiple of the ranks", order(7), [[(2, 1), (2, 1), (1, 1)]], 2
    yield "all was used", order(5), [[(3, 3), (2, 2)]], 2
    yield "more ranks than samples left", order(5), [[(2, 2), (2, 1)]], 4
    yield "two runs, the second used more", order(10), [[(2, 0), (2, 2)], [(2, 2), (2, 1)]], 2
    yield "two runs, the same ranks", order(10), [[(2, 1), (2, 2)], [(2, 1), (1, 1)]], 2
    yield "two runs, other ranks", order(12), [[(3, 2), (2, 1)], [(2, 1), (1, 1), (1, 0)]], 2
    yield "three runs", order(14), [[(2, 1), (2, 2)], [(2, 1), (1, 1), (1, 1)], [(4, 3)]], 3
    yield "a run that used nothing, between two", order(9), [[(1, 1), (2, 1)], [(1, 0)], [(2, 2), (2, 1)]], 2
    numbers = [37 * number + 100 for number in order(8)]
    yield "sample numbers that differ from places", numbers, [[(3, 2), (3, 1)]], 2
    yield "no run so far, one rank", order(6), [], 1
    yield "no run so far, three ranks", order(7), [], 3
    yield "no run so far, more ranks than samples", order(3), [], 5
    same = order(8)
    yield "two ranks, the first ahead", same, [[(3, 2), (2, 1)]], 2
    yield "the same order, the second ahead", same, [[(2, 1), (3, 3)]], 2
    yield "four runs", order(20), [[(2, 1), (3, 2)], [(2, 2)], [(1, 1), (1, 0), (2, 2)], [(2, 1), (2, 2)]], 2
    yield "six ranks", order(16), [[(1, 1)] * 6], 6
    yield "the same order and run, three go on", same, [[(3, 2), (2, 1)]], 3
    yield "the same order, as many by the other", same, [[(3, 1), (2, 2)]], 2
    yield "the same order and first run, a second one", same, [[(3, 2), (2, 1)], [(1, 1)]], 2
    yield "the same order and first run, another second one", same, [[(3, 2), (2, 1)], [(1, 0)]], 2
    yield "the same run twice", order(9), [[(2, 1), (1, 1)], [(2, 1), (1, 1)]], 2
    yield "much was used", order(14), [[(6, 6), (5, 4)]], 2
    yield "the middle of three ranks is behind", order(9), [[(2, 2), (2, 1), (2, 2)]], 2
    yield "five runs", order(14), [[(1, 1)], [(2, 2)], [(1, 1), (1, 0)], [(2, 1)], [(1, 1), (1, 1)]], 2
    for _ in range(30):
        num, runs = draw.integer(6, 20), []
        samples = order(num)
        left = num
        for _ in range(draw.integer(1, 3)):
            ranks = draw.integer(1, 4)
            parts = [len(range(rank, left, ranks)) for rank in range(ranks)]
            used = [min(part, draw.integer(0, 3)) for part in parts]
            runs.append(
                [(min(part, count + draw.integer(0, 2)), count) for part, count in zip(parts, used, strict=True)]
            )
            left -= sum(used)
        yield "drawn at random", samples, runs, draw.integer(1, 4)


# ---- Find the bugs in an order ---------------------------------------------------------------------------------------


@exercise(
    "Find the bugs in an order",
    hints=[
        "Two of the bugs are seen in one epoch with all its ranks, one in one rank with all its epochs.",
        "For each epoch count how often each sample came, to all ranks together. For each rank compare every two "
        "epochs, order included.",
        "A `Counter` over all samples of all parts of an epoch: fewer keys than `num_samples` is lost, a count above 1 "
        "repeated. For `parts in zip(*delivered)`: fewer different tuples than parts is stale.",
    ],
)
def order_bugs(expect: Expect, order_bugs: Callable[..., set[str]]) -> None:
    not_from_lablib(order_bugs)
    for rule, delivered, num in _deliveries(expect.draw):
        expect.measured.clear()
        delivered = [[list(part) for part in epoch] for epoch in delivered]  # no two are one object
        call = observe(order_bugs, delivered, num)
        if call.changed:
            raise RuleBroken(f"delivered stays as it was ({rule})", "it changed", "work on a copy")
        saw = call.value
        shown = f"{rule}: {_shown(delivered)}"
        if not isinstance(saw, set | frozenset) or not all(isinstance(word, str) for word in saw):
            raise RuleBroken(f"a set of words is returned ({shown})", short_repr(saw), 'such as {"lost"}, or set()')
        wanted = _bugs(delivered, num)
        if set(saw) != wanted:
            raise RuleBroken(shown, _words(saw), _words(wanted))


def _shown(delivered: list[list[list[int]]]) -> str:
    return "; ".join(f"epoch {number} {parts}" for number, parts in enumerate(delivered))


def _words(bugs: Any) -> str:
    return ", ".join(sorted(bugs)) or "nothing wrong"


def _bugs(delivered: list[list[list[int]]], num: int) -> set[str]:
    bugs = set()
    for parts in delivered:
        counts = Counter(sum(parts, []))
        bugs |= {"lost"} if any(counts[sample] == 0 for sample in range(num)) else set()
        bugs |= {"repeated"} if any(count > 1 for count in counts.values()) else set()
    for rank in range(len(delivered[0])):
        mine = [epoch[rank] for epoch in delivered]
        bugs |= {"stale"} if any(mine.index(one) != place for place, one in enumerate(mine)) else set()
    return bugs


Delivered = list[list[list[int]]]


def _deliveries(draw: Draw) -> Iterator[tuple[str, Delivered, int]]:
    """Rule that a case tests, the delivered samples, their number. Small enough to be shown in full."""
    yield "nothing is wrong", [[[0, 1], [2, 3]], [[3, 0], [1, 2]]], 4
    yield "one epoch, nothing wrong", [[[1, 3], [0, 2]]], 4
    yield "one rank, another order", [[[0, 1, 2]], [[2, 0, 1]]], 3
    yield "one epoch, the last sample lost", [[[0, 1], [2, 3]]], 5
    yield "each epoch loses another sample", [[[0, 1], [2, 3]], [[4, 0], [1, 2]]], 5
    yield "lost, in the second epoch only", [[[0, 1, 4], [2, 3]], [[3, 0], [1, 2]]], 5
    yield "three times to one rank, nothing lost", [[[0, 1, 1, 1], [2, 3]]], 4
    yield "three times, to three ranks, nothing lost", [[[0, 1], [2, 1], [1, 3]]], 4
    yield "repeated by two ranks, nothing lost", [[[0, 1, 3], [2, 3]]], 4
    yield "repeated by one rank, nothing lost", [[[0, 1, 1], [2, 3]], [[3, 0], [1, 2]]], 4
    yield "repeated in the last epoch only", [[[0, 1], [2, 3]], [[3, 0], [1, 2, 0]]], 4
    yield "the padding of a sampler counts as repeated", [[[0, 1], [2, 0]], [[1, 0], [0, 2]]], 3
    yield "a rank keeps its samples and changes their order", [[[0, 1], [2, 3]], [[1, 0], [3, 2]]], 4
    yield "two ranks change parts", [[[0, 1], [2, 3]], [[2, 3], [0, 1]]], 4
    yield "an epoch begins like the one before", [[[0, 1, 2], [3, 4, 5]], [[0, 2, 1], [3, 5, 4]]], 6
    yield "most places are the same", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 3, 2], [4, 5, 7, 6]]], 8
    yield "all ranks stale", [[[0, 1], [2, 3]], [[0, 1], [2, 3]]], 4
    yield "two of three ranks stale", [[[0, 1], [2, 3], [4, 5]], [[0, 1], [3, 2], [4, 5]]], 6
    yield "the first rank stale", [[[0, 1], [2, 3]], [[0, 1], [3, 2]]], 4
    yield "the last rank stale", [[[0, 1], [2, 3]], [[1, 0], [2, 3]]], 4
    yield "the first two of three epochs are the same", [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[3, 0], [1, 2]]], 4
    yield "the second and the third epoch are the same", [[[3, 0], [1, 2]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]], 4
    yield "the first and the third epoch are the same", [[[0, 1], [2, 3]], [[3, 0], [1, 2]], [[0, 1], [2, 3]]], 4
    yield "stale and lost", [[[0, 1], [3, 2]], [[0, 1], [2, 3]]], 5
    yield "lost, and as many repeated", [[[0, 1], [2, 2]], [[2, 0], [1, 3]]], 4
    yield "all three at once", [[[0, 1], [1, 2]], [[0, 1], [2, 1]]], 4
    yield "stale and repeated", [[[0, 1], [1, 2]], [[0, 1], [2, 1]]], 3
    yield "a part is the beginning of another epoch's part", [[[0, 1], [2, 3, 4]], [[0, 1, 2], [4, 3]]], 5
    yield "parts of different lengths", [[[0, 1, 2], [3, 4]], [[4, 3, 1], [2, 0]]], 5
    a, b, c, d = [[0, 1], [2, 3]], [[1, 2], [3, 0]], [[2, 0], [1, 3]], [[3, 1], [0, 2]]
    yield "the first sample lost", [[[1, 2], [3, 4]]], 5
    yield "lost in one epoch, repeated in the other", [[[0, 1], [2, 2]], [[1, 0], [3, 3]]], 4
    yield "the first and the fourth epoch are the same", [a, b, c, a], 4
    yield "the second and the last of five epochs are the same", [a, b, c, d, b], 4
    yield "lost in the middle epoch only", [[[0, 1, 2], [3, 4]], [[2, 0], [1, 3]], [[4, 1, 0], [2, 3]]], 5
    yield "repeated in the middle epoch only", [[[0, 1], [2, 3]], [[1, 2], [3, 0, 1]], [[2, 0], [1, 3]]], 4
    yield "lost and repeated in the fourth epoch", [a, b, c, [[3, 1], [0, 0]]], 4
    pairs = [[[0, 1], [2, 3], [4, 5], [6, 7]], [[1, 0], [3, 2], [4, 5], [7, 6]]]
    yield "the third of four ranks stale", pairs, 8
    yield "the first and the third rank share", [[[0, 1], [2, 3], [4, 0]]], 5
    yield "the second and the third rank share", [[[0, 1], [2, 3], [4, 2]]], 5
    digits = [[[1, 11, 0, 2], [3, 4, 5, 6], [7, 8, 9, 10]], [[11, 1, 0, 2], [3, 4, 6, 5], [8, 7, 9, 10]]]
    yield "numbers of two digits", digits, 12
    yield "the same first and last", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 2, 1, 3], [4, 6, 5, 7]]], 8
    ends = [[[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]], [[0, 1, 2, 3, 5, 4], [6, 7, 8, 9, 11, 10]]]
    yield "only the end differs", ends, 12
    yield "every rank gets all", [[[0, 2, 1], [0, 2, 1]], [[1, 0, 2], [1, 0, 2]]], 3
    yield "twice within a part, not at its ends", [[[4, 0, 1, 0, 2], [3, 5]]], 6
    yield "shared, not at the ends of the parts", [[[0, 1, 2], [3, 1, 4]]], 5
    yield "a part is the beginning of the part in the epoch before", [[[0, 1, 2], [4, 3]], [[0, 1], [2, 3, 4]]], 5
    yield "one sample more", [[[1, 2], [3, 4, 0]], [[1, 2, 0], [4, 3]]], 5
    yield "one sample more, a repeated one", [[[1, 0], [2, 3]], [[1, 0, 0], [3, 2]]], 4
    yield "the first sample again at the end", [[[1, 0], [2, 3]], [[1, 0, 1], [3, 2]]], 4
    yield "the same row of samples, cut elsewhere", [[[0, 1, 2], [3, 4]], [[0, 1], [2, 3, 4]]], 5
    yield "stale, and repeated in that part", [[[0, 0, 1], [2, 3]], [[0, 0, 1], [3, 2]]], 4
    middle = [[*range(8)], [*range(8, 16)]], [[0, 1, 3, 2, 4, 5, 6, 7], [8, 9, 11, 10, 12, 13, 14, 15]]
    yield "two of eight places differ", list(middle), 16
    begins_so = [[[0, 1], [2, 3, 4]], [[0, 2], [1, 3, 4]], [[0, 1], [2, 4, 3]]]
    yield "first and third the same, the second begins the same way", begins_so, 5
    yield "one rank, second and fourth epoch", [a, b, c, [[1, 2], [0, 3]]], 4
    yield "the first and the sixth epoch are the same", [a, b, c, d, [[1, 3], [2, 0]], a], 4
    last_of_five = [[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], [[1, 0], [3, 2], [5, 4], [7, 6], [8, 9]]]
    yield "the last of five ranks stale", last_of_five, 10
    for _ in range(60):
        ranks = draw.integer(1, 4)
        num, epochs = draw.integer(2 * ranks, 2 * ranks + 5), []
        for _ in range(draw.integer(1, 5)):
            order = draw.shuffled(list(range(num)))
            epochs.append([order[rank::ranks] for rank in range(ranks)])
        if draw.integer(0, 2) == 0:
            rank, one, other = (draw.integer(0, size - 1) for size in (ranks, len(epochs), len(epochs)))
            epochs[one][rank] = list(epochs[other][rank])
        if draw.integer(0, 2) == 0:
            epoch = epochs[draw.integer(0, len(epochs) - 1)]
            part = epoch[draw.integer(0, ranks - 1)]
            part.insert(draw.integer(0, len(part)), draw.integer(0, num - 1))
        if draw.integer(0, 7) == 0:
            epochs[-1][-1] = list(epochs[-1][0])
        yield "drawn at random", epochs, num + (draw.integer(0, 3) == 0)


# ---- The document mask ----------------------------------------------------------------------------------------------


@exercise(
    "The document mask",
    hints=[
        "Two tokens are of one document if their numbers are equal. How do you compare each with each?",
        "`documents[:, :, None] == documents[:, None, :]` has the shape (B, T, T): row i, column j. And a token sees "
        "no later token: which half must be False?",
        "`.tril()` keeps the diagonal and the entries below it; `[:, None]` inserts the dimension of 1. Padding is "
        "then a document like any other.",
    ],
)
def document_mask(expect: Expect, document_mask: Callable[[Tensor], Tensor]) -> None:
    not_from_lablib(document_mask)
    draw = expect.draw
    kept = None
    for words, documents in _blocks(draw):
        expect.measured.clear()  # the result shows only the rules of the last blocks
        call = observe(document_mask, documents.clone())
        _expect_mask(expect, call, documents, f"{words}, {tuple(documents.shape)}")
        if kept and not torch.equal(*kept):
            rule = f"the mask of the call before stays unchanged ({words})"
            raise RuleBroken(rule, "it changed", "a new tensor in each call")
        kept = call.value, call.value.clone()


def _block(draw: Draw, lengths: Sequence[int], padding: int) -> list[int]:
    """Document numbers for these lengths, in any order, and padding at the end."""
    numbers = draw.integers(len(lengths), 0, 2 * len(lengths) + 3)
    return [number for number, length in zip(numbers, lengths, strict=True) for _ in range(length)] + [-1] * padding


def _blocks(draw: Draw) -> Iterator[tuple[str, Tensor]]:
    length, num = draw.integer(3, 6), draw.integer(2, 4)
    yield "one document", torch.tensor([_block(draw, [length], 0)])
    low, (middle, high) = 0, sorted(draw.integers(2, 1, 20))  # neither ascending nor descending
    yield "equal documents", torch.tensor([[middle] * length + [low] * length + [high] * length])
    uneven = [draw.integer(1, 7) for _ in range(num)] + [1, 5]
    yield "documents of different lengths", torch.tensor([_block(draw, uneven, 0)])
    yield "the same shape, different documents", torch.tensor([_block(draw, uneven[1:] + uneven[:1], 0)])
    yield "documents and padding", torch.tensor([_block(draw, uneven, draw.integer(2, 5))])
    rows = []
    for _ in range(draw.integer(3, 5)):
        lengths = [draw.integer(1, 4) for _ in range(draw.integer(1, 4))]
        rows.append(_block(draw, lengths, 17 - sum(lengths)))
    yield "several blocks", torch.tensor(rows)
    yield (
        "several blocks of different documents, without padding",
        torch.tensor([_block(draw, cut, 0) for cut in ([3, 9], [7, 5], [1, 1, 10])]),
    )
    yield "a block of padding alone", torch.tensor([_block(draw, uneven, 0), [-1] * sum(uneven)])
    front = torch.tensor([_block(draw, [draw.integer(2, 5) for _ in range(4)], 0)])
    numbers = front.unique_consecutive()
    front[torch.isin(front, numbers[::2])] = -1
    yield "padding in front, and between documents", front
    number = draw.integer(110_000, 300_000)
    large = [number + more for more in (256, 0, 1, 65_536) for _ in range(draw.integer(2, 4))]
    yield "large numbers of documents", torch.tensor([large])
    for name in (0, 12, draw.integer(1, 5)):  # 12 tokens: padding must not become document 0 or 12
        yield f"padding before document {name}", torch.tensor([[-1] * 3 + [name] * 4 + [40] * 3 + [-1] + [50]])
    yield "a long block", torch.tensor([[*range(300)] + [300] * 100])
    yield "documents in ascending order", torch.tensor([sorted(_block(draw, [4] * num, 0)) + [-1]])
    yield "blocks of one token", torch.tensor([[3], [0]])


def _expect_mask(expect: Expect, call: Observed, documents: Tensor, on: str) -> None:
    mask, (rows, length) = call.value, documents.shape
    rule = f"the mask is a tensor of booleans ({on})"
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise RuleBroken(rule, _mask_as_told(mask), "torch.bool")
    changes_nothing(expect, [call])
    if mask.shape != (rows, 1, length, length):
        raise RuleBroken(
            f"the mask has the shape (B, 1, T, T) ({on})", str(tuple(mask.shape)), f"{(rows, 1, length, length)}"
        )
    saw = mask[:, 0]
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    same = documents[:, :, None] == documents[:, None, :]
    is_token = (documents >= 0)[:, :, None]
    rules = {  # for each: the places where it applies, and the value there
        "every token sees itself, padding too": ((i == j).expand(rows, -1, -1), True),
        "no token sees a later one": (is_token & (j > i), False),
        "no token sees another document": (is_token & ~same, False),
        "a token sees all tokens before it in its own document": (is_token & same & (j < i), True),
    }
    in_all = sum(int((where & (saw != wanted)).sum()) for where, wanted in rules.values())
    for rule, (where, wanted) in rules.items():
        wrong = (where & (saw != wanted)).nonzero()
        if len(wrong):
            b, row, column = wrong[0].tolist()
            sees = "does not see" if wanted else "sees"
            seer, seen = (
                f"{place} ({'padding' if number < 0 else f'document {number}'})"
                for place, number in ((at, int(documents[b, at])) for at in (row, column))
            )
            what = f"token {seer} {sees} token {seen}"
            raise RuleBroken(
                f"{rule} ({on})",
                f"in block {b} {what}; {in_all} of {saw.numel()} entries are wrong",
                f"{wanted} at [{b}, 0, {row}, {column}]",
            )
        expect.that(f"{rule} ({on})", True, "yes", "")


def _mask_as_told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    return "None: is there a return?" if value is None else f"{type(value).__name__} {short_repr(value)}"
