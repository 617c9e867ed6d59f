"""A circulating table of parallelism strategies, recomputed for a model and a cluster.

    strategy     efficiency    memory saved    communication
    data         85 to 95%     0               high
    model        75 to 85%     60 to 80%       medium              tensor ranks here
    pipeline     80 to 90%     40 to 60%       low
    ZeRO-2       80 to 90%     50 to 75%
    ZeRO-3       70 to 80%     75 to 90%
    FSDP         85 to 95%     60 to 80%

The table states neither model nor ranks nor network, and all of its numbers depend on them. Computed here:

    efficiency   throughput of n ranks / (n times the throughput of one). The batch grows with the ranks: equal
                 sequences per rank. If one device does not hold the model, its throughput is computed for enough
                 memory. Above 1 with ZeRO, which shares the optimizer's work
    saved        1 - bytes of the fullest of n ranks / bytes of one rank, at their peak, each with micro-batches of one
                 sequence; also for states alone: parameters, gradients, optimizer
    sent         bytes that a mean rank sends per step; "high, medium, low" holds if data > model > pipeline

FSDP has two meanings: `FULL_SHARD` is ZeRO-3 under another name, so one of the two ranges must be wrong;
`SHARD_GRAD_OP` keeps parameters from forward to backward, and gathers them once less.

Cost: two predictions for each strategy and number of ranks.
Source: the table is in circulation; no origin found. The numbers: lablib.plan.predict, placement_bytes.py.
Simplified: one strategy at a time, ranks in the order that suits it; combinations: lablib/plan/axis_by_axis.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from lablib.hardware import Cluster, find_cluster
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.parallel.mesh.mesh import Mesh
from lablib.plan import Parallel, Prediction
from lablib.plan.arguments import possible, setup_of
from lablib.plan.predict import predict, prediction_of
from lablib.plan.rules import obstacles
from lablib.plan.setup import Setup
from lablib.signature import Count, NonEmpty, Range, checked
from lablib.studies.placement import MAX_RANKS
from lablib.studies.placement_bytes import step_calls, step_traffic

STATES = ("parameter", "gradient", "optimizer state")
RankCount = Annotated[int, Range(ge=2, le=MAX_RANKS, example=8)]


@dataclass(frozen=True, slots=True)
class StrategyClaim:
    """A row of the circulating table: shares between 0 and 1, and a word if it has one."""

    efficiency: tuple[float, float]
    saved: tuple[float, float]
    communication: str = ""


_FSDP = StrategyClaim((0.85, 0.95), (0.60, 0.80))
CLAIMS: Mapping[str, StrategyClaim] = MappingProxyType(
    {
        "data": StrategyClaim((0.85, 0.95), (0.0, 0.0), "high"),
        "model": StrategyClaim((0.75, 0.85), (0.60, 0.80), "medium"),
        "pipeline": StrategyClaim((0.80, 0.90), (0.40, 0.60), "low"),
        "ZeRO-2": StrategyClaim((0.80, 0.90), (0.50, 0.75)),
        "ZeRO-3": StrategyClaim((0.70, 0.80), (0.75, 0.90)),
        "FSDP": _FSDP,
        "FSDP, gathered once": _FSDP,
    }
)


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One strategy on so many ranks."""

    strategy: str
    ranks: int
    efficiency: float  # throughput of n ranks over n times the throughput of one
    saved: float  # saved, states_saved: shares of the bytes at the peak, and of the states' alone
    states_saved: float
    sent_bytes: float  # of a mean rank per step
    exposed_share: float  # share of the step in which ranks wait for wires, without the bubble of a pipeline
    fits: bool  # whether it fits into a device

    @property
    def claim(self) -> StrategyClaim:
        return CLAIMS[self.strategy]

    @property
    def efficiency_holds(self) -> bool:
        """Whether the efficiency, rounded to a per cent, is in the claimed range."""
        return _is_in(self.efficiency, self.claim.efficiency)

    @property
    def saved_holds(self) -> bool:
        """Whether the saved memory is in the claimed range, in total or of the states alone."""
        return _is_in(self.saved, self.claim.saved) or _is_in(self.states_saved, self.claim.saved)


@dataclass(frozen=True, slots=True)
class StrategyVerdict:
    """Result of the check of one row of the table."""

    strategy: str
    ranks: tuple[int, ...]
    efficiency: tuple[float, float]  # efficiency, saved: minimum and maximum over them
    saved: tuple[float, float]
    efficiency_holds_on: tuple[int, ...]  # efficiency_holds_on, saved_holds_on: the ranks on which the claim holds
    saved_holds_on: tuple[int, ...]

    def sentence(self) -> str:
        """The ranks where the claim holds and where not, in one sentence."""
        claim = CLAIMS[self.strategy]
        parts = [
            f"{what} {low:.0%} to {high:.0%}, claimed {a:.0%} to {b:.0%}: {_on(holds, self.ranks)}"
            for what, (low, high), (a, b), holds in (
                ("efficiency", self.efficiency, claim.efficiency, self.efficiency_holds_on),
                ("memory saved", self.saved, claim.saved, self.saved_holds_on),
            )
        ]
        return f"{self.strategy}: {'; '.join(parts)}."


