"""Memory accounting of one simulated rank.

memory_tracker  every storage of a rank, from its allocation to its release
storages        callback on the release of a storage
allocation_log  allocations in columns: begin, end, size
categories      parameter, gradient, optimizer state, activation, ...
collector       Python's garbage collector during a run
"""
