"""The executor: a plan run on torch.distributed, for every schedule.

stages.py           a model cut into the pieces of a pipeline
pipeline.py         this rank's row of a plan, action by action
actions.py          the actions F, B, I and W
split_backward.py   backward in two: I and W
exchange.py         the messages of a step
boundaries.py       shapes of the activations between pieces
tied.py             parameters that pieces share
checks.py           checks of a pipeline's arguments

It needs torch; plans, replay and rules, one folder up, do not.
"""

# ruff: noqa: I001  (in reading order)
from lablib.pipeline.executor.stages import cut as cut
from lablib.pipeline.executor.stages import cut_at as cut_at
from lablib.pipeline.executor.stages import flops_of as flops_of
from lablib.pipeline.executor.stages import units_of as units_of
from lablib.pipeline.executor.pipeline import Pipeline as Pipeline
from lablib.pipeline.executor.checks import token_weights as token_weights
from lablib.pipeline.executor.actions import seed_of as seed_of
from lablib.pipeline.executor.split_backward import WeightGradients as WeightGradients
