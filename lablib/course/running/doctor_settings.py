"""Checks of `lab doctor` on environment variables: NCCL, gloo, torch.distributed, the allocator.

    ok       NCCL_DEBUG            INFO: messages of NCCL at this level
    warning  NCCL_SOCKET_IFNAME    must name an interface of this machine: got eno1; here are eth0, lo
    warning  NCCL_SOKET_IFNAME     must be a known variable: got NCCL_SOKET_IFNAME; did you mean NCCL_SOCKET_IFNAME?

Each library ignores a variable that it does not have, and most ignore a value that they cannot read. So a misspelled
setting has no effect and no message. Values that depend on the machine are compared with /sys.

Sources: NVIDIA, "Environment Variables" (NCCL 2.28 user guide); torch 2.13, ProcessGroupNCCL.hpp, "ProcessGroupNCCL
Environment Variables", "Distributed communication package" and "CUDA semantics"; gloo: GlooDeviceFactory.cpp.
Simplified: variables for NCCL's developers and for plug-ins are not in the table, and are reported as unknown.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lablib.course.running.doctor import Doubtful, Probe
from lablib.record.allocator_settings import AllocatorSettings
from lablib.signature import OneOf, Range

PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_GLOO_", "TORCH_DISTRIBUTED_", "PYTORCH_")
_SYSTEM = Path("/sys")
_NETWORK, _INFINIBAND = "class/net", "class/infiniband"
Check = Callable[[str, Path], None]  # value, root of /sys; raises Doubtful with rule, value and remedy


class Setting(NamedTuple):
    """A variable: its effect, the check of its value, and the name that replaces it if it is deprecated."""

    effect: str
    check: Check
    replaced_by: str = ""


def settings_probes(variables: Mapping[str, str] | None = None, system: Path = _SYSTEM) -> list[Probe]:
    """One probe per variable that is set and belongs to these libraries."""
    variables = os.environ if variables is None else variables
    names = sorted(name for name in variables if name in SETTINGS or name.startswith(PREFIXES))
    if not names:
        return [
            Probe("settings", lambda: "no variable of NCCL, gloo or torch's allocator is set: defaults", "none needed")
        ]
    looks = {name: partial(check_setting, name, variables, system) for name in names}
    return [Probe(name, look, f"unset {name}", required=False) for name, look in looks.items()]


def check_setting(name: str, variables: Mapping[str, str], system: Path = _SYSTEM) -> str:
    """The value and its effect. Raises Doubtful: it has no effect, or not the intended one."""
    setting, value = SETTINGS.get(name), variables[name].strip()
    if setting is None:
        near = get_close_matches(name, SETTINGS, n=1, cutoff=0.8)
        remedy = f"did you mean {near[0]}?" if near else "see the library's documentation; it is not in lablib's table"
        raise Doubtful(f"must be a known variable: got {name}; {remedy}")
    if setting.replaced_by:
        raise Doubtful(f"must have its present name: got {name}; {setting.replaced_by}")
    setting.check(value, system)
    numbers = [variables.get(each, "1") for each in _SOCKETS]
    are_numbers = name in _SOCKETS and all(number.isdecimal() for number in numbers)
    if are_numbers and int(numbers[0]) * int(numbers[1]) > 64:
        raise Doubtful(f"must give {' times '.join(_SOCKETS)} of 64 or less: got {' times '.join(numbers)}; lower one")
    return f"{value or '(empty)'}: {setting.effect}"


# ---- checks of values ----


def _any(value: str, system: Path) -> None:
    pass


def _whole(low: int, high: float = float("inf"), example: int | None = None) -> Check:
    bound = Range(ge=low, le=high, example=example)

    def check(value: str, system: Path) -> None:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not bound.holds(number):
            tried = f"try {low if example is None else example}" if number is None else bound.remedy("", number)
            raise Doubtful(f"must be a whole number, {bound.rule}: got {value}; {tried.replace('=', '')}")

    return check


def _one_of(*choices: str, ignore_case: bool = False) -> Check:
    bound = OneOf(choices)

    def check(value: str, system: Path) -> None:
        if not bound.holds(value.upper() if ignore_case else value):
            remedy = bound.remedy("", value).replace("try =", "try ").replace("'", "")
            raise Doubtful(f"must be {bound.rule}: got {value}; {remedy}")

    return check


def _list_of(*choices: str) -> Check:
    """A list with commas, after ^ all others; NCCL_ALGO and NCCL_PROTO also take "allreduce:tree;broadcast:ring"."""
    known = {choice.lower(): choice for choice in choices}

    def check(value: str, system: Path) -> None:
        for part in value.lower().split(";"):
            for item in part.rpartition(":")[2].removeprefix("^").split(","):
                if item.strip() not in known:
                    near = get_close_matches(item, known, n=1)
                    remedy = f"did you mean {known[near[0]]}?" if near else f"try {choices[0]}"
                    raise Doubtful(f"must be a list of {', '.join(choices)}: got {value}; {remedy}")

    return check


def _devices(folder: str, kind: str) -> Check:
    """NCCL's names of devices: "eth,ib" are prefixes, "=eth0" is a name, "^lo" excludes; one device must fit."""

    def check(value: str, system: Path) -> None:
        if value.startswith("^"):
            return
        here = _names(system / folder)
        names = tuple(name.split(":")[0] for name in value.removeprefix("=").split(",") if name)
        if not any(name in names if value.startswith("=") else name.startswith(names) for name in here):
            raise Doubtful(f"must name {kind} of this machine: got {value}; {_present(here)}")

    return check


