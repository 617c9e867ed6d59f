"""Simulated ranks: threads that take turns, each with the state of a process.

turns             exactly one rank runs; control passes where a rank must wait
watchdog          a wait outside torch.distributed that never ends
rank              the state of one rank
own_settings      its settings of Python and torch
by_thread         its standard streams and environment
signals           its signal handlers
copies            its copy of the arguments
threads           threads that a rank starts
program_position  phase and line of the operator that runs
"""
