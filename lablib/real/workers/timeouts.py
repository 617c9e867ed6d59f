"""How long a communication may wait for another rank: never less than the launch itself.

torch gives every group a limit: 10 minutes with NCCL, 30 with gloo (torch/distributed/constants.py, torch 2.13). A rank
that waits longer in a collective fails; with NCCL a watchdog ends its process. A program whose launch was given an hour
may well have a rank that computes for twenty minutes while the others wait. The launch has a limit of its own, which
names the ranks that had not returned and the line where each was, so that one should come first.
"""

from datetime import timedelta

import torch.distributed as dist

from lablib.torch_compat import place, set_group_timeout

_LATER_S = 60.0  # than the launch's own limit
_ENDLESS = timedelta(days=365)
_BY_BACKEND = {"gloo": "gloo_timeout", "nccl": "nccl_timeout"}


class Timeouts:
    """The limits of this process's groups, and torch's own, to begin from."""

    def __init__(self, backend: str):
        self._name = _BY_BACKEND[backend]
        module, name = place(self._name)
        own = getattr(module, name)
        self._own = own if isinstance(own, timedelta) else timedelta(minutes=10)  # None in a torch without NCCL

    def allow(self, timeout_s: float | None) -> timedelta:
        """Let groups wait as long as a launch of `timeout_s` lasts (None: without end), those to be made as well.

        Returns:
            The limit that the default group, and every group that is made without one, now has.
        """
        longest_s = _ENDLESS.total_seconds()
        allowed_s = longest_s if timeout_s is None else min(timeout_s + _LATER_S, longest_s)
        limit = max(self._own, timedelta(seconds=allowed_s))
        setattr(*place(self._name), limit)
        if dist.is_initialized():
            set_group_timeout(limit)
        return limit
