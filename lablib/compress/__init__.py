"""Fewer bytes between ranks: gradients and parameters compressed, one technique a file; the same on sim, gloo and NCCL.

Quantizers, each with the same methods (`Quantizer`):
    quantized      codes, scales, messages: what all of them share
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
    lossy_average                 what they share: a message, what it says, state for each bucket
    error_feedback                what was left out is added to the next step
    quantized_average             the quantized all-reduce, for error feedback
    top_k                         the largest gradients, with their places
    random_k                      gradients at places that all ranks draw alike
    powersgd                      two thin factors of each matrix
    one_bit                       signs and a scale, averaged in two phases
    one_bit_adam                  Adam whose momentum is sent by its signs; history

Fewer or later synchronizations:
    local_sgd                     parameters averaged every H steps
    diloco                        an outer optimizer on what H steps of AdamW did
    streaming_diloco              the same fragment by fragment, hidden behind training
    async_aggregation             gradients of s steps ago
"""

# ruff: noqa: I001  (in reading order)
from lablib.compress.quantized import Quantized as Quantized
from lablib.compress.quantized import Quantizer as Quantizer
from lablib.compress.int8 import Int8 as Int8
from lablib.compress.int4 import Int4 as Int4
from lablib.compress.asymmetric import Asymmetric as Asymmetric
from lablib.compress.fp8 import Fp8 as Fp8
from lablib.compress.rotated import Rotated as Rotated
from lablib.compress.stages import InTurn as InTurn
from lablib.compress.stages import Stages as Stages
from lablib.compress.quantized_all_gather import quantized_all_gather as quantized_all_gather
from lablib.compress.quantized_reduce_scatter import quantized_reduce_scatter as quantized_reduce_scatter
from lablib.compress.quantized_all_reduce import quantized_all_reduce as quantized_all_reduce
from lablib.compress.quantized_all_reduce import two_phase_bytes as two_phase_bytes
from lablib.compress.quantized_ring import error_growth as error_growth
from lablib.compress.quantized_ring import quantized_ring_all_reduce as quantized_ring_all_reduce
from lablib.compress.quantized_ring import ring_mean as ring_mean
from lablib.compress.quantized_ring import two_phase_mean as two_phase_mean
from lablib.compress.hierarchical_reduce_scatter import hierarchical_reduce_scatter as hierarchical_reduce_scatter
from lablib.compress.secondary_shards import SecondaryShards as SecondaryShards
from lablib.compress.zero_plus_plus import LevelBytes as LevelBytes
from lablib.compress.zero_plus_plus import Speedup as Speedup
from lablib.compress.zero_plus_plus import level_bytes as level_bytes
from lablib.compress.zero_plus_plus import zero3_bytes as zero3_bytes
from lablib.compress.zero_plus_plus import zero_plus_plus_options as zero_plus_plus_options
from lablib.compress.zero_plus_plus import zero_plus_plus_bytes as zero_plus_plus_bytes
from lablib.compress.zero_plus_plus import zero_plus_plus_speedup as zero_plus_plus_speedup
from lablib.compress.when_it_pays import CompressedStep as CompressedStep
from lablib.compress.when_it_pays import break_even_bandwidth as break_even_bandwidth
from lablib.compress.when_it_pays import compressed_step as compressed_step
from lablib.compress.when_it_pays import speedup_curves as speedup_curves
from lablib.compress.when_it_pays import speedup_of_compression as speedup_of_compression
from lablib.compress.comm_hook import comm_hook as comm_hook
from lablib.compress.lossy_average import Bucket as Bucket
from lablib.compress.lossy_average import LossyAverage as LossyAverage
from lablib.compress.error_feedback import ErrorFeedback as ErrorFeedback
from lablib.compress.quantized_average import QuantizedAverage as QuantizedAverage
from lablib.compress.top_k import TopK as TopK
from lablib.compress.top_k import top_k as top_k
from lablib.compress.random_k import RandomK as RandomK
from lablib.compress.powersgd import PowerSGD as PowerSGD
from lablib.compress.one_bit import OneBit as OneBit
from lablib.compress.one_bit import pack_signs as pack_signs
from lablib.compress.one_bit import unpack_signs as unpack_signs
from lablib.compress.one_bit_adam import OneBitAdam as OneBitAdam
from lablib.compress.one_bit_adam import variance_ratio as variance_ratio
from lablib.compress.local_sgd import LocalSGD as LocalSGD
from lablib.compress.diloco import DiLoCo as DiLoCo
from lablib.compress.streaming_diloco import StreamingDiLoCo as StreamingDiLoCo
from lablib.compress.streaming_diloco import layer_fragments as layer_fragments
from lablib.compress.async_aggregation import StaleAverage as StaleAverage
from lablib.compress.async_aggregation import largest_stable_rate as largest_stable_rate
