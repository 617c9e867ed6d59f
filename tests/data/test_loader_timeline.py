"""A loop fed by a loader: steps as its closed forms say, every idle second with one cause, and no batch lost."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.data.loading.loaded_run import Cause
from lablib.data.loading.loader import Copy, Jitter, Loader, draw_times
from lablib.data.loading.loader_timeline import run_loop, steady_step_s
from lablib.data.loading.smallest_prefetch import smallest_prefetch

TIMES = st.floats(0.01, 10.0)
LOADERS = st.builds(
    Loader,
    workers=st.integers(0, 4),
    prefetch=st.integers(1, 4),
    keeps_order=st.booleans(),
    persistent=st.booleans(),
    start_s=st.floats(0.0, 5.0),
    copy=st.sampled_from(Copy),
    batch_bytes=st.floats(0.0, 3.0),
    copy_bytes_per_s=st.just(1.0),
    reads_loss=st.booleans(),
)


def copying(copy_s, *args, **more):
    """A loader whose copies take so many seconds."""
    return Loader(*args, batch_bytes=copy_s, copy_bytes_per_s=1.0, **more)


@st.composite
def runs(draw):
    """Any loader, and times of any batches of up to three epochs: what `run_loop` takes."""
    epochs, size = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    loads, steps = (draw(st.lists(TIMES, min_size=epochs * size, max_size=epochs * size)) for _ in range(2))
    return draw(LOADERS), loads, steps, epochs


@pytest.mark.parametrize("copy, reads_loss", list(product(Copy, [True, False])))
@settings(max_examples=30)
@given(load_s=TIMES, step_s=TIMES, copy_s=st.floats(0.0, 5.0), workers=st.integers(0, 4), prefetch=st.integers(1, 4))
def test_constant_times_settle_at_the_closed_form(copy, reads_loss, load_s, step_s, copy_s, workers, prefetch):
    loader = copying(copy_s, workers, prefetch, copy=copy, reads_loss=reads_loss)
    num = 240
    ends = [one.step_end_s for one in run_loop(loader, [load_s] * num, [step_s] * num).batches]
    # Workers come by together, so a step is one of a round of k, and of the two or three batches that are under way.
    a_round = 12
    assert (ends[-1] - ends[-1 - 5 * a_round]) / (5 * a_round) == pytest.approx(
        steady_step_s(loader, load_s, step_s), rel=1e-9
    )


@given(runs())
def test_every_idle_second_has_one_cause(made):
    run, steps = run_loop(*made), made[2]
    assert run == run_loop(*made)  # deterministic
    idle_s = sum(run.idle_s(cause) for cause in Cause)
    assert idle_s + sum(steps) == pytest.approx(run.makespan_s)
    assert run.idle_share == pytest.approx(idle_s / run.makespan_s, abs=1e-9)
    assert run.timeline.compute_idle_s(0) == pytest.approx(idle_s, abs=1e-9)
    # As a timeline says it: a copy is communication; while a worker loads, the device has nothing to do.
    assert run.timeline.exposed_s(0) == pytest.approx(run.idle_s(Cause.COPY), abs=1e-9)
    assert run.timeline.idle_s(0) == pytest.approx(run.idle_s(Cause.START) + run.idle_s(Cause.LOAD), abs=1e-9)
    for before, after in pairwise(run.gaps):
        assert before.end_s <= after.start_s
    for batch, worker in ((run.batches[gap.batch], gap.cause) for gap in run.gaps):
        assert worker is not Cause.START or batch.worker >= 0


@given(runs())
def test_each_place_has_one_batch_at_a_time_and_a_batch_one_place(made):
    run, (_, loads, steps, _) = run_loop(*made), made
    for batch in run.batches:
        assert batch.load_end_s <= batch.copy_start_s <= batch.copy_end_s <= batch.step_start_s <= batch.step_end_s
    workers = {batch.worker for batch in run.batches}
    lanes = [[(b.load_start_s, b.load_end_s) for b in run.batches if b.worker == worker] for worker in workers]
    lanes += [[(b.copy_start_s, b.copy_end_s) for b in run.batches]]
    lanes += [[(b.step_start_s, b.step_end_s) for b in run.batches]]
    for lane in lanes:
        assert all(end_s <= start_s + 1e-9 for (_, end_s), (start_s, _) in pairwise(sorted(lane)))
    # Nothing is lost: the loads that were given are those that were done.
    assert sorted(b.load_end_s - b.load_start_s for b in run.batches) == pytest.approx(sorted(loads))
    assert [b.step_end_s - b.step_start_s for b in run.batches] == pytest.approx(steps)


@given(loads=st.lists(TIMES, min_size=1, max_size=30), workers=st.integers(1, 4), prefetch=st.integers(1, 3))
def test_no_more_than_k_p_batches_are_loaded_and_not_taken(loads, workers, prefetch):
    run = run_loop(Loader(workers, prefetch), loads, [1.0] * len(loads))
    for number, batch in enumerate(run.batches[:-1]):
        takes_s = [
            max(one.load_end_s, before_s) for one, before_s in zip(run.batches, [0.0, *_ends(run)], strict=False)
        ]
        waiting = sum(
            one.load_end_s <= batch.load_end_s < taken_s - 1e-9
            for one, taken_s in zip(run.batches, takes_s, strict=True)
        )
        assert waiting <= workers * prefetch, number


def _ends(run):
    return [batch.step_end_s for batch in run.batches]


@given(loads=st.lists(TIMES, min_size=1, max_size=30), step_s=TIMES, workers=st.integers(1, 4), less=st.integers(1, 5))
def test_more_prefetch_never_makes_a_step_later(loads, step_s, workers, less):
    few, more = (
        run_loop(Loader(workers, prefetch), loads, [step_s] * len(loads)).batches for prefetch in (less, less + 1)
    )
    assert all(a.step_end_s >= b.step_end_s - 1e-9 for a, b in zip(few, more, strict=True))


def test_first_loaded_first_taken_does_not_wait_for_one_slow_load():
    loads = [1.0, 9.0] + [1.0] * 10
    kept, free = (run_loop(Loader(2, keeps_order=keeps), loads, [1.0] * 12) for keeps in (True, False))
    assert [b.worker for b in kept.batches] == [0, 1] * 6
    assert free.makespan_s == 13 < kept.makespan_s  # the slow one is among the last, and nobody waited for it
    assert {b.load_end_s - b.load_start_s for b in free.batches} == {1.0, 9.0}


def test_a_run_says_itself_in_a_line():
    run = run_loop(Loader(1), [1.0] * 3, [1.0] * 3)
    assert repr(run) == "LoadedRun(3 batches in 4 s, the device waits 25.0% of it)"


def test_persistent_workers_start_once_but_each_epoch_waits_for_its_first_batch():
    runs = [
        run_loop(Loader(2, persistent=persistent, start_s=10.0), [1.0] * 12, [1.0] * 12, epochs=3)
        for persistent in (False, True)
    ]
    assert [run.idle_s(Cause.START) for run in runs] == [30, 10]
    assert [run.idle_s(Cause.LOAD) for run in runs] == [3, 3]
    assert [run.makespan_s for run in runs] == [45, 25]


def test_copies_beside_compute_leave_only_the_first_to_wait_for():
    idle_s = {}
    for copy in Copy:
        loader = copying(0.5, 4, copy=copy)
        idle_s[copy] = run_loop(loader, [1.0] * 40, [1.0] * 40).idle_s(Cause.COPY)
    assert idle_s == {Copy.PAGEABLE: 20, Copy.PINNED: 20, Copy.OWN_STREAM: 0.5}


def test_a_pageable_copy_holds_the_loop_and_a_pinned_one_does_not():
    # Without workers the loop itself loads: it can begin while the device computes, but not while it must wait.
    times = {copy: copying(2.0, 0, copy=copy, reads_loss=False) for copy in Copy}
    steps = [steady_step_s(loader, 3.0, 4.0) for loader in times.values()]
    assert steps == [6, 6, 4]
    assert [steady_step_s(loader, 6.0, 4.0) for loader in times.values()] == [8, 6, 6]


@pytest.mark.parametrize("jitter, spread", [(Jitter.LOGNORMAL, 0.5), (Jitter.LOGNORMAL, 2.0), (Jitter.EXPONENTIAL, 1)])
def test_times_have_their_mean_and_their_spread(jitter, spread):
    times = draw_times(3.0, 40_000, jitter, float(spread), seed=1)
    mean = sum(times) / len(times)
    deviation = (sum((time - mean) ** 2 for time in times) / len(times)) ** 0.5
    assert mean == pytest.approx(3, rel=4 * spread / 200)  # four standard errors
    assert deviation / mean == pytest.approx(spread, rel=0.05 if spread < 2 else 0.2)
    assert times[:5] == draw_times(3.0, 5, jitter, float(spread), seed=1) != draw_times(3.0, 5, jitter, seed=2)


@settings(max_examples=25)
@given(step_s=TIMES, slow=st.floats(1.0, 20.0), workers=st.integers(1, 4))
def test_one_slow_load_needs_the_prefetch_of_the_formula(step_s, slow, workers):
    # Quick loads before it: the buffer is full when the slow one is ordered.
    slow_s = slow * step_s
    loads = [step_s / 1000] * 120 + [slow_s]
    found = smallest_prefetch(loads, step_s, workers, max_prefetch=32)
    assert found is not None and found * workers * step_s >= slow_s * (1 - 1e-6)
    assert (found - 1) * workers * step_s < slow_s * (1 + 1e-6)


def test_a_search_may_end_at_its_first_number_or_find_none():
    assert smallest_prefetch([1.0] * 9, 1.0, max_prefetch=1) == 1
    assert smallest_prefetch([1.0] * 9, 0.5, max_prefetch=1) is None


@given(loads=st.lists(TIMES, min_size=1, max_size=25), step_s=TIMES, workers=st.integers(1, 3), share=st.floats(0, 0.5))
def test_the_smallest_prefetch_is_enough_and_one_less_is_not(loads, step_s, workers, share):
    found = smallest_prefetch(loads, step_s, workers, share, max_prefetch=32)
    shares = [
        run_loop(Loader(workers, prefetch), loads, [step_s] * len(loads)).idle_share_from(0) for prefetch in (1, 32)
    ]
    if found is None:
        assert shares[1] > share
        return
    for prefetch, is_enough in ((found, True), (found - 1, False)):
        if prefetch:
            run = run_loop(Loader(workers, prefetch), loads, [step_s] * len(loads))
            assert (run.idle_share_from(0) <= share + 1e-9) is is_enough


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: run_loop(Loader(), [], []), "got 0 load times, 0 step times and 1 epochs"),
        (lambda: run_loop(Loader(), [1.0] * 3, [1.0] * 3, 2), "got 3 load times, 3 step times and 2 epochs"),
        (lambda: smallest_prefetch([1.0], 1.0, workers=0), "without a worker nothing is loaded ahead"),
        (lambda: run_loop(Loader(), [1.0], [1.0]).idle_share_from(1), "batch must be from 0 to 0: got 1"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
