"""What a run would cost, in closed form: step time, memory, communication; the best split; and how far off we are.

parallel.py                 how a model is split over ranks
optimizers.py               what an optimizer keeps, moves and computes
gradient_compression.py     what compressing gradients saves and costs
paper_*.py                  the formulas of the papers as printed, beside which ours are tested
"""

from lablib.plan.gradient_compression import GradientCompression, find_compression
from lablib.plan.optimizers import Optimizer, find_optimizer
from lablib.plan.parallel import Parallel

__all__ = ["Parallel", "Optimizer", "find_optimizer", "GradientCompression", "find_compression"]
