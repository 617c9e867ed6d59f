"""The rules a plan must keep, numbered; and in words, where one does not.

    R1  every micro-batch passes every piece of the model once forward and once backward: B, or I and W
    R2  every action is on the rank that holds its piece
    R3  at a piece a micro-batch goes forward, then backward: F before B, F before I before W
    R4  every send has one receive at its other end, in the same order; after what it sends, before what needs it
    R5  no rank waits for ever: there is an order in which everything can be done
    R6  no rank holds more activations than it may

R4 is about plans with messages (`with_communication`); without, they are taken to arrive by themselves. A rule is
looked at only where those that it stands on hold: R2 under all others, R1 to R4 under R5. A plan that lacks an action
also waits for it, and that would only hide the cause.

Legend: an activation is held from the F of a micro-batch at a piece until its B or W; with v pieces on a rank each is a
v-th of what a rank holds for one micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.pipeline import rules
from lablib.pipeline.messages import CommunicationPlan
from lablib.pipeline.plan import Plan
from lablib.pipeline.rules import Finding
from lablib.signature import checked

_MAX_FINDINGS = 3  # findings that an error quotes


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
    """Checks a plan by the rules above. Changes nothing; a broken rule is a finding, not an error.

    Arguments:
        plan: with messages or without.
        max_in_flight: for R6: activations that a rank may hold at once, one number for all ranks or one for each.
        blocking_sends: for R5: a send waits until the other end receives.

    Raises:
        ValueError: `max_in_flight` has not one number for each rank.
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
        findings += rules.memory(computed, _limits(max_in_flight, len(computed.actions)))
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


def _limits(max_in_flight: int | Sequence[int], num_ranks: int) -> Sequence[int]:
    limits = [max_in_flight] * num_ranks if isinstance(max_in_flight, int) else max_in_flight
    if len(limits) != num_ranks:
        raise ValueError(
            f"max_in_flight must be one number, or one for each rank: got {len(limits)} for {num_ranks} ranks."
        )
    return limits


@checked
def peak_in_flight(plan: Plan) -> tuple[int, ...]:
    """Of each rank, the most activations it holds at once, each of one micro-batch at one piece."""
    return tuple(max(rules.held_after(actions), default=0) for actions in plan.actions)
