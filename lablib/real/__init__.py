"""Real processes: the same program on gloo (CPU) or NCCL (GPUs), measured into the same records as the simulator's.

In reading order:

    launch                                      the entry point
    shipping, pickling, messages                how a function and its values travel
    pools, pool, processes, channel             warm workers, as the launching process sees them
    worker, groups, fresh, capture              one rank
    calls, volume, measure, events, spans,
    traffic                                     what is measured
    nodes, plain                                a script on several nodes, under torchrun
    failure, frames, gpus                       what went wrong, and where; what NCCL needs
"""

from lablib.real.launch import run_real

__all__ = ["run_real"]
