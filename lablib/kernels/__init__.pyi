# ruff: noqa: I001  (in reading order)
from .elementwise_chain import (
    unfused_cost as unfused_cost,
    fused_cost as fused_cost,
    run_unfused as run_unfused,
    run_fused as run_fused,
    chain_time_s as chain_time_s,
    chain_timeline as chain_timeline,
)
from .tile_quantization import (
    Product as Product,
    waste as waste,
    staircase as staircase,
    advise as advise,
    swiglu_width as swiglu_width,
    pad_vocabulary as pad_vocabulary,
    head_width_waste as head_width_waste,
)
from .jit import jit as jit, Kernel as Kernel
from .accesses import (
    Kind as Kind,
    Program as Program,
    Operand as Operand,
    Access as Access,
    Launch as Launch,
    record_accesses as record_accesses,
    hbm_bytes as hbm_bytes,
    distinct_bytes as distinct_bytes,
)
from .vector_add import vector_add as vector_add
from .bias_gelu import bias_gelu as bias_gelu
from .softmax import softmax as softmax
from .rms_norm import rms_norm as rms_norm
from .layer_norm import layer_norm as layer_norm
from .cross_entropy import cross_entropy as cross_entropy
from .matmul import matmul as matmul
from .matmul_plan import (
    MatmulTiles as MatmulTiles,
    program_tiles as program_tiles,
    panels as panels,
)
from .attention_plan import (
    AttentionTiles as AttentionTiles,
    Tile as Tile,
    AttentionPlan as AttentionPlan,
    equal_lengths as equal_lengths,
)
from .flash_attention import flash_attention as flash_attention, flash_attention_varlen as flash_attention_varlen
from .attention_bytes import (
    standard_numbers as standard_numbers,
    paper_tiles as paper_tiles,
    paper_flash_numbers as paper_flash_numbers,
    forward_bytes as forward_bytes,
    forward_flops as forward_flops,
    backward_flops as backward_flops,
    visited_pairs as visited_pairs,
    kept_bytes as kept_bytes,
)
from .torch_compiler import (
    NoCppCompiler as NoCppCompiler,
    find_cpp_compiler as find_cpp_compiler,
    eager_operators as eager_operators,
)
from .graph_breaks import find_graph_breaks as find_graph_breaks
from .recompiles import find_recompiles as find_recompiles
from .compilers import count_kernels as count_kernels, compare as compare
from .launch_overhead import one_by_one as one_by_one, cuda_graph as cuda_graph, mega_kernel as mega_kernel
from .tile_choice import (
    AttentionKernel as AttentionKernel,
    attention_tiles as attention_tiles,
    matmul_tiles as matmul_tiles,
    attention_shared_bytes as attention_shared_bytes,
    matmul_shared_bytes as matmul_shared_bytes,
    attention_options as attention_options,
    matmul_options as matmul_options,
)
