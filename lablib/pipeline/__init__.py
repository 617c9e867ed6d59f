"""Pipeline schedules as data: the actions of each stage in order, and their cost.

plan.py             an action, a plan
schedules/          GPipe, 1F1B and the others: each a function that returns a plan
validate.py         the rules a plan must keep (rules.py, deadlock.py)
communication.py    a plan with its sends and receives (messages.py)
costs.py            what the actions take
replay.py           when each runs, what each rank holds
critical_path.py    which actions decide how long it takes
simulation.py       a plan tried out: replay, critical path, limit of memory, or the circle of its deadlock
steady_state.py     the same for very many micro-batches, from a few
leader_board.py     plans of several authors on one machine
equal_memory.py     all schedules, each at its best with the same memory
pairs.py            DualPipe-V's pairs run as one
balance.py          where to cut a model, by what its layers cost
executor/           a plan run on torch.distributed; this folder alone needs torch
executed.py         what a run did, beside the replay
closed_form.py      the same as formulas, for a planner (sums.py, longest_paths.py, longest_paths_split.py)
"""

# ruff: noqa: I001  (in reading order)
from lablib.pipeline.plan import Action, Kind, Plan
from lablib.pipeline import schedules
from lablib.pipeline.rules import Finding, Rule
from lablib.pipeline.validate import Report, check, peak_in_flight, validate
from lablib.pipeline.messages import CommunicationPlan, Exchange, PipelineMessage, MessageKind
from lablib.pipeline.communication import naive_communication, with_communication
from lablib.pipeline.costs import Costs
from lablib.pipeline.replay import Replay, replay
from lablib.pipeline.critical_path import Critical, critical_path
from lablib.pipeline.simulation import Simulation, read_plan, simulate
from lablib.pipeline.steady_state import SteadyState, steady_state
from lablib.pipeline.equal_memory import Afforded, equal_memory
from lablib.pipeline.pairs import pairs_bubble_s, pairs_of, replay_pairs
from lablib.pipeline.balance import balanced_cut
from lablib.pipeline.leader_board import leader_board
from lablib.pipeline.executed import executed, measured_costs

__all__ = [
    "Action",
    "Kind",
    "Plan",
    "schedules",
    "Finding",
    "Rule",
    "Report",
    "check",
    "peak_in_flight",
    "validate",
    "CommunicationPlan",
    "Exchange",
    "PipelineMessage",
    "MessageKind",
    "naive_communication",
    "with_communication",
    "Costs",
    "Replay",
    "replay",
    "Critical",
    "critical_path",
    "Simulation",
    "read_plan",
    "simulate",
    "SteadyState",
    "steady_state",
    "Afforded",
    "equal_memory",
    "pairs_bubble_s",
    "pairs_of",
    "replay_pairs",
    "balanced_cut",
    "leader_board",
    "executed",
    "measured_costs",
]
