"""Faults on the simulated cluster: `launch(..., faults=[SlowRank(3, 2.0)])`.

A fault is a record; lablib/sim/faults/inject.py applies it. The program is not informed, as on a real cluster: a slow
rank is late, a dead one never joins, a flipped bit spreads with the gradients.

    SlowRank          its compute takes `factor` times as long
    KillRank          it dies when its clock reaches `at_s`
    DelayStart        it starts late
    SlowLink          a wire has less bandwidth, more latency, or both
    DropLink          a wire carries nothing from `at_s` on
    CorruptGradient   one element of one gradient is NaN, infinite, or has a bit flipped

Times are virtual seconds since the launch. Runs with faults are as deterministic as others.

Sources for the frequency of faults: Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, section 3.3.4
(419 unexpected interruptions in 54 days on 16,384 GPUs); Dixit et al., "Silent Data Corruptions at Scale", 2021, arXiv
2102.11245 (bit flips); Jiang et al., "MegaScale", NSDI 2024, arXiv 2402.15627, section 5 (stragglers).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite

from lablib.errors import unknown_name
from lablib.signature import check_fields, whole_number
from lablib.text.messages import safe_repr

KINDS = ("nan", "inf", "bit flip")
LEVELS = ("intra", "inter")


@dataclass(frozen=True)
class SlowRank:
    """The compute of `rank` takes `factor` times as long, as on a hot GPU or with a noisy neighbour.

    An operator that begins or ends outside the window is slowed only for the part of its work that is done inside. Two
    of these on one rank multiply.

    Attributes:
        rank: the slow rank.
        factor: more than 0; 2.0 takes twice as long, 0.5 half as long.
        from_s, until_s: virtual seconds between which it is slow; by default always.
    """

    rank: int
    factor: float
    from_s: float = 0.0
    until_s: float = inf

    def __post_init__(self) -> None:
        check_fields(self)
        _check_factor(self, self.factor)
        _check_time(self, "from_s", self.from_s)
        if not self.until_s > self.from_s:
            raise ValueError(f"until_s must come after from_s: got {self.from_s} to {self.until_s} in {self}")


@dataclass(frozen=True)
class KillRank:
    """The process of `rank` dies when its virtual clock reaches `at_s`.

    Also if it waits then in a communication that would end later. The others do not notice until they wait for it; the
    launch ends in a `RankKilledError`.

    Attributes:
        rank: the rank that dies.
        at_s: virtual time of its death in seconds; 0: before it does anything.
    """

    rank: int
    at_s: float

    def __post_init__(self) -> None:
        check_fields(self)
        _check_time(self, "at_s", self.at_s)


@dataclass(frozen=True)
class DelayStart:
    """The program of `rank` starts `seconds` after the others', as on a slow node or a cold file system."""

    rank: int
    seconds: float

    def __post_init__(self) -> None:
        check_fields(self)
        _check_time(self, "seconds", self.seconds)


@dataclass(frozen=True)
class SlowLink:
    """Wires with less bandwidth or more latency, as with a bad cable or a congested switch.

        SlowLink(0, 1, factor=4)                the wire between ranks 0 and 1, in both directions
        SlowLink(0, factor=4)                   all wires of rank 0
        SlowLink(0, factor=4, level="inter")    its NIC: all its wires to other nodes
        SlowLink(node=1, factor=4)              all wires between node 1 and other nodes

    A message of S bytes then takes alpha + latency_s + S * beta * factor. Collectives choose their algorithm on the
    healthy network, as NCCL does by nominal figures, and run on the slow one.

    Attributes:
        a, b: global ranks; without `b`, all wires of `a`.
        factor: more than 0; 4.0 is a quarter of the bandwidth.
        latency_s: additional seconds per message or round.
        level: "intra" (wires within the node) or "inter" (to other nodes); None: both.
        node: instead of ranks, a node.
    """

    a: int | None = None
    b: int | None = None
    factor: float = 1.0
    latency_s: float = 0.0
    level: str | None = None
    node: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        _check_factor(self, self.factor)
        _check_time(self, "latency_s", self.latency_s)
        if self.level is not None and self.level not in LEVELS:
            raise unknown_name("level", self.level, LEVELS)
        if (self.a is None) == (self.node is None):
            raise ValueError(f"a slow link needs a rank or a node, not both: got {self}; try SlowLink(0, 1, factor=4)")
        if self.b is not None and (self.a is None or self.level):
            raise ValueError(f"b is the other end of a wire that starts at rank a, which has one level: got {self}")
        if self.node is not None and self.level == "intra":
            raise ValueError(f"the wires of a node are those that leave it: got {self}; leave level out")
        if self.a is not None and self.a == self.b:
            raise ValueError(f"a link needs two different ranks: got {self.a} twice; a rank reaches itself in no time")
        if self.factor == 1 and not self.latency_s:
            raise ValueError(f"a slow link needs a factor or a latency_s: {self} changes nothing; try factor=4")


