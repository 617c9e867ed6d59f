# pyright: reportPrivateImportUsage=false
"""Nobody in: a launch opens nothing to other machines; another user of this one cannot enter, and is not believed."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import IO

import pytest
import torch
import torch.distributed as dist

from lablib.errors import LaunchError, LaunchTimeoutError
from lablib.real import run_real
from lablib.real.workers.peers import Connection, check_callers, strangers
from lablib.real.workers.pickling import unpack
from lablib.real.workers.pool import Pool
from lablib.real.workers.private import PrivateFolder, is_own_user
from lablib.real.workers.shipping import ship

NOBODY = 65534
BE_NOBODY = (
    "import encodings.idna, os, pathlib, socket, sys, time; os.setgroups([]); "  # an import needs the right to read
)
BE_NOBODY += f"os.setgid({NOBODY}); os.setuid({NOBODY}); "
linux_only = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of connections")
root_only = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can start a process of another user"
)


def listening_addresses(pids: list[int]) -> list[tuple[str, int]]:
    """Where these processes listen on TCP: address as the kernel writes it, and port. Read without lablib."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(descriptor))
            except OSError:  # closed meanwhile
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                address, port = words[1].split(":")
                found.append((address, int(port, 16)))
    return found


def assert_private(addresses: set[tuple[str, int]]) -> None:
    """All on loopback, and none a store that answers who asks."""
    beyond = {address for address in addresses if address[0] not in ("0100007F", "0" * 24 + "01000000")}
    assert not beyond, f"beyond loopback: {beyond}"
    answered: list[int] = []

    def ask(port: int) -> None:
        with contextlib.suppress(RuntimeError):
            dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=0.3)).num_keys()
            answered.append(port)

    for _, port in addresses:  # what is no store may keep the caller waiting until it closes
        asking = threading.Thread(target=ask, args=(port,), daemon=True)
        asking.start()
        asking.join(0.5)
    assert not answered


def own_addresses_while_running():
    dist.new_group([0, 1])
    dist.barrier()
    return os.getpid(), listening_addresses([os.getpid(), os.getppid()])


@linux_only
def test_nothing_of_a_running_or_a_warm_pool_listens_beyond_loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # as people set it for runs on several machines
    already = set(listening_addresses([os.getpid()]))
    pool = Pool("gloo", [{}, {}])
    try:
        reports = pool.launch(ship(own_addresses_while_running, (), {}, False), 60.0)
        pids, during = zip(*(unpack(report.value) for report in reports), strict=True)
        assert_private({address for found in during for address in found} - already)
        warm = set(listening_addresses([os.getpid(), *pids])) - already
        print(f"{len(warm)} ports of a warm pool: {sorted(warm)}")
        assert_private(warm)
    finally:
        pool.end()
    assert set(listening_addresses([os.getpid()])) <= already


def test_a_program_may_make_its_world_again_and_a_store_at_the_master_port():
    def program():
        rank, total = dist.get_rank(), []
        for _ in range(2):
            dist.destroy_process_group()
            dist.init_process_group("gloo")
            x = torch.full((2,), rank + 1.0)
            dist.all_reduce(x)
            total.append(x[0].item())
        master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*master, 2, is_master=rank == 0, timeout=timedelta(seconds=30))
        store.set(f"rank {rank}", str(rank))
        mesh = dist.init_device_mesh("cpu", (2,))
        said = store.get("rank 0"), store.get("rank 1")
        dist.barrier()  # the store goes with rank 0
        return total, said, mesh.get_local_rank()

    for _ in range(2):  # in a warm worker as in a new one
        assert run_real(program, ranks=2, backend="gloo").values == [([3.0, 3.0], (b"0", b"1"), r) for r in (0, 1)]


def line(local: str, remote: str, state: str, uid: int) -> Connection:
    return Connection(local, remote, state, uid, "7")


def test_who_called_is_known_by_the_callers_own_end():
    me = os.geteuid()
    here, there = "0100007F:1000", "0100007F:2000"
    accepted = line(here, there, "01", me)
    assert strangers([line(here, "00000000:0000", "0A", me)], {here}) == []
    assert strangers([accepted, line(there, here, "01", me)], {here}) == []
    assert strangers([accepted, line(there, here, "01", 0)], {here}) == []
    assert "4242" in strangers([accepted, line(there, here, "01", 4242)], {here})[0]
    assert "gone" in strangers([accepted, line(there, here, "05", 0)], {here})[0]
    assert "gone" in strangers([accepted], {here})[0]
    assert strangers([accepted], {there}) == []


