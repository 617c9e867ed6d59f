"""Figures of single techniques, which widgets follow; those of one lab alone are in `lablib.labs`.

batch_splits       micro-batches of one global batch
compression_pays   when compression of gradients pays
idle_shares        a device that a loader feeds
tensor_times       a layer over tensor-parallel ranks
"""
