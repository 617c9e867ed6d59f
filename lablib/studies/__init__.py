"""Studies: comparisons, published tables and recorded runs for labs. No technique imports one.

data_parallel_scaling                           seconds and efficiency of data parallelism
zero_latency                                    stage 3 on a thousand ranks
layer_cost                                      cost of a layer by technique, simulated
step_memory, step_outline                       memory of a training step: whether it fits, and where it peaks
tensor_time                                     seconds of a tensor-parallel layer
published_five                                  five published runs, the planner and a naive estimate
context_cost, context_published                 seconds of attention over ranks; published runs
expert_cost, expert_against_dense               seconds of a mixture; next to dense models
expert_runs                                     recorded runs of routers
placement, placement_bytes                      orders of a mesh's axes, and bytes on each level of the network
strategy_choice                                 efficiency, memory and traffic of each kind of parallelism
batches, optimizers, compression, precision     recorded runs of a small GPT
optimizer_experiment, optimizer_trial, optimizer_search, optimizer_choice
                                                method of the optimizers' runs, and a choice by memory
faulty_script                                   a training script with eight faults, and the measurements that show them
thresholds                                      circulating thresholds for runs, recomputed by the planner
compression_pays                                seconds saved on the network against seconds of packing
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
