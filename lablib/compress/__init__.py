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