@dataclass(frozen=True)
class DropLink:
    """The wire between ranks `a` and `b` is down from `at_s` on.

    A communication that needs it and has not ended by then never ends. The launch ends in a `LinkDownError`.
    Collectives do not route around it.
    """

    a: int
    b: int
    at_s: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_time(self, "at_s", self.at_s)
        if self.a == self.b:
            raise ValueError(f"a link needs two different ranks: got {self.a} twice; a rank reaches itself in no time")


@dataclass(frozen=True)
class CorruptGradient:
    """On one rank, one element of one gradient is wrong, from backward on: before any reduction.

    Attributes:
        rank: the rank.
        parameter: its name in the outermost module (`model.named_parameters()`), or its number in the order in which
            forward, recording gradients, first uses the `nn.Parameter`s of this rank; None: the first.
        step: number of the parameter's gradient, from 0: one per backward pass that reaches it, micro-batches included.
        kind: "nan", "inf" or "bit flip".
        bit: the bit to flip, 0 being the lowest of the mantissa; None: the highest of the exponent. For "bit flip".
        element: index of the element in this rank's gradient, in row-major order.
    """

    rank: int
    parameter: str | int | None = None
    step: int = 0
    kind: str = "nan"
    bit: int | None = None
    element: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind not in KINDS:
            raise unknown_name("kind of corruption", self.kind, KINDS)
        for name in ("step", "element", "parameter", "bit"):
            value = getattr(self, name)
            may_be_left_out = value is None or (name == "parameter" and isinstance(value, str))
            if not may_be_left_out:
                whole_number(name, value, 0, 0, f" in {self}")
        if self.bit is not None and self.kind != "bit flip":
            raise ValueError(f'a bit is for kind="bit flip": got bit={self.bit} and kind={self.kind!r}')


Fault = SlowRank | KillRank | DelayStart | SlowLink | DropLink | CorruptGradient


def check_faults(
    faults: Iterable[Fault], num_ranks: int, num_nodes: int, backend: str, trace: bool, fidelity: str
) -> tuple[Fault, ...]:
    """Check the faults of a launch. Returns them as a tuple.

    Raises:
        ValueError, TypeError: an entry that is not a fault; a rank or node outside the run; a rank that is killed or
            delayed twice; a backend, or a mode of the run, in which they cannot happen.
    """
    if isinstance(faults, Fault):
        raise TypeError(f"faults is a list: got {faults}; write faults=[{faults}]")
    if not isinstance(faults, Iterable) or isinstance(faults, str | bytes):
        raise TypeError(f"faults is a list of records such as SlowRank(3, 2.0): got {safe_repr(faults)}; try faults=[]")
    faults = tuple(faults)
    if not faults:
        return ()
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(f"faults holds records such as SlowRank(3, 2.0): got {safe_repr(fault)}; leave it out")
    _check_launch(faults, backend, trace, fidelity)
    for fault in faults:
        _check_places(fault, num_ranks, num_nodes)
    for kind, what in ((KillRank, "dies"), (DelayStart, "starts")):
        twice = [rank for rank, n in Counter(f.rank for f in faults if isinstance(f, kind)).items() if n > 1]
        if twice:
            raise ValueError(f"a rank {what} once: rank {twice[0]} has several {kind.__name__}; leave one")
    return faults


def _check_launch(faults: Iterable[Fault], backend: str, trace: bool, fidelity: str) -> None:
    if backend != "sim":
        raise ValueError(f'faults are for the simulator: {backend} runs on real processes; use backend="sim"')
    if not trace:
        raise ValueError("faults need the clock that trace=False turns off: leave trace=True")
    corrupt = next((fault for fault in faults if isinstance(fault, CorruptGradient)), None)
    if corrupt and fidelity == "shapes":
        raise ValueError(f'{corrupt} needs gradients with values: fidelity="shapes" has none; use fidelity="values"')


def _check_places(fault: Fault, num_ranks: int, num_nodes: int) -> None:
    for name in ("rank", "a", "b", "node"):
        place = getattr(fault, name, None)
        size, what = (num_nodes, "nodes") if name == "node" else (num_ranks, "ranks")
        if place is None:
            continue
        if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < size:
            raise ValueError(f"this run has {what} 0 to {size - 1}: got {name}={place!r} in {fault}")


def _check_factor(fault: Fault, factor: float) -> None:
    if not (factor > 0 and isfinite(factor)):
        raise ValueError(f"factor must be a number above 0 (2.0: twice the time, 0.5: half): got {factor} in {fault}")


def _check_time(fault: Fault, name: str, time_s: float) -> None:
    if not (time_s >= 0 and isfinite(time_s)):
        raise ValueError(f"{name} must be 0 or more seconds: got {time_s} in {fault}")