def _each_interface(value: str, system: Path) -> None:
    """Gloo's interfaces: exact names, each of which must be there."""
    here = _names(system / _NETWORK)
    if not all(name in here for name in value.split(",")):
        raise Doubtful(f"must be interfaces of this machine by their exact names: got {value}; {_present(here)}")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _present(names: list[str]) -> str:
    return f"here are {', '.join(names)}" if names else "unset it: this machine has none"


def _file(value: str, system: Path) -> None:
    if not Path(value).is_file():
        raise Doubtful(f"must be a file: got {value}; write its full path")


def _allocator(value: str, system: Path) -> None:
    try:
        AllocatorSettings.parse(value)
    except ValueError as error:
        raise Doubtful(str(error)) from None


# ---- the variables ----

_SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
_FLAG = _one_of("0", "1")
_LEVEL = _one_of("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", ignore_case=True)
_TORCH_FLAG = _one_of("0", "1", "TRUE", "FALSE", "YES", "NO", "Y", "N", "T", "F", ignore_case=True)


def _renamed(name: str) -> Setting:
    return Setting("", _any, f"use {name}")


def _removed(remedy: str) -> Setting:
    return Setting("", _any, f"NCCL no longer reads it: {remedy}")


SETTINGS: Mapping[str, Setting] = {
    # messages
    "NCCL_DEBUG": Setting(
        "messages of NCCL at this level", _one_of("VERSION", "WARN", "INFO", "ABORT", "TRACE", ignore_case=True)
    ),
    "NCCL_DEBUG_SUBSYS": Setting(
        "parts of NCCL that write INFO messages",
        _list_of(*"INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC CALL PROXY NVLS BOOTSTRAP REG PROFILE RAS ALL".split()),
    ),
    "NCCL_DEBUG_FILE": Setting("file of NCCL's messages; %h is the host, %p the process", _any),
    "TORCH_DISTRIBUTED_DEBUG": Setting(
        "checks and messages of torch.distributed; DETAIL compares every collective and is slow",
        _one_of("OFF", "INFO", "DETAIL"),
    ),
    # network between nodes
    "NCCL_SOCKET_IFNAME": Setting(
        "interfaces for NCCL's start and its TCP traffic: prefixes, =exact names, ^excluded",
        _devices(_NETWORK, "an interface"),
    ),
    "GLOO_SOCKET_IFNAME": Setting("interfaces of gloo, by exact name", _each_interface),
    "NCCL_SOCKET_FAMILY": Setting("only IPv4 or only IPv6", _one_of("AF_INET", "AF_INET6")),
    "NCCL_SOCKET_NTHREADS": Setting("host threads per TCP connection; more help on 100 Gb/s Ethernet", _whole(1, 16)),
    "NCCL_NSOCKS_PERTHREAD": Setting("TCP sockets per host thread", _whole(1, 64)),
    "NCCL_IB_DISABLE": Setting("1: TCP instead of InfiniBand and RoCE", _FLAG),
    "NCCL_IB_HCA": Setting(
        "InfiniBand adapters: prefixes, =exact names, ^excluded; with :port",
        _devices(_INFINIBAND, "an InfiniBand adapter"),
    ),
    "NCCL_IB_GID_INDEX": Setting("entry of the adapter's address table, for RoCE", _whole(-1, 255)),
    "NCCL_IB_TIMEOUT": Setting(
        "time limit of a message on InfiniBand: 4.096 us times 2 to this power", _whole(1, 22, 20)
    ),
    "NCCL_IB_RETRY_CNT": Setting("how often InfiniBand sends a message again", _whole(0, 7)),
    "NCCL_IB_SL": Setting("InfiniBand's service level", _whole(0, 15)),
    "NCCL_IB_TC": Setting("traffic class, which RoCE switches map to a priority", _whole(0, 255)),
    "NCCL_IB_QPS_PER_CONNECTION": Setting("queue pairs per connection; more spread over routes", _whole(1, 128)),
    "NCCL_IB_SPLIT_DATA_ON_QPS": Setting("1: split each message over the queue pairs", _FLAG),
    "NCCL_IB_PCI_RELAXED_ORDERING": Setting(
        "writes may overtake each other on PCIe; 2: if available", _one_of("0", "1", "2")
    ),
    "NCCL_IB_ADAPTIVE_ROUTING": Setting("1: data over routes that the switches choose", _FLAG),
    "NCCL_NET": Setting("transport between nodes: IB, Socket, or a plug-in's name", _any),
    "NCCL_NET_PLUGIN": Setting("library of the network plug-in; none: no plug-in", _any),
    "NCCL_NET_GDR_LEVEL": Setting("longest path between GPU and adapter with GPUDirect RDMA", _LEVEL),
    "NCCL_NET_GDR_READ": Setting("1: the adapter also reads GPU memory directly", _FLAG),
    "NCCL_DMABUF_ENABLE": Setting("1: GPUDirect RDMA through the kernel's dma-buf", _FLAG),
    "NCCL_CROSS_NIC": Setting("a ring may use different adapters on two nodes; 2: if it helps", _one_of("0", "1", "2")),
    "NCCL_PXN_DISABLE": Setting("1: no sending through another GPU's adapter", _FLAG),
    "NCCL_COLLNET_ENABLE": Setting("1: sums in the switches (SHARP)", _FLAG),
    "NCCL_COMM_ID": Setting("address host:port of NCCL's start, which torch sets itself", _any),
    "NCCL_HOSTID": Setting("name of the node; ranks with different ones count as on different nodes", _any),
    # within a node
    "NCCL_P2P_DISABLE": Setting("1: no direct copies between GPUs, through host memory instead", _FLAG),
    "NCCL_P2P_LEVEL": Setting("longest path between two GPUs with direct copies", _LEVEL),
    "NCCL_SHM_DISABLE": Setting("1: the network instead of shared memory between processes of a node", _FLAG),
    "NCCL_NVLS_ENABLE": Setting("sums in NVLink's switches; 2: if available", _one_of("0", "1", "2")),
    "NCCL_MNNVL_ENABLE": Setting("NVLink between nodes; 2: if available", _one_of("0", "1", "2")),
    "NCCL_CUMEM_ENABLE": Setting("buffers by cuMem functions; -2: if available", _one_of("0", "1", "-2")),
    "NCCL_TOPO_FILE": Setting("description of the node's topology, before NCCL's detection", _file),
    "NCCL_TOPO_DUMP_FILE": Setting("file for the detected topology", _any),
    "NCCL_IGNORE_CPU_AFFINITY": Setting(
        "1: NCCL's threads choose cores near the GPU, whatever the process may use", _FLAG
    ),
    # algorithm and resources
    "NCCL_ALGO": Setting(
        "algorithms that NCCL may choose",
        _list_of("Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"),
    ),
    "NCCL_PROTO": Setting("protocols that NCCL may choose", _list_of("LL", "LL128", "Simple")),
    "NCCL_BUFFSIZE": Setting(
        "bytes of each buffer between a pair of GPUs, 4 MiB by default", _whole(1, example=4194304)
    ),
    "NCCL_NTHREADS": Setting("threads per block of NCCL's kernels", _one_of("64", "128", "256", "512")),
    "NCCL_MIN_NCHANNELS": Setting("fewest channels, each of which takes a block of the GPU", _whole(1, 64)),
    "NCCL_MAX_NCHANNELS": Setting("most channels; fewer leave more of the GPU to products", _whole(1, 64)),
    "NCCL_MIN_CTAS": Setting("fewest blocks of a kernel", _whole(1, 64)),
    "NCCL_MAX_CTAS": Setting("most blocks of a kernel", _whole(1, 64)),
    "NCCL_P2P_NET_CHUNKSIZE": Setting("bytes of a piece of send and recv over the network", _whole(1, example=131072)),
    "NCCL_CHECK_POINTERS": Setting("1: check pointers of every call", _FLAG),
    "NCCL_LAUNCH_MODE": Setting("launch of kernels for several GPUs of one process", _one_of("PARALLEL", "GROUP")),
    "NCCL_GRAPH_MIXING_SUPPORT": Setting("0: no NCCL calls inside and outside of CUDA graphs at once", _FLAG),
    "NCCL_RUNTIME_CONNECT": Setting("1: connect when a collective first needs it", _FLAG),
    "NCCL_RAS_ENABLE": Setting("1: NCCL's service that reports the state of a job", _FLAG),
    "NCCL_COMM_BLOCKING": Setting("0: calls return before they are done", _FLAG),
    "NCCL_TUNER_PLUGIN": Setting("library that chooses algorithm and protocol", _any),
    "NCCL_PROFILER_PLUGIN": Setting("library that receives NCCL's events", _any),
    "NCCL_CONF_FILE": Setting("file with such variables", _file),
    # torch's process groups
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Setting(
        "on a failed or late collective: 0 nothing, 1 abort and end the process, 2 abort only, 3 end only",
        _one_of("0", "1", "2", "3"),
    ),
    "TORCH_NCCL_BLOCKING_WAIT": Setting("1: wait() blocks the host until the collective ends or is late", _TORCH_FLAG),
    "TORCH_NCCL_ENABLE_MONITORING": Setting("1: end the process if its watchdog is stuck", _TORCH_FLAG),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": Setting("seconds without a sign of the watchdog", _whole(1, example=480)),
    "TORCH_FR_BUFFER_SIZE": Setting("calls in the flight recorder; 0: off", _whole(0)),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": Setting("1: write the flight recorder when a collective is late", _TORCH_FLAG),
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": Setting("prefix of the flight recorder's files", _any),
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": Setting("pipe on which the flight recorder can be asked for", _any),
    "TORCH_FR_CPP_STACK": Setting("1: C++ frames in the flight recorder", _TORCH_FLAG),
    "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": Setting("1: write the flight recorder on an exception too", _TORCH_FLAG),
    "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN": Setting("1: C++ frames if a process ends uncleanly", _TORCH_FLAG),
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": Setting("1: warn of serialized messages", _TORCH_FLAG),
    "TORCH_NCCL_BCAST_UNIQUEID": Setting("1: rank 0 gives the group's identity to the others", _TORCH_FLAG),
    "TORCH_NCCL_RANKS_PER_ROOT": Setting("ranks that each root serves at the start of a group", _whole(1)),
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": Setting("1: NCCL copies from tensors directly", _TORCH_FLAG),
    "TORCH_NCCL_DESYNC_DEBUG": Setting("1: a late collective is reported with the ranks that are behind", _TORCH_FLAG),
    "TORCH_NCCL_ENABLE_TIMING": Setting("1: measure every collective", _TORCH_FLAG),
    "TORCH_NCCL_HIGH_PRIORITY": Setting("1: collectives on streams of high priority", _TORCH_FLAG),
    "TORCH_NCCL_NAN_CHECK": Setting("1: stop at a NaN in an input", _TORCH_FLAG),
    "TORCH_NCCL_CUDA_EVENT_CACHE": Setting("1: reuse CUDA events", _TORCH_FLAG),
    "TORCH_NCCL_PROPAGATE_ERROR": Setting("1: a failed rank reports to the others", _TORCH_FLAG),
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": Setting("1: the watchdog raises CUDA's errors", _TORCH_FLAG),
    "TORCH_NCCL_USE_COMM_NONBLOCKING": Setting("1: communicators whose calls return at once", _TORCH_FLAG),
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": Setting("milliseconds for writing before the process ends", _whole(1)),
    "TORCH_NCCL_COORD_CHECK_MILSEC": Setting("milliseconds between looks for another rank's failure", _whole(1)),
    "TORCH_GLOO_LAZY_INIT": Setting("1: gloo connects ranks when they first communicate", _TORCH_FLAG),
    "GLOO_DEVICE_TRANSPORT": Setting("gloo's transport", _one_of("TCP", "TCP_TLS", "UV", "IBVERBS")),
    # memory and processes
    "PYTORCH_ALLOC_CONF": Setting("torch's caching allocator (docs/settings.md)", _allocator),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Setting("1: no caching: a driver call for every tensor, to find faults", _any),
    "CUDA_DEVICE_MAX_CONNECTIONS": Setting(
        "queues of the GPU; 1 keeps the order of launches (Megatron)", _whole(1, 32)
    ),
    "CUDA_LAUNCH_BLOCKING": Setting("1: the host waits for every kernel: slow, to find faults", _FLAG),
    "CUBLAS_WORKSPACE_CONFIG": Setting(
        "memory of cuBLAS; needed for deterministic products", _one_of(":4096:8", ":16:8")
    ),
    "OMP_NUM_THREADS": Setting("threads per operator on the CPU; torchrun sets 1", _whole(1)),
    # names of the past
    "PYTORCH_CUDA_ALLOC_CONF": _renamed("PYTORCH_ALLOC_CONF (torch 2.9); the old name is still read"),
    "PYTORCH_HIP_ALLOC_CONF": _renamed("PYTORCH_ALLOC_CONF (torch 2.9); the old name is still read"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _renamed("TORCH_FR_BUFFER_SIZE; the old name is still read"),
    "TORCH_NCCL_TRACE_CPP_STACK": _renamed("TORCH_FR_CPP_STACK; the old name is still read"),
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": _renamed("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK (torch 2.2)"),
    "TORCH_NCCL_AVOID_RECORD_STREAMS": Setting("", _any, "unset it: it is the default since torch 2.8"),
    "NCCL_ASYNC_ERROR_HANDLING": _renamed("TORCH_NCCL_ASYNC_ERROR_HANDLING (torch 2.2)"),
    "NCCL_BLOCKING_WAIT": _renamed("TORCH_NCCL_BLOCKING_WAIT (torch 2.2)"),
    "NCCL_DESYNC_DEBUG": _renamed("TORCH_NCCL_DESYNC_DEBUG (torch 2.2)"),
    "NCCL_ENABLE_TIMING": _renamed("TORCH_NCCL_ENABLE_TIMING (torch 2.2)"),
    "NCCL_MIN_NRINGS": _renamed("NCCL_MIN_NCHANNELS (NCCL 2.5)"),
    "NCCL_MAX_NRINGS": _renamed("NCCL_MAX_NCHANNELS (NCCL 2.5)"),
    "NCCL_CHECKS_DISABLE": _renamed("NCCL_CHECK_POINTERS (NCCL 2.2.12)"),
    "NCCL_IB_CUDA_SUPPORT": _removed("use NCCL_NET_GDR_LEVEL (NCCL 2.4)"),
    "NCCL_LL_THRESHOLD": _removed("use NCCL_PROTO (NCCL 2.5)"),
    "NCCL_TREE_THRESHOLD": _removed("use NCCL_ALGO (NCCL 2.5)"),
    "NCCL_SINGLE_RING_THRESHOLD": _removed("unset it (NCCL 2.3)"),
}


def described() -> Iterator[tuple[str, str]]:
    """Every present variable with its effect, for a page."""
    return ((name, setting.effect) for name, setting in SETTINGS.items() if not setting.replaced_by)
