"""Data parallelism, from naive to real.

naive          one all-reduce per gradient, after backward
bucketed       many gradients in one buffer: fewer all-reduces
overlapped     a bucket is sent while backward continues; no_sync for accumulation
hierarchical   average buckets within each node first
"""
