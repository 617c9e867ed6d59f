"""Communication compression: fewer bytes between ranks, one technique per file; the same on sim, gloo and NCCL.

Quantizers, each with the same methods (`Quantizer`):
    quantized      codes, scales and messages
    int8           a byte a number, one scale a block
    int4           two codes in a byte
    asymmetric     from the least to the largest number, wherever zero is
    fp8            bytes that are floating-point numbers
    rotated        a Hadamard rotation first: outliers are spread

Quantized collectives:
    stages                        several communications behind one handle; buckets move on in turn
    quantized_all_gather          codes of shards to everybody (qwZ)
    quantized_reduce_scatter      codes of pieces to their owners: one rounding
    quantized_all_reduce          in two phases: two roundings
    quantized_ring                at every hop of a ring: n roundings, shown to be worse
    hierarchical_reduce_scatter   inside the node, then across (qgZ)
    secondary_shards              a copy on each node for backward's gather (hpZ)
    zero_plus_plus                bytes on each level, and when a quarter of them is twice the speed
    when_it_pays                  seconds saved on the wires against seconds of packing
    comm_hook                     any of them as torch DDP's communication hook

Messages that leave something out:
    lossy_average                 their common interface, with state for each bucket
    error_feedback                the omitted part is added to the next step
    quantized_average             the quantized all-reduce, for error feedback
    top_k                         the largest gradients, with their places
    random_k                      gradients at random places, the same on all ranks
    powersgd                      two thin factors of each matrix
    one_bit                       signs and a scale, averaged in two phases
    one_bit_adam                  Adam with momentum sent by its signs; history

Fewer or later synchronizations:
    local_sgd                     parameters averaged every H steps
    diloco                        an outer optimizer on what H steps of AdamW did
    streaming_diloco              the same fragment by fragment, hidden behind training
    async_aggregation             gradients of s steps ago
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
