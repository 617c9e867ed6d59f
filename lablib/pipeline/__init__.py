"""Pipeline schedules as data: the actions of each stage in order, and their cost.

plan.py             an action, a plan
schedules/          GPipe, 1F1B and the others: each a function that returns a plan
validate.py         the rules a plan must keep (rules.py, deadlock.py)
communication.py    a plan with its sends and receives (messages.py)
costs.py            seconds and bytes of the actions
replay.py           start and end of each action, memory of each rank
critical_path.py    the actions that decide the makespan
simulation.py       simulate a plan: replay, critical path, memory limit, deadlock
steady_state.py     the makespan for very many micro-batches, from replays of few
leader_board.py     plans of several authors on one machine
equal_memory.py     compare all schedules with the same memory
pairs.py            DualPipe-V with overlapped pairs
balance.py          balanced cuts of a model, by the costs of its layers
executor/           run a plan on torch.distributed; only this folder needs torch
executed.py         timeline and costs of a measured run
closed_form.py      formulas of time and memory, for a planner (sums.py, longest_paths.py, longest_paths_split.py)
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
