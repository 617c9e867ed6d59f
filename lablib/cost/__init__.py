"""The cost model: seconds and bytes of an operation and of a collective, for the simulator's clock and the planner.

Closed forms in sizes (numbers or numpy arrays), without torch; what an operator of torch costs: lablib/operators.

One operation on one device:

arrays.py       minimum and rounding up, for numbers and arrays alike
precision.py    the bytes of a number
memory.py       operations limited by memory
elements.py     functions computed element by element, on a CPU
efficiency.py   GPU operators limited by memory, by kind, as measured
matmul.py       a matrix product: tiles, waves and depth
attention.py    attention, fused (flash) or unfused

One collective on one group of ranks:

network.py      the edges that the rounds of a collective travel over
collective.py   one collective, by algorithm: alpha-beta
exchange.py     an all-to-all whose messages differ in size
nvls.py         an all-reduce whose sums the switch makes
library.py      what a library does that has no choice of algorithms: gloo
routes.py       who sends how much to whom in it
regular_rounds.py  the edges of a mesh's groups, by formulas
regular_group.py   collectives of a mesh's groups, for many plans at once
"""

from lablib.cost.attention import attention_time_s
from lablib.cost.collective import CollectiveCost, algorithms_for, collective_cost
from lablib.cost.exchange import exchange_cost
from lablib.cost.matmul import matmul_flops, matmul_time_s
from lablib.cost.memory import memory_bound_time_s
from lablib.cost.network import GroupNetwork
from lablib.cost.regular_group import regular_collective_s, regular_sent_bytes

__all__ = [
    "CollectiveCost",
    "GroupNetwork",
    "algorithms_for",
    "attention_time_s",
    "collective_cost",
    "exchange_cost",
    "matmul_flops",
    "matmul_time_s",
    "memory_bound_time_s",
    "regular_collective_s",
    "regular_sent_bytes",
]
