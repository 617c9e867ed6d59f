# ruff: noqa: I001  (in reading order)
from .plan import Action as Action, Kind as Kind, Plan as Plan
from .rules import Finding as Finding, PlanRule as PlanRule
from .validate import Report as Report, check as check, peak_in_flight as peak_in_flight, validate as validate
from .messages import (
    CommunicationPlan as CommunicationPlan,
    Exchange as Exchange,
    MessageKind as MessageKind,
    PipelineMessage as PipelineMessage,
)
from .communication import naive_communication as naive_communication, with_communication as with_communication
from .costs import Costs as Costs
from .replay import Replay as Replay, replay as replay
from .critical_path import Critical as Critical, critical_path as critical_path
from .simulation import Simulation as Simulation, read_plan as read_plan, simulate as simulate
from .steady_state import SteadyState as SteadyState, steady_state as steady_state
from .equal_memory import Afforded as Afforded, equal_memory as equal_memory
from .pairs import pairs_bubble_s as pairs_bubble_s, pairs_of as pairs_of, replay_pairs as replay_pairs
from .balance import balanced_cut as balanced_cut
from .leader_board import leader_board as leader_board
from .executed import executed as executed, measured_costs as measured_costs
