"""Which warm workers a launch gets: fit for its GPUs and for what their libraries have read, and alone on the GPUs."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.real.workers import pools as pools_module
from lablib.real.workers.pools import Pools
from lablib.real.workers.processes import fixed_environment


class FakePool:
    """A pool without processes, that knows under which variables it was started."""

    def __init__(self, backend: str, ranks: int):
        self.backend, self.ranks, self.is_alive, self.started_under = backend, ranks, True, fixed_environment()

    def end(self) -> None:
        self.is_alive = False


LAUNCHES = st.tuples(
    st.sampled_from(["gloo", "nccl"]),
    st.integers(1, 3),
    st.sampled_from([("CUDA_VISIBLE_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "1"), ("NCCL_DEBUG", "INFO")]),
)


@given(st.lists(LAUNCHES, max_size=8))
def test_workers_fit_the_launch_and_no_other_pool_holds_memory_of_its_gpus(launches):
    with pytest.MonkeyPatch.context() as patch:
        started = []

        def start(backend: str, ranks: int) -> FakePool:
            started.append(FakePool(backend, ranks))
            others = [pool for pool in started[:-1] if pool.is_alive and pool.backend == backend == "nccl"]
            assert not others, "ended before the new one is started, or there would be no memory for it"
            return started[-1]

        patch.setattr(pools_module, "_start", start)
        pools = Pools()
        for backend, ranks, (name, value) in launches:
            for variable in ("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"):
                patch.delenv(variable, raising=False)
            patch.setenv(name, value)
            with pools.borrow(backend, ranks) as pool:
                assert pool.is_alive and (pool.backend, pool.ranks) == (backend, ranks)  # pyright: ignore
                assert pool.started_under == fixed_environment()  # pyright: ignore[reportAttributeAccessIssue]
                alive = [one for one in started if one.is_alive and one is not pool]
                assert not [one for one in alive if one.backend == backend and backend == "nccl"]
                assert not [one for one in alive if (one.backend, one.ranks) == (backend, ranks)], "of other variables"


def test_the_same_launch_again_has_the_same_workers(monkeypatch):
    monkeypatch.setattr(pools_module, "_start", FakePool)
    pools = Pools()
    for backend in ("gloo", "nccl"):
        with pools.borrow(backend, 2) as first:
            pass
        monkeypatch.setenv("A_VARIABLE_OF_THE_PROGRAM", "1")
        with pools.borrow(backend, 2) as again:
            assert again is first


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,12}", fullmatch=True), st.text(max_size=3), max_size=6))
def test_only_variables_that_libraries_read_once_count(variables):
    fixed = fixed_environment(variables)
    assert dict(fixed).items() <= variables.items() and list(fixed) == sorted(fixed)
    assert fixed_environment(variables | {"NCCL_ALGO": "Ring", "HOME": "x"}) == tuple(
        sorted({**dict(fixed), "NCCL_ALGO": "Ring"}.items())
    )
    assert "PATH" in os.environ and "PATH" not in dict(fixed_environment())
