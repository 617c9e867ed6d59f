"""Simulated ranks: threads that take turns, each with the state of a process.

turns             run one rank at a time; pass control when a rank must wait
ending            end a run: unwind the thread of every rank
watchdog          detect endless waits outside torch.distributed
rank              the state of one rank
own_settings      per-rank settings of Python and torch
by_thread         per-rank standard streams and environment
copies            per-rank copies of the arguments
threads           threads that a rank starts
program_position  phase and line of the current operator
"""
