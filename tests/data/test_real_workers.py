"""torch's own workers: measured beside the prediction, and one that dies is named and replaced."""

import os
import signal
import time
from multiprocessing import resource_sharer
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lablib.data.loading.dead_worker import WorkerDiedError, named_workers
from lablib.data.loading.loaded_run import Cause
from lablib.data.loading.loader import Loader
from lablib.data.loading.measured_loop import measure_loop
from lablib.data.resumable_sampler import ResumableSampler
from lablib.data.sharding import count_seen


@pytest.mark.parametrize(
    "loader", [Loader(0), Loader(1, 1), Loader(2, 2, persistent=True), Loader(2, keeps_order=False)]
)
def test_a_measured_loop_is_the_record_of_a_simulated_one(loader):
    loads, steps = [0.004] * 6, [0.002] * 12
    run = measure_loop(loader, loads * 2, steps, epochs=2)
    assert len(run.batches) == 12
    assert {batch.worker for batch in run.batches} == (set(range(loader.workers)) or {-1})
    for batch in run.batches:  # sleeps last at least what was asked: no bound from above, as this machine is shared
        assert batch.load_end_s - batch.load_start_s >= 0.004 and batch.step_end_s - batch.step_start_s >= 0.002
        assert batch.load_end_s <= batch.step_start_s
    assert len(run.starts) == (0 if not loader.workers else 1 if loader.persistent else 2)
    idle_s = sum(run.idle_s(cause) for cause in Cause)
    assert idle_s == pytest.approx(run.idle_share * run.makespan_s, abs=1e-9)
    assert run.timeline.makespan_s == run.makespan_s


class Deadly(Dataset):
    """Worker 1 dies once, when it loads a certain sample."""

    def __init__(self, num, deadly, marker):
        self.num, self.deadly, self.marker = num, deadly, marker

    def __len__(self):
        return self.num

    def __getitem__(self, number):
        info = get_worker_info()
        if number == self.deadly and info is not None and not self.marker.exists():
            self.marker.touch()
            self.die()
        time.sleep(0.001)
        return number

    def die(self):
        os._exit(7)


def test_a_worker_that_dies_is_named_and_the_epoch_goes_on(tmp_path):
    num, used, errors = 40, [], []
    sampler = ResumableSampler(num, 2)
    deadly = list(sampler)[9][1]  # of the tenth batch: worker 1's fifth
    data = Deadly(num, deadly, tmp_path / "died")
    while sampler.epoch == 0:
        try:
            with named_workers(DataLoader(data, batch_sampler=sampler, num_workers=2)) as loader:
                for batch in sampler.used(loader):
                    used.append(batch.tolist())
        except WorkerDiedError as error:
            errors.append(error)
    assert [(error.workers, error.exit_codes) for error in errors] == [([1], [7])]
    assert "worker 1 (exit code 7) of 2 died while loading" in str(errors[0])
    assert count_seen(used, num).is_exact


class Killed(Deadly):
    """Ended from outside, as by a machine that is out of memory: no code of the worker runs any more."""

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@settings(max_examples=8, deadline=None)
@given(
    num=st.integers(1, 30),
    batch_size=st.integers(1, 4),
    workers=st.integers(1, 3),
    place=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from([Deadly, Killed]),
    prefetch=st.integers(1, 4),
)
def test_any_worker_may_die_at_any_sample(num, batch_size, workers, place, kind, prefetch):
    used, errors = [], []
    sampler = ResumableSampler(num, batch_size)
    batches = list(sampler)
    deadly = sum(batches, [])[int(place * num)]
    worker = next(number for number, batch in enumerate(batches) if deadly in batch) % workers
    with TemporaryDirectory() as folder:
        data = kind(num, deadly, Path(folder) / "died")
        options: dict = {"batch_sampler": sampler, "num_workers": workers, "prefetch_factor": prefetch}
        while sampler.epoch == 0:
            try:
                with named_workers(DataLoader(data, **options)) as loader:
                    for batch in sampler.used(loader):
                        used.append(batch.tolist())
            except WorkerDiedError as error:
                errors.append(error)
    assert [(error.workers, error.exit_codes) for error in errors] == [([worker], [7 if kind is Deadly else -9])]
    assert count_seen(used, num).is_exact


class SlowlyDeadly(Deadly):
    """A process that ends closes its sockets first: what it had sent can no longer be fetched, and it still runs."""

    def die(self):
        resource_sharer._resource_sharer._listener.close()  # pyright: ignore[reportAttributeAccessIssue]
        time.sleep(0.5)
        super().die()


@pytest.mark.parametrize("loss", [5, 9, 13])
def test_a_batch_that_the_dead_worker_had_sent_is_loaded_again(loss, tmp_path):
    num, used, errors = 40, [], []
    sampler = ResumableSampler(num, 2)
    data = SlowlyDeadly(num, list(sampler)[loss][1], tmp_path / "died")
    while sampler.epoch == 0:
        try:
            with named_workers(DataLoader(data, batch_sampler=sampler, num_workers=2)) as loader:
                for batch in sampler.used(loader):
                    used.append(batch.tolist())
                    time.sleep(0.02)  # so that loaded batches wait
        except WorkerDiedError as error:
            errors.append(error)
    assert [(error.workers, error.exit_codes) for error in errors] == [([1], [7])]
    # By the batch that cannot be had any more; or, on a busy machine, first by torch's own look at its workers.
    assert isinstance(errors[0].__cause__, OSError | EOFError | RuntimeError)
    assert count_seen(used, num).is_exact


def test_other_errors_of_a_loop_stay_what_they_are():
    with pytest.raises(OSError, match="disk full"), named_workers(DataLoader(torch.arange(3), num_workers=1)) as loader:  # type: ignore[arg-type]
        for _ in loader:
            raise OSError("disk full")
    with pytest.raises(RuntimeError, match="my own"), named_workers(DataLoader(torch.arange(3))) as loader:  # type: ignore[arg-type]
        for _ in loader:
            raise RuntimeError("my own")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: measure_loop(Loader(0, batch_bytes=1.0), [0.0], [0.0]), "no copy to a device is measured: got"),
        (lambda: measure_loop(Loader(0), [0.0] * 3, [0.0] * 3, epochs=2), "got 3 load times, 3 step times and 2"),
        (lambda: measure_loop(Loader(0), [0.0, 0.1], [0.0] * 2, epochs=2), "must have the load times of the first"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
