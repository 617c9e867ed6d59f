"""The planner: step time, memory and communication of a run in closed form, and the search for the best split.

parallel.py     split of a model over ranks
stack.py        training software: kernels, memory, overlap
derating.py     losses of real machines that the simulator leaves out
machine.py      seconds of kernels and collectives on one rank
order.py        order of the axes over the ranks
layer/          a step as lists of operators, and their price: layer, embedding, head and loss
eager/          data axis, optimizer, messages and memory of eager torch
parameters_per_rank.py  parameters on one rank
pieces.py       costs of a layer and of both ends, cached
default_stack.py        default software of a device and a year
setup.py        choices and numbers of a plan, or of many: one record for all formulas
data_axis.py    communication of the data axis, and its exposed part
optimizer_step.py       the update of the parameters
step.py         one step as a sum
memory.py       peak memory of each stage
prediction.py   result of a prediction
rules.py        rules for a possible split
arguments.py    checks of the arguments, and the setup that they describe
predict.py      prediction of one plan
predict_many.py predictions of a million plans
predictions.py  their results as arrays
search_grid.py  the grid of plans
search.py       predictions of the whole grid
search_result.py        the fastest plans, and the reasons against the others
axis_by_axis.py from one GPU that does not hold the model to a plan, axis by axis

optimizers.py, gradient_compression.py     state, traffic and FLOPs of each method
recompute.py    activation recomputation: bytes kept, and work repeated
"""

# ruff: noqa: F401  (the names of the package)
from lablib.plan.axis_by_axis import AxisStep, axis_by_axis
from lablib.plan.derating import IDEAL, Derating
from lablib.plan.parallel import Parallel
from lablib.plan.predict import predict
from lablib.plan.predict_many import predict_many
from lablib.plan.prediction import Prediction
from lablib.plan.predictions import Predictions
from lablib.plan.search import search
from lablib.plan.search_result import SearchResult
from lablib.plan.stack import STACKS, Stack
