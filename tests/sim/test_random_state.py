"""Each rank draws the numbers that it would draw in a process of its own, however turns fall."""

import random

import numpy
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.process.settings import random_states
from lablib.process.settings.random_states import RandomStates

DRAWS = {
    "normal": lambda: float(numpy.random.randn()),  # drawn in pairs: the second one waits
    "uniform": lambda: float(numpy.random.rand()),
    "python": lambda: random.random(),  # not the bound method: shipped to a process, it takes its generator along
    "gauss": lambda: random.gauss(0, 1),  # in pairs, too
    "torch": lambda: float(torch.rand(())),
    "torch normal": lambda: float(torch.randn(())),
}


def _seed(seed: int) -> None:
    numpy.random.seed(seed)
    random.seed(seed)
    torch.manual_seed(seed)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted(DRAWS))), max_size=40))
def test_interleaved_streams_draw_what_each_draws_alone(turns):
    host = RandomStates()
    try:
        expected = []
        for stream in range(3):
            _seed(stream)
            expected.append([DRAWS[name]() for who, name in turns if who == stream])
        states = []
        for stream in range(3):
            _seed(stream)
            states.append(RandomStates())
        drawn: list[list[float]] = [[], [], []]
        for stream, name in turns:
            states[stream].put()
            drawn[stream].append(DRAWS[name]())
            states[stream] = states[stream].taken_again()
        assert drawn == expected
    finally:
        host.give_back()


def test_so_it_is_where_python_keeps_its_state_elsewhere(monkeypatch):
    assert random_states._PYTHONS_TWISTER is not None  # CPython's is found
    monkeypatch.setattr(random_states, "_PYTHONS_TWISTER", None)
    test_interleaved_streams_draw_what_each_draws_alone()


def test_ranks_draw_the_same_on_the_simulator_and_in_processes():
    def program():
        drawn = []
        for name in sorted(DRAWS) * 3:
            drawn.append(DRAWS[name]())
            dist.barrier()
        return drawn

    simulated = launch(program, ranks=3).values
    assert simulated[0] != simulated[1]
    assert simulated == launch(program, ranks=3, backend="gloo").values


def test_a_rank_seeds_no_device_of_the_notebooks_process(monkeypatch):
    """torch keeps the seed until there is a device: it would be the notebook's then."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)

    def program() -> float:
        torch.manual_seed(7)
        return float(torch.rand(()))

    drawn = launch(program, ranks=2).values
    assert seeded == []
    assert drawn == [program()] * 2 and seeded == [7]
