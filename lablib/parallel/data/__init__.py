"""Data parallelism, from naive to real.

naive          one all-reduce per gradient, after backward
bucketed       many gradients in one buffer: fewer all-reduces
overlapped     a bucket is sent while backward goes on; no_sync for accumulation
hierarchical   buckets averaged within each node first
"""
