"""Learn and predict large-model training with torch.distributed on a simulated cluster or processes.

launch      run a function on every rank and get a Run
calibrate   measure this machine, for predictions of its times
reconcile   compare a predicted and a measured run of a program
simulate_script  run a script written for torchrun on every rank of a simulated cluster
phase       name a part of the program, for the timeline
Run         values, timeline, memory, traffic, stdout
Summary     time of a run by rank: compute, communication, waiting, idle
faults      faults of a cluster: `launch(..., faults=[SlowRank(3, 2.0)])`
errors      errors of a launch
hardware    named clusters
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
