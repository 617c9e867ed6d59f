"""The planner: step time, memory and communication of a run in closed form, and the search for the best split.

parallel.py     how a model is split over ranks
stack.py        the software a run is made with
derating.py     what real machines lose and the simulator does not
machine.py      what pieces of a step take on one rank
order.py        which axis has neighbouring ranks; any order of them, priced
layer/          one transformer layer: its passes, and what it keeps
embedding_and_head.py   embedding, head and loss
eager/          all of a step operator by operator, as eager torch runs it
parameters_per_rank.py  parameters on one rank
pieces.py       what plans share, worked out once
default_stack.py        the software that is taken where none is named
setup.py        the choices and the numbers of a plan, or of many: one record for all formulas
data_axis.py    what ranks with other sequences tell each other, and how much of it shows
optimizer_step.py       the update of the parameters
step.py         one step as a sum
memory.py       what each stage keeps at its peak
prediction.py   what a prediction says
rules.py        which splits are possible
arguments.py    the checks of the arguments, and the setup that they describe
predict.py      the prediction of one plan
predict_many.py the same for a million plans
predictions.py  what it says of them
search_grid.py  all plans there are
search.py       all of them predicted
search_result.py        the best of them, and why not the others
axis_by_axis.py from one GPU that does not hold the model to a plan, each axis with its reason

optimizers.py, gradient_compression.py     what they keep, move and compute
recompute.py    activation recomputation: tensors kept, and work done twice
"""

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

__all__ = [
    "IDEAL",
    "STACKS",
    "AxisStep",
    "Derating",
    "Parallel",
    "Prediction",
    "Predictions",
    "SearchResult",
    "Stack",
    "axis_by_axis",
    "predict",
    "predict_many",
    "search",
]
