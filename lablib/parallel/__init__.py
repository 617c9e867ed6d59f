"""Techniques on many devices, one a file: plain torch.distributed, the same on the simulator, gloo and NCCL.

All-reduce by hand, three times with the same arguments:
    ring_all_reduce           chunks travel round a ring: least bytes
    tree_all_reduce           up a tree and down again: fewest messages
    hierarchical_all_reduce   inside each node first: least bytes between nodes

Data parallel, from naive to real:
    naive_data_parallel       after backward, one all-reduce for each gradient
    bucketed_data_parallel    many gradients in one buffer: fewer all-reduces
    data_parallel             a bucket leaves while backward goes on; no_sync for accumulation
    hierarchical_aggregation  buckets averaged inside each node first
    data_parallel_scaling     the seconds and the efficiency of all that, predicted
"""

# ruff: noqa: I001  (in reading order)
from lablib.parallel.ring_all_reduce import exchange as exchange
from lablib.parallel.ring_all_reduce import ring_all_gather as ring_all_gather
from lablib.parallel.ring_all_reduce import ring_all_reduce as ring_all_reduce
from lablib.parallel.ring_all_reduce import ring_reduce_scatter as ring_reduce_scatter
from lablib.parallel.tree_all_reduce import tree_all_reduce as tree_all_reduce
from lablib.parallel.hierarchical_all_reduce import hierarchical_all_reduce as hierarchical_all_reduce
from lablib.parallel.naive_data_parallel import average_gradients as average_gradients
from lablib.parallel.naive_data_parallel import broadcast_module as broadcast_module
from lablib.parallel.bucketed_data_parallel import average_gradients_in_buckets as average_gradients_in_buckets
from lablib.parallel.bucketed_data_parallel import plan_buckets as plan_buckets
from lablib.parallel.data_parallel import DataParallel as DataParallel
from lablib.parallel.data_parallel import all_reduce_average as all_reduce_average
from lablib.parallel.hierarchical_aggregation import HierarchicalAverage as HierarchicalAverage
from lablib.parallel.hierarchical_aggregation import node_mesh as node_mesh
from lablib.parallel.data_parallel_scaling import StepProfile as StepProfile
from lablib.parallel.data_parallel_scaling import StepTime as StepTime
from lablib.parallel.data_parallel_scaling import predict_step as predict_step
from lablib.parallel.data_parallel_scaling import profile_step as profile_step
from lablib.parallel.data_parallel_scaling import scaling_efficiency as scaling_efficiency
