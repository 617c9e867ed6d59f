"""Time limits of communication, never below the time limit of the launch.

torch gives every group a limit: 10 minutes with NCCL, 30 with gloo (torch/distributed/constants.py, torch 2.13). A rank
that waits longer in a collective fails; with NCCL a watchdog ends its process. But in a launch with a limit of an hour,
one rank may compute for twenty minutes while the others wait. The launch's own limit should come first, as its error
names the ranks that had not returned and the line of each.
"""

from datetime import timedelta

import torch.distributed as dist

from lablib.torch_compat import place, set_group_timeout

_LATER_S = 60.0  # after the launch's own limit
_ENDLESS = timedelta(days=365)
_BY_BACKEND = {"gloo": "gloo_timeout", "nccl": "nccl_timeout"}


class Timeouts:
    """The limits of this process's groups, with torch's own as the minimum."""

    def __init__(self, backend: str):
        self._name = _BY_BACKEND[backend]
        module, name = place(self._name)
        own = getattr(module, name)
        self._own = own if isinstance(own, timedelta) else timedelta(minutes=10)  # None in a torch without NCCL

    def allow(self, timeout_s: float | None) -> timedelta:
        """Let existing and new groups wait as long as a launch of `timeout_s` lasts (None: no limit).

        Returns the new limit of the default group, and of every group that is made without one.
        """
        longest_s = _ENDLESS.total_seconds()
        allowed_s = longest_s if timeout_s is None else min(timeout_s + _LATER_S, longest_s)
        limit = max(self._own, timedelta(seconds=allowed_s))
        setattr(*place(self._name), limit)
        if dist.is_initialized():
            set_group_timeout(limit)
        return limit
