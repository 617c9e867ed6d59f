"""Measurement of a real rank: torch's profiler and recorded communication calls, as spans and traffic.

measure     one program under the profiler
profiler    the profiler of a rank, and the kernels that start its sessions
calls       every communication call: operation, group, bytes; matched to profiler events
volume      bytes of a call, from its arguments
events      the profiler's events, by thread, and spans made of them
labels      `record_function` blocks
trace_file  a trace that torch.profiler wrote, as events; trace_calls: its communication calls
spans       the spans of a timeline
traffic     communications of the run, matched from the calls of each rank
"""