@checked
def strategies(
    model: str | Transformer | GPTConfig,
    cluster: str | Cluster,
    ranks: Annotated[Sequence[RankCount], NonEmpty(), "try ranks=(2, 8, 64)"] = (2, 4, 8, 16, 32, 64),
    sequences: Count = 8,
    **options: Any,
) -> tuple[StrategyRow, ...]:
    """Every strategy on every possible number of ranks; impossible splits are left out.

    Arguments:
        model, cluster: as in `lablib.plan.predict`.
        ranks: numbers of ranks, few enough to count the bytes between them.
        sequences: per rank and step.
        options: of `predict`: seq_len, stack, precision, recompute, derating, ...

    Raises ValueError: an option that a strategy sets; and as `predict` on one rank.
    """
    if taken := [name for name in ("parallel", "order", "batch", "micro_batch", "compression") if name in options]:
        raise ValueError(f"{taken[0]} is chosen by the strategy: got it among the options; leave it out.")
    found = find_cluster(cluster)
    base = predict(model, found, Parallel(), sequences, **options)
    rows = []
    for strategy in CLAIMS:
        for n in ranks:
            parallel = _split(strategy, int(n))
            setup = setup_of(model, found, parallel, sequences * n, **options)
            if not obstacles(setup):
                rows.append(_row(strategy, n, possible(setup, _axis(parallel)), base, found))
    return tuple(rows)


@checked
def strategy_verdicts(rows: Sequence[StrategyRow]) -> tuple[StrategyVerdict, ...]:
    """Result for each row of the table. As a table: `pd.DataFrame(strategy_verdicts(rows))`."""
    by_strategy: dict[str, list[StrategyRow]] = {}
    for row in rows:
        by_strategy.setdefault(row.strategy, []).append(row)
    return tuple(
        StrategyVerdict(
            name,
            tuple(row.ranks for row in some),
            _ends([row.efficiency for row in some]),
            _ends([row.saved for row in some]),
            tuple(row.ranks for row in some if row.efficiency_holds),
            tuple(row.ranks for row in some if row.saved_holds),
        )
        for name, some in by_strategy.items()
    )


@checked
def efficiencies(rows: Sequence[StrategyRow], ranks: Sequence[int]) -> dict[str, list[float]]:
    """Strategy -> its efficiency on each of these ranks, for strategies with all of them: for `figure_scaling`."""
    found = {(row.strategy, row.ranks): row.efficiency for row in rows}
    return {name: [found[name, n] for n in ranks] for name in CLAIMS if all((name, n) in found for n in ranks)}


def _split(strategy: str, n: int) -> Parallel:
    if strategy == "model":
        return Parallel(tensor=n)
    if strategy == "pipeline":
        return Parallel(pipeline=n)
    stage = {"data": 0, "ZeRO-2": 2}.get(strategy, 3)
    return Parallel(data=n, zero_stage=stage, reshard_after_forward=strategy != "FSDP, gathered once")


def _axis(parallel: Parallel) -> tuple[str, ...]:
    return tuple(axis for axis in ("data", "tensor", "pipeline") if getattr(parallel, axis) > 1)


def _row(strategy: str, n: int, setup: Setup, base: Prediction, cluster: Cluster) -> StrategyRow:
    found = prediction_of(setup)
    mesh = Mesh(**{axis: n for axis in _axis(setup.parallel)})
    traffic = step_traffic(step_calls(setup), mesh, cluster)
    return StrategyRow(
        strategy,
        int(n),
        efficiency=found.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu,
        saved=1 - found.peak_memory_bytes / base.peak_memory_bytes,
        states_saved=1 - _states(found) / _states(base),
        sent_bytes=sum(sum(traffic.sent_bytes(axis).values()) for axis in traffic.matrices),
        exposed_share=found.exposed_communication_s / found.step_time_s,
        fits=found.fits,
    )


def _states(found: Prediction) -> float:
    return max(sum(stage[name] for name in STATES) for stage in found.memory)


def _is_in(share: float, ends: tuple[float, float]) -> bool:
    return ends[0] - 0.005 <= share <= ends[1] + 0.005


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _on(holds: tuple[int, ...], ranks: tuple[int, ...]) -> str:
    if not holds:
        return "on none of these ranks"
    return "on all of these ranks" if holds == ranks else f"on {', '.join(map(str, holds))} ranks alone"
