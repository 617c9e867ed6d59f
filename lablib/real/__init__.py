"""Real processes: gloo (CPU) or NCCL (GPUs), with the same records as the simulator.

launch.py          the entry point
workers/           worker processes, and the transport of programs to them
measurement/       profiler events and calls, as spans and traffic
gpu/               ranks on GPUs
groups.py          process groups of a warm worker
frames.py          stacks without the launcher's frames
profile.py         a run from traces of torch.profiler
nodes.py           a script on several nodes, under torchrun
"""

from lablib.real.launch import run_real

__all__ = ["run_real"]