@linux_only
def test_a_caller_of_the_same_user_is_let_in():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            check_callers({f"0100007F:{port:04X}"})


@linux_only
@root_only
@pytest.mark.parametrize("leaves", [False, True])
def test_a_caller_of_another_user_is_not(leaves):
    code = "s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.send(b'x' * 99);"
    code += "" if leaves else "print(flush=True); sys.stdin.read()"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", BE_NOBODY + code, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as stranger:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            with pytest.raises(
                PermissionError, match="must come from a process of the same user .* another user of this"
            ):
                check_callers({f"0100007F:{port:04X}"})
            stranger.communicate(b"")


STRANGER = """
held = []
for port in sys.stdin:
    try:
        held.append(socket.create_connection(("127.0.0.1", int(port))))
        held[-1].send(bytes(8))
    except OSError:  # nobody listens there any more
        pass
"""


@linux_only
@root_only
def test_a_launch_that_another_user_has_called_ends_and_says_so():
    def program():
        while True:
            dist.new_group([0, 1])

    pids, over = run_real(os.getpid, ranks=2, backend="gloo").values, threading.Event()

    def lead(stranger: IO[str]) -> None:
        """Tell the stranger where these ranks listen, and no other process: tests beside this one launch, too."""
        known = set()
        while not over.is_set():
            try:
                new = set(listening_addresses(pids)) - known
            except FileNotFoundError:  # the ranks have been ended
                return
            known |= new
            for address in new:
                print(address[1], file=stranger, flush=True)

    command = [sys.executable, "-c", BE_NOBODY + STRANGER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as stranger:
        leading = threading.Thread(target=lead, args=(stranger.stdin,))
        leading.start()
        try:
            with pytest.raises(LaunchError, match=f"user id {NOBODY}.*another user of this machine has interfered"):
                run_real(program, ranks=2, backend="gloo", timeout_s=30)
        finally:
            over.set()
            leading.join()
            stranger.kill()
    assert run_real(int, ranks=2, backend="gloo").values == [0, 0]


@linux_only
@root_only
def test_a_launch_that_ends_for_its_time_says_whether_another_user_had_called(tmp_path):
    """As where he kept a group from being made. Here the program itself listens: who waits for what is the same."""

    def program():
        with socket.create_server(("127.0.0.1", 0)) as server:
            if dist.get_rank() == 1:
                (tmp_path / "new").write_text(str(server.getsockname()[1]))
                (tmp_path / "new").rename(tmp_path / "port")
            time.sleep(60)

    def call() -> None:
        while not (tmp_path / "port").exists():
            time.sleep(0.01)
        print((tmp_path / "port").read_text(), file=stranger.stdin, flush=True)

    command = [sys.executable, "-c", BE_NOBODY + STRANGER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as stranger:
        threading.Thread(target=call).start()
        try:
            with pytest.raises(LaunchTimeoutError, match=f"user id {NOBODY}: another user of this machine has interf"):
                run_real(program, ranks=2, backend="gloo", timeout_s=4)
        finally:
            stranger.kill()
    assert "interfered" not in str(
        pytest.raises(LaunchTimeoutError, run_real, program, ranks=2, backend="gloo", timeout_s=1).value
    )


@root_only
def test_another_user_cannot_reach_the_socket_of_the_workers_and_is_known_where_he_can(tmp_path):
    knock = "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()"

    def knocking(path: str) -> subprocess.Popen:
        command = [sys.executable, "-c", BE_NOBODY + knock, path]
        return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    folder = PrivateFolder()
    try:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        with folder.listen(1), knocking(folder.address) as stranger:
            assert "PermissionError" in stranger.communicate("")[1]
        folder.address = f"/tmp/lablib-open-{os.getpid()}"
        with folder.listen(1) as listener:
            os.chmod(folder.address, 0o777)
            with knocking(folder.address) as stranger:
                connection, _ = listener.accept()
                assert not is_own_user(connection)
                connection.close()
                stranger.communicate("")
    finally:
        Path(f"/tmp/lablib-open-{os.getpid()}").unlink(missing_ok=True)
        folder.remove()
    assert not folder.path.exists()


def test_both_ends_of_a_socket_of_one_user_know_each_other():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert is_own_user(ours) and is_own_user(theirs)
