"""Techniques on many devices, one a file: plain torch.distributed, the same on the simulator, gloo and NCCL.

All-reduce by hand, three times with the same arguments:
    ring_all_reduce           chunks travel round a ring: least bytes
    tree_all_reduce           up a tree and down again: fewest messages
    hierarchical_all_reduce   inside each node first: least bytes between nodes
"""

# ruff: noqa: I001  (in reading order)
from lablib.parallel.ring_all_reduce import exchange as exchange
from lablib.parallel.ring_all_reduce import ring_all_gather as ring_all_gather
from lablib.parallel.ring_all_reduce import ring_all_reduce as ring_all_reduce
from lablib.parallel.ring_all_reduce import ring_reduce_scatter as ring_reduce_scatter
from lablib.parallel.tree_all_reduce import tree_all_reduce as tree_all_reduce
from lablib.parallel.hierarchical_all_reduce import hierarchical_all_reduce as hierarchical_all_reduce
