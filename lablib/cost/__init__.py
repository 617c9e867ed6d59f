"""THE cost model: seconds and bytes of an operation and of a collective. The simulator's clock reads it.

op.py           one operation on one device: the roofline
network.py      the edges that the rounds of a collective travel over, for one group of ranks
collective.py   one collective on one group, by algorithm: alpha-beta
"""

from lablib.cost.collective import CollectiveCost, algorithms_for, collective_cost
from lablib.cost.network import GroupNetwork
from lablib.cost.op import OpCost, op_cost

__all__ = ["CollectiveCost", "GroupNetwork", "OpCost", "algorithms_for", "collective_cost", "op_cost"]
