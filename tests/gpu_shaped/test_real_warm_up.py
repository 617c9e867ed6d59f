"""The warm-up of a worker: what it calls, shown on CPUs; and that NCCL's world is made with it."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

from lablib import launch
from lablib.real.gpu.warm_up import warm_up
from lablib.real.groups import Groups
from lablib.real.measurement.calls import NAMES

NEVER = {"monitored_barrier"}  # gloo's alone
THE_SAME_KERNEL = {"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all"}  # as the kinds for lists, or not


def program() -> None:
    warm_up(torch.device("cpu"))


@pytest.mark.parametrize(("backend", "ranks"), [("sim", 1), ("sim", 5), ("gloo", 3)])
def test_every_kind_of_collective_is_made_in_two_sizes_and_every_pair_of_ranks_has_met(backend, ranks):
    run = launch(program, ranks=ranks, backend=backend)
    transfers = [transfer for transfer in run.traffic.transfers if len(transfer.ranks) == ranks]
    sizes: dict[str, set[float]] = {}
    for transfer in transfers:
        sizes.setdefault(transfer.name, set()).add(transfer.tensor_bytes)
    wanted = set(NAMES.values()) - NEVER - THE_SAME_KERNEL - {"send", "recv"}
    assert wanted <= set(sizes), wanted - set(sizes)
    assert all(len(found) == 2 for name, found in sizes.items() if name not in ("barrier", "send"))
    met = Counter(transfer.ranks for transfer in run.traffic.transfers if transfer.name == "send")
    assert met == {(a, b): 1 for a in range(ranks) for b in range(ranks) if a != b}
    if backend == "sim":
        products = [span for span in run.timeline.select(0, "compute") if "mm" in span.name]
        assert {span.phase for span in products} >= {"forward", "backward"}


def test_the_world_of_nccl_is_warm_before_a_worker_is_ready(monkeypatch):
    made: list[str] = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: made.append(f"{more['device_id']}"))
    monkeypatch.setattr("lablib.real.groups.warm_up", lambda device: made.append(f"warm {device}"))

    class Meeting:
        next_generation = staticmethod(lambda: None)

    Groups("nccl", torch.device("cuda", 0), Meeting()).renew()  # pyright: ignore[reportArgumentType]
    assert made == ["cuda:0", "warm cuda:0"]
