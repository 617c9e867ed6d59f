"""Learn and predict large-model training: plain torch.distributed programs on a simulated cluster or on real processes.

launch      run a function on every rank and get a Run
calibrate   measure this machine, for predictions that hold here
reconcile   run it predicted and measured: where they differ
simulate_script  run a script written for torchrun on every rank of a simulated cluster
phase       name what the program is doing, for the timeline
Run         values, timeline, memory, traffic, stdout
Summary     where the time of a run went, rank by rank
faults      what can go wrong on a cluster: `launch(..., faults=[SlowRank(3, 2.0)])`
errors      how a launch can fail
hardware    the clusters that have a name
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
