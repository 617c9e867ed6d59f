# ruff: noqa: I001  (in reading order)
from .calibration import calibrate as calibrate
from .errors import (
    CollectiveMismatchError as CollectiveMismatchError,
    DeadlockError as DeadlockError,
    FaultError as FaultError,
    LaunchError as LaunchError,
    LaunchTimeoutError as LaunchTimeoutError,
    LinkDownError as LinkDownError,
    RankError as RankError,
    RankKilledError as RankKilledError,
    ValueNeededError as ValueNeededError,
    WorkerError as WorkerError,
)
from .faults import (
    CorruptGradient as CorruptGradient,
    DelayStart as DelayStart,
    DropLink as DropLink,
    Fault as Fault,
    KillRank as KillRank,
    SlowLink as SlowLink,
    SlowRank as SlowRank,
)
from .hardware import (
    CLUSTERS as CLUSTERS,
    DEVICES as DEVICES,
    LINKS as LINKS,
    Cluster as Cluster,
    Device as Device,
    Link as Link,
    find_cluster as find_cluster,
)
from .launch import launch as launch
from .phases import phase as phase
from .reconcile import Reconciliation as Reconciliation, reconcile as reconcile
from .record import (
    Allocation as Allocation,
    Memory as Memory,
    Span as Span,
    Summary as Summary,
    Timeline as Timeline,
    Traffic as Traffic,
    Transfer as Transfer,
)
from .run import Run as Run
from .script import simulate_script as simulate_script
