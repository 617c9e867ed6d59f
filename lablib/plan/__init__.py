"""What a run would cost, in closed form: step time, memory, communication; the best split; and how far off we are.

parallel.py     how a model is split over ranks
"""

from lablib.plan.parallel import Parallel

__all__ = ["Parallel"]
