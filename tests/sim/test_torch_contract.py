# pyright: reportOptionalMemberAccess=false, reportPrivateImportUsage=false

"""What torch asks of a process group, read from the installed torch: a new version that asks for more fails here.

The Python side of `torch.distributed` calls methods on `group`; the C++ side (functional collectives, the DDP reducer)
calls the virtual methods of `c10d::ProcessGroup` that have a Python override. torch 2.13 renamed some of them
(`all_gather_single` for `_allgather_base`), so the simulator answers to both names.
"""

import inspect
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from lablib.sim.communication.process_group import SimProcessGroup
from lablib.sim.communication.store import SimStore
from lablib.sim.communication.work import SimWork

# Not collectives: torch keeps these itself, in the C++ part of every group.
_KEPT_BY_TORCH = {
    "_get_backend": "asked only of groups that torch made of backends",
    "_get_backend_name": "the same",
    "_get_sequence_number_for_group": "debugging of backends",
    "_has_hooks": "hooks of NCCL's watchdog; the base class has none",
    "_wait_for_pending_works": "hooks of NCCL's watchdog",
    "_register_backend": "called for groups that torch made of backends",
    "_set_default_backend": "the same",
    "_set_group_desc": "kept by the base class",
    "_set_group_name": "kept by the base class",
    "_set_sequence_number_for_group": "debugging of backends",
    "name": "of a backend",
    "perform_nocolor_split": "NCCL's communicator split",
    "eager_connect_single_device": "NCCL's communicators",
    "rank": "kept by the base class",
    "new_group": "a name of torch.distributed, not of a group",
    "merge_remote_group": "torchcomms",
    "split_group": "NCCL's communicator split",
    "get_group_store": "of a backend",
}

# Overrides that c10d's trampoline class offered in torch 2.11 and 2.12, and those of 2.13.
_TRAMPOLINES = {
    "2.11": ["_allgather_base", "_reduce_scatter_base", "allgather_into_tensor_coalesced", "alltoall_base"]
    + ["reduce_scatter_tensor_coalesced"],
    "2.13": ["all_gather_single", "reduce_scatter_single", "all_gather_single_coalesced", "all_to_all_single"]
    + ["reduce_scatter_single_coalesced"],
    "both": ["allgather", "allgather_coalesced", "allreduce", "allreduce_coalesced", "alltoall", "barrier", "broadcast"]
    + ["gather", "recv", "recv_anysource", "reduce", "reduce_scatter", "scatter", "send", "size", "getBackendName"],
}


def methods_called_on_groups() -> set[str]:
    """Every `m` in a call `group.m(...)` in torch/distributed/distributed_c10d.py."""
    source = inspect.getsource(c10d)
    return set(re.findall(r"\b(?:group|pg|default_pg|process_group|split_pg)\.(\w+)\(", source))


def defined_by(cls: type, base: type) -> set[str]:
    """Attributes that `cls` has of its own, above `base`."""
    return {name for kind in cls.__mro__[: cls.__mro__.index(base)] for name in vars(kind)}


def test_the_source_of_torch_still_calls_groups_in_the_way_this_test_reads():
    assert {"allreduce", "broadcast", "send", "recv", "barrier"} <= methods_called_on_groups()


def test_every_method_that_torch_calls_on_a_group_is_answered():
    answered = defined_by(SimProcessGroup, dist.ProcessGroup)
    missing = methods_called_on_groups() - answered - _KEPT_BY_TORCH.keys()
    assert not missing, f"torch {torch.__version__} calls what the simulator does not answer: {sorted(missing)}"


@pytest.mark.parametrize("version", _TRAMPOLINES)
def test_the_names_of_every_supported_version_are_answered(version: str):
    answered = defined_by(SimProcessGroup, dist.ProcessGroup)
    assert set(_TRAMPOLINES[version]) <= answered


def test_collectives_of_the_base_class_are_not_left_to_it():
    """A collective that only the base class has would look for a backend, find none, and raise a text about C++."""
    collective = re.compile("gather|reduce|broadcast|scatter|alltoall|all_to_all|send|recv|barrier")
    offered = {name for name in dir(dist.ProcessGroup) if collective.search(name) and not name.startswith("__")}
    options = {name for name in offered if name.endswith("Options")}
    missing = offered - options - defined_by(SimProcessGroup, dist.ProcessGroup)
    assert not missing, sorted(missing)


def test_every_public_method_of_work_is_answered():
    """`boxed` and `unbox` move handles between Python and C++; `get_future_result` tells how NCCL's watchdog ended."""
    kept = {"boxed", "unbox", "get_future_result"}
    offered = {name for name in dir(dist.Work) if not name.startswith("_") or name == "_source_rank"}
    assert offered - kept - defined_by(SimWork, dist.Work) == set()


def test_every_public_method_of_the_store_is_answered_or_is_not_needed():
    """`queue_*`, `list_keys`, `barrier` and `clone` serve torchrun's rendezvous; `timeout` is the base class's."""
    kept = {"timeout", "clone", "barrier", "list_keys", "queue_len", "queue_pop", "queue_push"}
    offered = {name for name in dir(dist.Store) if not name.startswith("_")}
    assert offered - kept - defined_by(SimStore, dist.Store) == set()


def test_the_private_places_that_the_simulator_borrows_still_exist():
    functions = {"_get_default_group", "_rank_not_in_group", "_warn_not_in_group", "monitored_barrier"}
    for name in {"_world", "_World"} | functions:
        assert hasattr(c10d, name), name
    properties = {"pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag", "group_count"}
    assert properties <= set(dir(c10d._World))
    assert hasattr(dist.Backend, "_plugins") and hasattr(dist.Backend, "_BackendPlugin")
    assert hasattr(torch._C, "_DisableTorchDispatch") and hasattr(torch._C, "_current_graph_task_id")


def test_every_dictionary_of_torchs_world_is_a_ranks_own():
    """A property of _World that reads a module global and is not overridden would be shared by all ranks."""
    from lablib.process.settings.torch_modules import World

    shared = [
        name
        for name, member in vars(c10d._World).items()
        if isinstance(member, property)
        and member.fget is not None
        and any(n.startswith("_") and n in vars(c10d) for n in member.fget.__code__.co_names)
        and name not in vars(World)
    ]
    read_only = {"pg_config_info"}  # computed from the others
    assert set(shared) - read_only == set()
