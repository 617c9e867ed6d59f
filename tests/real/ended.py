"""Whether the processes of workers have ended."""

import os
import time
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if not Path("/proc/self/stat").exists():
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone since
        return False


def assert_all_end(pids: list[int], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, pids)), f"still running: {[pid for pid in pids if is_running(pid)]}"
