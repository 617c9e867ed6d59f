# ruff: noqa: I001  (in reading order)
from .collectives.ring import (
    exchange as exchange,
    ring_all_gather as ring_all_gather,
    ring_all_reduce as ring_all_reduce,
    ring_reduce_scatter as ring_reduce_scatter,
)
from .collectives.tree import tree_all_reduce as tree_all_reduce
from .collectives.hierarchical import hierarchical_all_reduce as hierarchical_all_reduce
from .data.naive import average_gradients as average_gradients, broadcast_module as broadcast_module
from .data.bucketed import average_gradients_in_buckets as average_gradients_in_buckets, plan_buckets as plan_buckets
from .data.overlapped import (
    DataParallel as DataParallel,
    all_reduce_average as all_reduce_average,
    all_reduce_sum as all_reduce_sum,
)
from .data.hierarchical import HierarchicalAverage as HierarchicalAverage, node_mesh as node_mesh
from .zero.shards import (
    AllGather as AllGather,
    FlatLayout as FlatLayout,
    FlatUnit as FlatUnit,
    ShardPiece as ShardPiece,
    ReduceScatter as ReduceScatter,
    all_gather_shards as all_gather_shards,
    reduce_scatter_average as reduce_scatter_average,
)
from .zero.stage1 import Zero1 as Zero1
from .zero.stage2 import Zero2 as Zero2
from .zero.stage3 import Zero3 as Zero3
from .zero.units import default_units as default_units
from .zero.hybrid import HybridReduceScatter as HybridReduceScatter
from .zero.module import Zero as Zero
from .zero.per_parameter import (
    LayoutCost as LayoutCost,
    compare_layouts as compare_layouts,
    padded_shard_numel as padded_shard_numel,
    rows_of as rows_of,
)
from .zero.bytes import (
    BF16 as BF16,
    FP32 as FP32,
    MIXED as MIXED,
    MIXED_FP32_GRADIENTS as MIXED_FP32_GRADIENTS,
    HeldBytes as HeldBytes,
    TrainingPrecision as TrainingPrecision,
    zero_bytes as zero_bytes,
    zero_sent_bytes as zero_sent_bytes,
)
from .zero.optimizers import (
    Sharded as Sharded,
    ShardedLAMB as ShardedLAMB,
    pieces_of as pieces_of,
    require_steps_on_shards as require_steps_on_shards,
    share_gradients as share_gradients,
)
from .zero.sharded_muon import OwnerMuon as OwnerMuon, ShardedMuon as ShardedMuon
from .zero.sharded_muon_cost import muon_cost as muon_cost
from .zero.offload import ZeroInfinity as ZeroInfinity, ZeroOffload as ZeroOffload, offload_time as offload_time
from .tensor.regions import (
    TENSOR as TENSOR,
    Entrance as Entrance,
    Region as Region,
    copy_to_ranks as copy_to_ranks,
    exchange_rows as exchange_rows,
    gather_from_ranks as gather_from_ranks,
    reduce_from_ranks as reduce_from_ranks,
    scatter_to_ranks as scatter_to_ranks,
    shard_of as shard_of,
    shard_range as shard_range,
)
from .tensor.linear import (
    ColumnLinear as ColumnLinear,
    RowLinear as RowLinear,
    column_linear as column_linear,
    gathered_linear as gathered_linear,
    row_linear as row_linear,
)
from .tensor.mlp import (
    MLPShard as MLPShard,
    naive_tensor_mlp as naive_tensor_mlp,
    shard_mlp as shard_mlp,
    tensor_mlp as tensor_mlp,
)
from .tensor.attention import (
    AttentionShard as AttentionShard,
    check_heads as check_heads,
    key_value_heads_of as key_value_heads_of,
    shard_attention as shard_attention,
    shared_key_value_group as shared_key_value_group,
    tensor_attention as tensor_attention,
)
from .tensor.sequence_parallel import (
    SEQUENCE as SEQUENCE,
    NormOnShards as NormOnShards,
    PositionsOnShards as PositionsOnShards,
    gather_sequence as gather_sequence,
    own_tokens as own_tokens,
    scatter_sequence as scatter_sequence,
)
from .tensor.overlap import (
    OverlappedColumnLinear as OverlappedColumnLinear,
    overlapped_backward_s as overlapped_backward_s,
    overlapped_columns as overlapped_columns,
)
from .tensor.asynchronous import (
    async_mlp as async_mlp,
    chunked_product_s as chunked_product_s,
    exposed_chunks_s as exposed_chunks_s,
    gather_linear as gather_linear,
    linear_scatter as linear_scatter,
)
from .tensor.vocabulary import (
    VocabularyEmbedding as VocabularyEmbedding,
    VocabularyHead as VocabularyHead,
    gathered_loss as gathered_loss,
    padded_vocabulary as padded_vocabulary,
    shard_vocabulary as shard_vocabulary,
    vocabulary_embedding as vocabulary_embedding,
    vocabulary_parallel_loss as vocabulary_parallel_loss,
    vocabulary_parallel_summed_loss as vocabulary_parallel_summed_loss,
)
from .tensor.plan import (
    GPT_PLAN as GPT_PLAN,
    GPT_SEQUENCE_PLAN as GPT_SEQUENCE_PLAN,
    LLAMA_PLAN as LLAMA_PLAN,
    LLAMA_SEQUENCE_PLAN as LLAMA_SEQUENCE_PLAN,
    Column as Column,
    OfExperts as OfExperts,
    OnTokens as OnTokens,
    Row as Row,
    SharedInput as SharedInput,
    Vocabulary as Vocabulary,
    check_plan as check_plan,
)
from .tensor.parallelize import parallelize as parallelize
from .tensor.state import (
    full_gradients as full_gradients,
    full_parameters as full_parameters,
    gradient_norm as gradient_norm,
)
from .tensor.random import (
    TensorGenerators as TensorGenerators,
    dropout as dropout,
    naive_sharded_normal as naive_sharded_normal,
    sharded_normal as sharded_normal,
    whole_normal as whole_normal,
    wrong_draws as wrong_draws,
)
from .tensor.bytes import (
    Kept as Kept,
    LayerSizes as LayerSizes,
    fewest_tokens_for_2d as fewest_tokens_for_2d,
    kept_by_layer as kept_by_layer,
    kept_bytes as kept_bytes,
    layer_sent_bytes as layer_sent_bytes,
    two_dimensional_sent_bytes as two_dimensional_sent_bytes,
)
from .context.order import (
    ORDERS as ORDERS,
    Documents as Documents,
    Order as Order,
    attention_flops as attention_flops,
    balance as balance,
    contiguous_order as contiguous_order,
    document_spans as document_spans,
    order_of as order_of,
    striped_order as striped_order,
    visible_pairs as visible_pairs,
    zigzag_order as zigzag_order,
)
from .context.blocks import AttentionBlock as AttentionBlock, blocks_of as blocks_of
from .context.merge import (
    FUSED as FUSED,
    PRODUCTS as PRODUCTS,
    PartialAttention as PartialAttention,
    BlockPasses as BlockPasses,
    attention_in_blocks as attention_in_blocks,
    merge_attention as merge_attention,
)
from .context.ring import ring_attention as ring_attention
from .context.gather import gathered_attention as gathered_attention, gather_tokens as gather_tokens
from .context.ulysses import (
    ulysses_attention as ulysses_attention,
    heads_of_all_tokens as heads_of_all_tokens,
    tokens_of_all_heads as tokens_of_all_heads,
)
from .context.ulysses_and_ring import (
    ulysses_ring_attention as ulysses_ring_attention,
    nested_order as nested_order,
    UlyssesRing as UlyssesRing,
)
from .context.model import ContextParallel as ContextParallel, check_context as check_context
from .mesh.mesh import Mesh as Mesh
from .mesh.check import Combination as Combination
from .mesh.part import ModelPart as ModelPart
from .mesh.optimizer import CombinedOptimizer as CombinedOptimizer
from .mesh.step import CombinedStep as CombinedStep, Stepped as Stepped
from .context.bytes import (
    ContextSizes as ContextSizes,
    context_sent_bytes as context_sent_bytes,
)
from .experts.routing import (
    Routing as Routing,
    check_choices as check_choices,
    route as route,
    sigmoid_gates as sigmoid_gates,
    softmax_gates as softmax_gates,
)
from .experts.losses import (
    Load as Load,
    balancing_loss as balancing_loss,
    group_load as group_load,
    own_load as own_load,
    router_z_loss as router_z_loss,
    update_bias_ as update_bias_,
)
from .experts.dispatch import (
    LATEST as LATEST,
    SCORE as SCORE,
    Drop as Drop,
    Permutation as Permutation,
    combine as combine,
    dispatch as dispatch,
    expert_capacity as expert_capacity,
    naive_combine as naive_combine,
    naive_dispatch as naive_dispatch,
    naive_masks as naive_masks,
    sort_by_expert as sort_by_expert,
)
from .experts.products import (
    grouped_product as grouped_product,
    loop_product as loop_product,
    padded_product as padded_product,
)
from .experts.layer import (
    ExpertMLPs as ExpertMLPs,
    MixtureConfig as MixtureConfig,
    MixtureOfExperts as MixtureOfExperts,
    mixtures as mixtures,
    with_experts as with_experts,
)
from .experts.exchange import (
    RowExchange as RowExchange,
    check_experts as check_experts,
    exchange_counts as exchange_counts,
    from_experts as from_experts,
    to_experts as to_experts,
)
from .experts.parallel import expert_parallel as expert_parallel, naive_expert_parallel as naive_expert_parallel
from .experts.parallelize import ExpertParallel as ExpertParallel, ExpertShards as ExpertShards
from .experts.gradients import (
    ExpertReduce as ExpertReduce,
    average_expert_gradients as average_expert_gradients,
    expert_parameters as expert_parameters,
)
from .experts.depth import (
    MixtureOfDepths as MixtureOfDepths,
    choose_tokens as choose_tokens,
    with_depths as with_depths,
)
from .experts.bytes import (
    ExpertRanks as ExpertRanks,
    ExpertSizes as ExpertSizes,
    expert_kept_bytes as expert_kept_bytes,
    expert_sent_bytes as expert_sent_bytes,
    expert_weights as expert_weights,
)
from .experts.overlap import overlap_experts as overlap_experts
from .experts.balance import (
    ExpertPlacement as ExpertPlacement,
    least_possible_load as least_possible_load,
    place_balanced as place_balanced,
    place_in_order as place_in_order,
)
