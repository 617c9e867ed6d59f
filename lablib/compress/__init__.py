"""Communication compression: fewer bytes between ranks, one technique per file, on sim, gloo and NCCL.

Quantizers, each with the same methods (`Quantizer`):
    quantized      codes, scales and messages
    int8           a byte per number, one scale per block
    int4           two codes in a byte
    asymmetric     codes from the minimum to the maximum of a block
    fp8            bytes that are floating-point numbers
    rotated        a Hadamard rotation first, to spread outliers

Quantized collectives:
    stages                        several communications behind one handle; buckets advance in turn
    quantized_all_gather          codes of shards to all ranks (qwZ)
    quantized_reduce_scatter      codes of pieces to their owners: one rounding
    quantized_all_reduce          in two phases: two roundings
    quantized_ring                at every hop of a ring: n roundings, with a larger error
    hierarchical_reduce_scatter   inside the node, then across (qgZ)
    secondary_shards              a copy on each node for backward's gather (hpZ)
    zero_plus_plus                bytes on each level, and the speedup
    comm_hook                     any of them as torch DDP's communication hook

Lossy messages:
    lossy_average                 their common interface, with state for each bucket
    error_feedback                the omitted part is added to the next step
    quantized_average             the quantized all-reduce, for error feedback
    top_k                         the largest gradients, with their indices
    random_k                      gradients at random indices, the same on all ranks
    powersgd                      two thin factors of each matrix
    one_bit                       signs and a scale, averaged in two phases
    one_bit_adam                  Adam with momentum sent by its signs; history

Fewer or later synchronizations:
    local_sgd                     parameters averaged every H steps
    diloco                        an outer optimizer on the change of H steps of AdamW
    streaming_diloco              DiLoCo by fragments, overlapped with training
    async_aggregation             gradients of s steps ago
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
