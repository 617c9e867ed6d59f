"""Reject connections of other users of this machine to the ranks of a launch.

gloo's ranks connect over loopback, where every user of the machine may connect too. The listening rank requires only a
small number from a caller, and received data may be unpickled (`all_gather_object`). So after a group has been made,
and before any message in it, each rank looks up the owner of the other end in the kernel's table of connections; a
group with another user's connection is not used. Such a user can end a launch in this way, and no more.

    sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt   uid  timeout inode     /proc/net/tcp
     0: 0100007F:9281 00000000:0000 0A ...                                     1000 ...     31245

Root is trusted, as everywhere. Linux only: other systems have no such table (see docs/security.md).
"""

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lablib.torch_compat import current, place

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_OPEN_FILES = "/proc/{}/fd"
_ESTABLISHED, _LISTEN = "01", "0A"
_IPV4_IN_IPV6 = "0000000000000000FFFF0000"
_LOOKS, _BETWEEN_S = 5, 0.05  # the table is not atomic: the other end of a new connection can be missing


@dataclass(frozen=True, slots=True)
class Connection:
    """A line of the table. Addresses are in the kernel's form, "0100007F:9281"."""

    local: str
    remote: str
    state: str
    uid: int
    inode: str


def check_new_groups() -> None:
    """Check every process group that this process makes from now on. Call it once."""
    make = current("new_process_group")

    def make_and_check(group_size: int, *args: Any, **kwargs: Any) -> Any:
        before = sockets()
        group, store = made = make(group_size, *args, **kwargs)
        if new := sockets() - before:  # a new socket has a new inode number
            lines = connection_lines()
            if addresses := _listening(lines, new):
                assert group is not None
                check_callers(addresses, lines)
                # Wait until all members of a group have called this: none sends or leaves before.
                meeting, place = divmod(store.add("lablib/checked", 1) - 1, group_size)
                if place == group_size - 1:
                    store.set(f"lablib/all checked/{meeting}", "")
                else:
                    store.wait([f"lablib/all checked/{meeting}"])
        return made

    setattr(*place("new_process_group"), make_and_check)


def check_callers(addresses: set[str], lines: Sequence[str] = ()) -> None:
    """Check the callers that have connected to these addresses, at which this process listens.

    `lines`: of the table, read since the group was made (that takes milliseconds); none: read now.
    """
    for _ in range(_LOOKS):
        strange = strangers(connections(lines or connection_lines(), addresses), addresses)
        if not strange:
            return
        lines = ()
        time.sleep(_BETWEEN_S)
    raise PermissionError(
        f"a connection to this rank must come from a process of the same user (id {os.geteuid()}): {strange[0]}; "
        "another user of this machine has interfered, so the launch ends; ask who that is, then launch again"
    )


def interference(pids: Iterable[int]) -> str:
    """A sentence on other users' connections to these processes, to explain a hang.

    A stranger in the place of a rank may keep a group from ever being made, and so from being checked. Empty if there
    is none, or if the kernel reports nothing about a process.
    """
    lines = connection_lines()
    addresses = _listening(lines, set().union(*(sockets(pid) for pid in pids)))
    found = strangers(connections(lines, addresses), addresses)
    if not (known := sorted({words for words in found if "user id" in words})):
        return ""
    return (
        f"of the connections to these ranks {', '.join(known)}: another user of this machine has interfered "
        "(or calls a service of the program); find out who that is, then launch again"
    )


def _listening(lines: Sequence[str], inodes: Collection[str]) -> set[str]:
    """The addresses at which sockets with these inodes listen."""
    return {c.local for c in connections(lines, [f" {_LISTEN} "]) if c.inode in inodes}


def strangers(table: Sequence[Connection], addresses: set[str]) -> list[str]:
    """Descriptions of callers of these addresses that are neither this user nor root."""
    callers = {(c.local, c.remote): c for c in table}
    found = []
    for mine in table:
        if mine.local in addresses and mine.state != _LISTEN:
            caller = callers.get((mine.remote, mine.local))
            if caller is None or caller.state != _ESTABLISHED:
                found.append("one came from a process that has gone")
            elif caller.uid not in (os.geteuid(), 0):
                found.append(f"one came from user id {caller.uid}")
    return found


def sockets(pid: int | str = "self") -> set[str]:
    """The inodes of a process's sockets. Empty if the kernel does not report them."""
    found, folder = set[str](), _OPEN_FILES.format(pid)
    with suppress(OSError):  # no such process or system
        for entry in os.listdir(folder):
            with suppress(OSError):  # the listing's own descriptor, or a closed one
                if (link := os.readlink(f"{folder}/{entry}")).startswith("socket:["):
                    found.add(link[8:-1])
    return found


def connection_lines() -> list[str]:
    """The TCP sockets of this machine, one line each."""
    return [line for table in _TABLES if table.exists() for line in table.read_text().splitlines()[1:]]


def connections(lines: Sequence[str], having: Collection[str]) -> list[Connection]:
    """Parse the lines that contain one of these texts, such as an address. A table has hundreds, and few matter."""
    found = []
    for line in lines:
        if any(text in line for text in having):
            _, local, remote, state, _, _, _, uid, _, inode, *_ = line.split()
            # An IPv4 address of an IPv6 socket has the form of an IPv4 socket.
            local, remote = (address.removeprefix(_IPV4_IN_IPV6) for address in (local, remote))
            found.append(Connection(local, remote, state, int(uid), inode))
    return found
