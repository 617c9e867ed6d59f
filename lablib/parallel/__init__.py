"""Techniques on many devices, one per file: plain torch.distributed, the same on the simulator, gloo and NCCL.

collectives   all-reduce by hand: ring, tree, hierarchical
data          data parallelism: naive, bucketed, overlapped, hierarchical
zero          ZeRO stages 1 to 3, offload, Muon on shards, checkpoints
tensor        tensor and sequence parallelism, vocabulary-parallel loss
context       context parallelism: ring, gather, Ulysses
experts       mixtures of experts over ranks
mesh          several of these at once: the mesh, the combined step, its checkpoints

Files of one name have one task in each package: `bytes` (bytes sent and stored), `parallelize` (a plain model made
parallel), `checkpoint`. Seconds and published comparisons are in lablib/studies.
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
