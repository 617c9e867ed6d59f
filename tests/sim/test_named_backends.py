# pyright: reportPrivateImportUsage=false
"""Groups of other backends by name, worlds made again, and stores of the program's own: as on real processes."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import DeadlockError, RankError, launch

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(30)]

_backends = st.sampled_from(["gloo", "nccl", "sim", "cpu:gloo,cuda:nccl", None])


def summed() -> float:
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    return x.item()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), _backends), min_size=1, max_size=4), st.integers(1, 3))
def test_whatever_backend_a_program_names_the_simulator_answers_under_that_name(made, ranks):
    def program() -> list[tuple[str, float, Any]]:
        found = []
        for is_world, backend in made:
            if is_world:
                dist.destroy_process_group()
                dist.init_process_group(backend)
                group = dist.group.WORLD
            else:
                group = dist.new_group(backend=backend)
            assert isinstance(group, dist.ProcessGroup)
            x, said = torch.tensor([dist.get_rank() + 1.0]), [None] * dist.get_world_size()
            dist.all_reduce(x, group=group)
            dist.all_gather_object(said, dist.get_rank(), group=group)
            found.append((dist.get_backend(group), x.item(), said))
        return found

    default = "sim"
    expected = []
    for is_world, backend in made:
        default = (backend or "undefined") if is_world else default
        name = default if is_world or backend is None else backend
        expected.append((name, ranks * (ranks + 1) / 2, list(range(ranks))))
    assert launch(program, ranks=ranks, timeout_s=20).values == [expected] * ranks


def test_a_backend_that_nobody_knows_is_torchs_to_refuse():
    with pytest.raises(RankError, match="carrier_pigeon"):
        launch(lambda: dist.new_group(backend="carrier_pigeon"), ranks=2, timeout_s=20)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def meet_in_stores(folder: str, port: int) -> list[Any]:
    """Every way to a store of one's own; and a world that meets in one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    server = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0, timeout=timedelta(seconds=20))
    file = dist.FileStore(os.path.join(folder, "store"), ranks)
    part = dist.PrefixStore("part", server)
    found: list[Any] = [isinstance(server, dist.TCPStore), server.host, server.port]
    for number, store in enumerate((server, file, part)):
        store.set(f"{number} of {rank}", f"{rank}")
        store.wait([f"{number} of {other}" for other in range(ranks)])
        found += [store.get(f"{number} of {other}") for other in range(ranks)]
    server.add("sum", rank + 1)
    dist.barrier()
    found.append(server.add("sum", 0))
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("world", server), rank=rank, world_size=ranks)
    found.append(summed())
    dist.barrier()  # the server goes with rank 0
    return found


def test_stores_that_a_program_makes_hold_what_they_hold_on_gloo(tmp_path: Path, free_port: int):
    folders = [tmp_path / name for name in ("sim", "gloo")]
    for folder in folders:
        folder.mkdir()
    runs = [
        launch(meet_in_stores, str(folder), free_port, ranks=2, backend=folder.name, timeout_s=25).values
        for folder in folders
    ]
    assert runs[0] == runs[1] and runs[0][0][-2:] == [3, 3.0]
    assert not list(folders[0].iterdir())  # the simulator's are in memory


def test_two_stores_of_one_program_have_keys_of_their_own():
    def program() -> list[bytes]:
        stores = [dist.TCPStore("localhost", port, is_master=True) for port in (1, 2)]
        for number, store in enumerate(stores):
            store.set("key", str(number))
        return [store.get("key") for store in stores]

    assert launch(program, ranks=1, timeout_s=20).values == [[b"0", b"1"]]


def test_a_key_that_nobody_sets_is_a_deadlock_at_once():
    with pytest.raises(DeadlockError, match="waits in the store for the key 'never'"):
        launch(lambda: dist.TCPStore("localhost", 1, 2, is_master=dist.get_rank() == 0).get("never"), ranks=2)


def test_outside_of_ranks_they_are_torchs_own(tmp_path: Path):
    before = dist.TCPStore, dist.FileStore
    launch(lambda: None, ranks=1)
    assert (dist.TCPStore, dist.FileStore) == before
