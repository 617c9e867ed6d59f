"""Memory of one simulated rank.

memory_tracker  every storage of a rank, from its allocation to its death
storages        watch a storage until it dies
allocation_log  allocations in columns: begin, end, size
categories      parameter, gradient, optimizer state, activation, ...
collector       Python's garbage collector during a run
"""
