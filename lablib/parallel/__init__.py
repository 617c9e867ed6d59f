"""Techniques on many devices, one per file, in plain torch.distributed for the simulator, gloo and NCCL.

collectives   all-reduce by hand: ring, tree, hierarchical
data          data parallelism: naive, bucketed, overlapped, hierarchical
zero          ZeRO stages 1 to 3, offload, Muon on shards, checkpoints
tensor        tensor and sequence parallelism, vocabulary-parallel loss
context       context parallelism: ring, gather, Ulysses
experts       mixtures of experts over ranks
mesh          combinations of these: the mesh, the combined step, its checkpoints

Files with the same name have the same purpose in each package: `bytes` (bytes sent and stored), `parallelize` (make a
plain model parallel), `checkpoint`. Seconds and published comparisons are in lablib/studies.
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
