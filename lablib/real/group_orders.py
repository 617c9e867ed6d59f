"""Compare the order of `new_group` calls over real ranks, before a group is made.

The first member writes its call into the store, under the name of the group. Later callers compare, members or not.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from lablib.process.group_calls import GroupCall
from lablib.real.frames import program_line
from lablib.torch_compat import current, place


def check_group_orders() -> None:
    """Check each later call of `new_group` in this process. Call it once."""
    name_of = current("process_group_name")

    def name(ranks: Sequence[int], use_hashed_name: bool) -> Any:
        name = name_of(ranks, use_hashed_name)
        if ranks and not use_hashed_name:
            _check(GroupCall(dist.get_rank(), tuple(ranks), program_line()), int(name))
        return name

    setattr(*place("process_group_name"), name)


def _check(call: GroupCall, number: int) -> None:
    store, key = current("default_store")(), f"lablib/new_group/{number}"
    if call.rank in call.members:
        text = store.compare_set(key, "", json.dumps([call.rank, call.members, call.line]))
    elif store.check([key]):
        text = store.get(key)
    else:
        return
    rank, members, line = json.loads(text)
    call.check(GroupCall(rank, tuple(members), line), number)
