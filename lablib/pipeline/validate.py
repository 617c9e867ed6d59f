"""Validate a plan by numbered rules, with a message for each violation.

    R1  every micro-batch passes every piece of the model once forward and once backward: B, or I and W
    R2  every action is on the rank that holds its piece
    R3  at a piece a micro-batch goes forward, then backward: F before B, F before I before W
    R4  every send has one receive at its other end, in the same order; it follows its action and precedes its use
    R5  no deadlock: there is an order in which all steps can be done
    R6  no rank holds more activations than its limit

R4 is about plans with messages (`with_communication`); in other plans results arrive by themselves. A rule is checked
only if its preconditions hold: R2 for all others, R1 to R4 for R5. For example, a plan that lacks an action also
deadlocks, which would hide the cause.

Legend: an activation is held from the F of a micro-batch at a piece until its B or W; with v pieces on a rank each is a
v-th of a rank's memory for one micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.pipeline import rules
from lablib.pipeline.messages import CommunicationPlan
from lablib.pipeline.plan import Plan
from lablib.pipeline.rules import Finding
from lablib.signature import checked

_MAX_FINDINGS = 3  # findings in an error message


@dataclass(frozen=True, slots=True)
class Report:
    """What `validate` found, in the order of the rules."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def is_valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.findings

    @property
    def rules(self) -> tuple[int, ...]:
        """The numbers of the rules that are broken."""
        return tuple(sorted({int(finding.rule) for finding in self.findings}))

    def __str__(self) -> str:
        if self.is_valid:
            return f"{self.name} keeps every rule."
        return "\n".join([f"{self.name} breaks {len(self.findings)} times:", *(f"  {each}" for each in self.findings)])


@checked
def validate(
    plan: Plan | CommunicationPlan, *, max_in_flight: int | Sequence[int] | None = None, blocking_sends: bool = True
) -> Report:
    """Check a plan by the rules above. A broken rule is a finding, not an error.

    Arguments:
        plan: with messages or without.
        max_in_flight: for R6: limit of activations that a rank holds at once, one number for all ranks or one for each.
        blocking_sends: for R5: a send waits for its receive.

    Raises ValueError: `max_in_flight` does not have one number for each rank.
    """
    computed = plan if isinstance(plan, Plan) else plan.plan
    findings = [*rules.places(computed)]
    if not findings:
        findings = [*rules.once(computed), *rules.order(computed)]
    if not findings and isinstance(plan, CommunicationPlan):
        findings = [*rules.messages(plan)]
    if not findings:
        findings = [*rules.deadlock(plan, blocking_sends)]
    if max_in_flight is not None:
        findings += rules.memory(computed, limits_of(max_in_flight, len(computed.actions)))
    return Report(plan.name, tuple(findings))


@checked
def check(
    plan: Plan | CommunicationPlan, *, max_in_flight: int | Sequence[int] | None = None, blocking_sends: bool = True
) -> None:
    """Raises ValueError with the first findings unless the plan keeps every rule. Arguments as in `validate`."""
    findings = validate(plan, max_in_flight=max_in_flight, blocking_sends=blocking_sends).findings
    if findings:
        more = f" (and {len(findings) - _MAX_FINDINGS} more: see validate)" if len(findings) > _MAX_FINDINGS else ""
        raise ValueError(f"{plan.name}: " + " ".join(map(str, findings[:_MAX_FINDINGS])) + more)


def limits_of(max_in_flight: float | Sequence[float], num_ranks: int) -> tuple[float, ...]:
    """One limit for each rank."""
    limits = tuple(max_in_flight) if isinstance(max_in_flight, Sequence) else (max_in_flight,) * num_ranks
    if len(limits) != num_ranks:
        raise ValueError(
            f"max_in_flight must be one number, or one for each of the {num_ranks} ranks: got {len(limits)} numbers; "
            f"try {[4] * min(num_ranks, 8)}."
        )
    return limits


@checked
def peak_in_flight(plan: Plan) -> tuple[int, ...]:
    """The most activations that each rank holds at once, each of one micro-batch at one piece."""
    return tuple(max(rules.held_after(actions), default=0) for actions in plan.actions)
