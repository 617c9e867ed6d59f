"""Cost of one operator of torch, from its tensors: FLOPs, bytes and seconds, by the formulas of lablib/cost.

op_bytes.py         the bytes that it moves
peaks.py            the peak that its dtype computes at
kernels.py          how many launches it is
op.py               one dispatched operator: the roofline over all of these
pricer.py           its price, looked up where it was asked before
fused_attention.py  attention as one operator, where torch's CPU build would take it apart
"""

from lablib.operators.op import OpCost, op_cost
from lablib.operators.pricer import Pricer

__all__ = ["OpCost", "Pricer", "op_cost"]
