"""Cost of a torch operator from its tensors: FLOPs, bytes and seconds, by lablib/cost.

op_bytes.py         bytes that it moves
peaks.py            peak FLOP/s of its dtype
kernels.py          number of kernel launches
op.py               one dispatched operator: the roofline over all of these
mode.py             base of the modes that see every operator
pricer.py           cache of prices
fused_attention.py  attention as one operator on device "meta"
"""

from lablib.operators.op import OpCost, op_cost
from lablib.operators.pricer import Pricer

__all__ = ["OpCost", "Pricer", "op_cost"]
