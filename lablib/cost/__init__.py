"""Cost model: seconds and bytes of operations and collectives, for the simulator and the planner.

Closed forms in sizes (numbers or numpy arrays), without torch. Costs of torch's operators: lablib/operators.

One operation on one device:

arrays.py       minimum and rounding up, for numbers and arrays
precision.py    bytes per number
memory.py       operations limited by memory
elements.py     functions computed element by element, on a CPU
efficiency.py   GPU operators limited by memory, by kind, as measured
matmul.py       a matrix product: tiles, waves and depth
attention.py    attention, fused (flash) or unfused

One collective on one group of ranks:

network.py      the edges of the rounds of a collective
collective.py   one collective, by algorithm: alpha-beta
exchange.py     an all-to-all with messages of different sizes
nvls.py         an all-reduce with sums in the switch
library.py      a library without a choice of algorithms: gloo
routes.py       bytes from each rank to each other rank
regular_rounds.py  the edges of a mesh's groups, by formulas
regular_group.py   collectives of a mesh's groups, for many plans at once
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
