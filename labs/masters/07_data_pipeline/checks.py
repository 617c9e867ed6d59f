"""Checks of lab 07: the data pipeline. Times, traces, orders and stops are drawn anew."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lablib.course import Expect, exercise
from lablib.course.draw import Draw
from lablib.course.expect import RuleBroken
from lablib.course.formatting import short_repr
from lablib.course.observe import observe
from lablib.course.rules import not_from_lablib
from lablib.units import plural

# ---- How many workers -----------------------------------------------------------------------------------------------


@exercise(
    "How many workers?",
    hints=[
        "How long does the device work on one batch, copy included, where nothing delays it? Does the stream matter?",
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
        if isinstance(saw, bool) or not (saw is None or isinstance(saw, int)):
            raise RuleBroken(f"a whole number of workers, or None: {where}", short_repr(saw), f"{wanted}, an int")
        expect.equal(where, saw, wanted)


def _settings(draw: Draw) -> Iterator[tuple[str, int, int, int, bool, int]]:
    """What a case is about, load, copy, step, own stream, most."""
    step, k = 10 * draw.integer(5, 15), draw.integer(3, 6)
    copy = step // 2 + draw.integer(1, 20)
    yield "no copy, a load that steps divide", k * step, 0, step, False, 99
    yield "what nearly divides needs no more", k * step - 1, 0, step, False, 99
    yield "what does not divide is rounded up", k * step + step // 4, 0, step, False, 99
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
    large = 3 * 10**17 + draw.integer(1, 9)
    yield "large numbers are exact", 3 * large + 1, 0, large, False, 99
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
        told = str(loads) if len(loads) <= 12 else f"{len(loads)} loads, the first {loads[:6]}"
        call = observe(smallest_prefetch, loads, step)
        if call.changed:
            raise RuleBroken(f"the loads stay as they were ({rule})", "they changed", "as they were: work on a copy")
        wanted = next((p for p in range(1, len(loads) + 1) if not _waits(loads, step, p)), None)
        _expect_count(expect, f"{rule} (steps of {step} ms; {told})", call.value, wanted, loads, step)


def _expect_count(expect: Expect, rule: str, saw: Any, wanted: int | None, loads: list[int], step: int) -> None:
    if saw is None or type(saw) is int:
        if type(saw) is int and saw < 1:
            raise RuleBroken(rule, f"{saw}", "at least 1: without an order nothing is loaded")
        if type(saw) is int and (waits := _waits(loads, step, saw)):
            batch, waited = waits[0]
            raise RuleBroken(rule, f"{saw}, where the device waits {waited} ms before batch {batch}", f"{wanted}")
        expect.equal(rule, saw, wanted)
        return
    raise RuleBroken(f"a whole number, or None: {rule}", short_repr(saw), f"{wanted}, an int")


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
    """What a case is about, loads, step."""
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
    yield (
        "batch 0 gives the others time if it takes long: the worker loads on only when free",
        [
            3 * step,
            2 * step,
            1,
            1,
            1,
        ],
        step,
    )
    yield "one worker loads in turn", [1, step + 5, step - 5, step + 3, 1, 1], step
    yield "all orders of the start are needed", [1] * 6 + [6 * step - 1], step
    yield "loads of no time", [0, 0, 0, 2 * step, 0], step
    long = [draw.integer(1, step) for _ in range(300)]
    long[200] = 9 * step
    yield "a long trace", long, step
    for _ in range(40):
        drawn = [draw.integer(1, 14) ** 2 for _ in range(draw.integer(3, 24))]
        yield "drawn at random", drawn, max(1, draw.integer(60, 160))


# ---- What is wrong with an order ------------------------------------------------------------------------------------


@exercise(
    "What is wrong with this order?",
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
        call = observe(order_bugs, delivered, num)
        if call.changed:
            raise RuleBroken(f"what was delivered stays as it was ({rule})", "it changed", "work on a copy")
        saw = call.value
        shown = f"{rule}: {_told(delivered)}"
        if not isinstance(saw, set | frozenset) or not all(isinstance(word, str) for word in saw):
            raise RuleBroken(f"a set of words is returned ({shown})", short_repr(saw), 'such as {"lost"}, or set()')
        wanted = _bugs(delivered, num)
        if saw != wanted:
            raise RuleBroken(shown, _words(saw), _words(wanted))


def _told(delivered: list[list[list[int]]]) -> str:
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
    """What a case is about, what was delivered, the number of samples. Small enough to be shown whole."""
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
    yield "an epoch begins as the one before", [[[0, 1, 2], [3, 4, 5]], [[0, 2, 1], [3, 5, 4]]], 6
    yield "most places are the same", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 3, 2], [4, 5, 7, 6]]], 8
    yield "all ranks stale", [[[0, 1], [2, 3]], [[0, 1], [2, 3]]], 4
    yield "two of three ranks stale", [[[0, 1], [2, 3], [4, 5]], [[0, 1], [3, 2], [4, 5]]], 6
    yield "the first rank stale", [[[0, 1], [2, 3]], [[0, 1], [3, 2]]], 4
    yield "the last rank stale", [[[0, 1], [2, 3]], [[1, 0], [2, 3]]], 4
    yield "the first two of three epochs alike", [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[3, 0], [1, 2]]], 4
    yield "the second and the third epoch alike", [[[3, 0], [1, 2]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]], 4
    yield "the first and the third epoch alike", [[[0, 1], [2, 3]], [[3, 0], [1, 2]], [[0, 1], [2, 3]]], 4
    yield "stale and lost", [[[0, 1], [3, 2]], [[0, 1], [2, 3]]], 5
    yield "lost, and as many repeated", [[[0, 1], [2, 2]], [[2, 0], [1, 3]]], 4
    yield "all three at once", [[[0, 1], [1, 2]], [[0, 1], [2, 1]]], 4
    yield "stale and repeated", [[[0, 1], [1, 2]], [[0, 1], [2, 1]]], 3
    yield "parts of different lengths", [[[0, 1, 2], [3, 4]], [[4, 3, 1], [2, 0]]], 5
    for _ in range(60):
        num, ranks = draw.integer(4, 7), draw.integer(1, 2)
        epochs = []
        for _ in range(draw.integer(1, 3)):
            order = draw.shuffled(list(range(num)))
            epochs.append([order[rank::ranks] for rank in range(ranks)])
        if draw.integer(0, 2) == 0:
            rank = draw.integer(0, ranks - 1)
            epochs[-1][rank] = list(epochs[0][rank])
        if draw.integer(0, 2) == 0:
            epochs[draw.integer(0, len(epochs) - 1)][0].append(draw.integer(0, num - 1))
        yield "drawn at random", epochs, num + (draw.integer(0, 3) == 0)


# ---- Stop and go on -------------------------------------------------------------------------------------------------


@exercise(
    "Stop and go on",
    hints=[
        "After one run, which places of the order are used? And of which list are the parts of the second run places?",
        "Keep a list of what is left, in the epoch's order. For each run: its ranks' parts of that list, of each the "
        "first `used` samples; take these out, and the list for the next run is there.",
        "Rank r of a run with W ranks had `left[r::W]`, and used `[:used]` of it. Collect these of all ranks before "
        "you make the new list. In the end deal it: `left[r::ranks]`.",
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
    left = _left(order, runs)
    given = Counter(sample for part in saw for sample in part)
    lost, again = [s for s in left if not given[s]], [s for s in given if s not in left]
    expect.that(f"no sample is lost ({where})", not lost, saw=f"lost: {lost}", expected="each unused sample once")
    expect.that(f"no sample is used again ({where})", not again, saw=f"again: {again}", expected="only unused samples")
    twice = [sample for sample, count in given.items() if count > 1]
    expect.that(f"no sample is dealt twice ({where})", not twice, saw=f"twice: {twice}", expected="each once")
    wanted = [left[rank::ranks] for rank in range(ranks)]
    rule = f"place i of what is left, in the epoch's order, goes to rank i mod {ranks} ({where})"
    expect.equal(rule, [list(part) for part in saw], wanted)


def _left(order: Sequence[int], runs: Runs) -> list[int]:
    """Sample by sample: rank and place in its part of each."""
    left = list(order)
    for run in runs:
        ranks = len(run)
        left = [s for place, s in enumerate(left) if place // ranks >= run[place % ranks][1]]
    return left


def _stops(draw: Draw) -> Iterator[tuple[str, list[int], Runs, int]]:
    """What a case is about, the order, the runs, the ranks that go on."""

    def order(num: int) -> list[int]:
        return draw.shuffled(list(range(num)))

    yield "no run so far", order(6), [], 2
    yield "one rank, one more goes on", order(6), [[(2, 2)]], 1
    yield "one rank, what was loaded and not used", order(6), [[(4, 2)]], 1
    yield "two ranks used as many, two go on", order(8), [[(2, 2), (2, 2)]], 2
    yield "two ranks used as many, three go on", order(9), [[(2, 2), (2, 2)]], 3
    yield "two ranks used as many, one goes on", order(8), [[(3, 2), (4, 2)]], 1
    yield "three ranks, each differently far", order(12), [[(2, 1), (1, 0), (4, 3)]], 2
    yield "the first rank is ahead", order(8), [[(4, 3), (2, 1)]], 2
    yield "the last rank is ahead", order(8), [[(1, 0), (3, 3)]], 3
    yield "nothing was used, much was loaded", order(7), [[(3, 0), (3, 0)]], 2
    yield "samples that ranks do not divide", order(7), [[(2, 1), (2, 1), (1, 1)]], 2
    yield "all was used", order(5), [[(3, 3), (2, 2)]], 2
    yield "more ranks than samples left", order(5), [[(2, 2), (2, 1)]], 4
    yield "two runs, the second used more", order(10), [[(2, 0), (2, 2)], [(2, 2), (2, 1)]], 2
    yield "two runs, the same ranks", order(10), [[(2, 1), (2, 2)], [(2, 1), (1, 1)]], 2
    yield "two runs, other ranks", order(12), [[(3, 2), (2, 1)], [(2, 1), (1, 1), (1, 0)]], 2
    yield "three runs", order(14), [[(2, 1), (2, 2)], [(2, 1), (1, 1), (1, 1)], [(4, 3)]], 3
    yield "a run that used nothing, between two", order(9), [[(1, 1), (2, 1)], [(1, 0)], [(2, 2), (2, 1)]], 2
    numbers = [number + 100 for number in order(8)]
    yield "samples that are no places", numbers, [[(3, 2), (3, 1)]], 2
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
