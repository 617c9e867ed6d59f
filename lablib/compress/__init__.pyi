# ruff: noqa: I001  (in reading order)
from .quantized import QuantizedMessage as QuantizedMessage, Quantizer as Quantizer
from .int8 import Int8 as Int8
from .int4 import Int4 as Int4
from .asymmetric import Asymmetric as Asymmetric
from .fp8 import Fp8 as Fp8
from .rotated import Rotated as Rotated
from .stages import InSequence as InSequence, Stages as Stages
from .quantized_all_gather import quantized_all_gather as quantized_all_gather
from .quantized_reduce_scatter import quantized_reduce_scatter as quantized_reduce_scatter
from .quantized_all_reduce import quantized_all_reduce as quantized_all_reduce, two_phase_bytes as two_phase_bytes
from .quantized_ring import (
    error_growth as error_growth,
    quantized_ring_all_reduce as quantized_ring_all_reduce,
    ring_mean as ring_mean,
    two_phase_mean as two_phase_mean,
)
from .hierarchical_reduce_scatter import hierarchical_reduce_scatter as hierarchical_reduce_scatter
from .secondary_shards import SecondaryShards as SecondaryShards
from .zero_plus_plus import (
    LevelBytes as LevelBytes,
    Speedup as Speedup,
    level_bytes as level_bytes,
    zero3_bytes as zero3_bytes,
    zero_plus_plus_options as zero_plus_plus_options,
    zero_plus_plus_bytes as zero_plus_plus_bytes,
    zero_plus_plus_speedup as zero_plus_plus_speedup,
)
from .comm_hook import comm_hook as comm_hook
from .lossy_average import Bucket as Bucket, LossyAverage as LossyAverage
from .error_feedback import ErrorFeedback as ErrorFeedback
from .quantized_average import QuantizedAverage as QuantizedAverage
from .top_k import TopK as TopK, top_k as top_k
from .random_k import RandomK as RandomK
from .powersgd import PowerSGD as PowerSGD
from .one_bit import OneBit as OneBit, pack_signs as pack_signs, unpack_signs as unpack_signs
from .one_bit_adam import OneBitAdam as OneBitAdam, variance_ratio as variance_ratio
from .local_sgd import LocalSGD as LocalSGD
from .diloco import DiLoCo as DiLoCo
from .streaming_diloco import StreamingDiLoCo as StreamingDiLoCo, layer_fragments as layer_fragments
from .async_aggregation import StaleAverage as StaleAverage
