"""Techniques on many devices, one a file: plain torch.distributed, the same on the simulator, gloo and NCCL.

All-reduce by hand, three times with the same arguments:
    ring_all_reduce           chunks travel round a ring: least bytes
    tree_all_reduce           up a tree and down again: fewest messages
    hierarchical_all_reduce   inside each node first: least bytes between nodes

Data parallel, from naive to real:
    naive_data_parallel       after backward, one all-reduce for each gradient
    bucketed_data_parallel    many gradients in one buffer: fewer all-reduces
    data_parallel             a bucket leaves while backward goes on; no_sync for accumulation
    hierarchical_aggregation  buckets averaged inside each node first
    data_parallel_scaling     the seconds and the efficiency of all that, predicted

ZeRO, stage by stage:
    zero_shards               parameters as one flat buffer, cut into a shard for each rank
    zero1                     the optimizer's state is sharded
    zero2                     ... and the gradients
    zero3                     ... and the parameters: gathered for each unit, and prefetched
    zero3_units               what is gathered together, and marks in the graph that tell when
    zero_hybrid               shards within a node, replicas across nodes
    zero                      the module and its optimizer, with any of these
    zero_per_parameter        each parameter cut by its rows, as FSDP2 does, beside the flat buffer
    zero_bytes                what each stage holds and sends, to the byte
    zero_claims               claims that go round, and for which ranks and precision each is true
    zero_latency              stage 3 on a thousand ranks: gathers by parameter, layer or model; the smallest batch
    zero3_published           stage 3 beside Megatron's three axes, as published and as predicted
    sharded_optimizers        which optimizers step flat shards, and what the others have to be told
    sharded_muon              Muon by owners, by gathering, and by exchanging whole matrices
    sharded_muon_cost         bytes and FLOPs of the three
    zero_offload              optimizer state, or everything, in the host's memory
    checkpoint_files          entries, a description and checksums of both: what all checkpoints here have in common
    zero_checkpoint           saved at one stage on some ranks, loaded at another on others; slow to import, so not here

Tensor parallel: every rank computes all tokens with a shard of each matrix:
    tensor_regions            Megatron's f and g, and how a dimension is cut
    tensor_linear             one matrix by columns or by rows
    tensor_mlp                columns, then rows: an MLP with one all-reduce each way
    tensor_attention          heads; grouped queries with fewer key-value heads than ranks
    sequence_parallel         all-gather and reduce-scatter in the place of f and g; norms on this rank's tokens
    tensor_overlap            backward's communication beside the gradient of the weight
    tensor_async              product and collective in chunks, each beside the other
    tensor_vocabulary         embedding, head and loss by words: the logits are never gathered
    tensor_plan               which module is cut how, as data; what is wrong with a plan
    tensor_parallelize        a plain model cut by a plan
    tensor_state              parameters, gradients and their norm of a model that is cut
    tensor_random             which random numbers must agree over ranks, and which must not
    tensor_bytes              what a layer sends and keeps, to the byte; when two dimensions send less
    tensor_time               seconds of a layer, and the communication that nothing hides

Context parallel: every rank has all weights and some of the tokens of every sequence:
    context_order             contiguous, zigzag, striped: who has which tokens, and how much that is to compute
    context_blocks            which kernel calls a causal mask, and documents, leave of some queries and keys
    context_merge             attention over some of the keys, and parts merged by their log-sum-exp
    context_ring              keys and values pass by, round by round, beside the attention to them
    context_gather            keys and values of all ranks gathered first
    context_ulysses           heads for tokens by an all-to-all, and back
    context_both              Ulysses inside the ring
    context_parallel          a plain GPT whose sequences are shared by ranks
    context_bytes             what each way sends and keeps, to the byte
    context_prices            what the kernels of shared attention take on one rank
    context_time              seconds of each way, what nothing hides, and where each wins
    context_published         a published table of three rings beside what is predicted

Experts: every token is seen by few of many MLPs, which are spread over ranks:
    expert_routing            which experts see a token, and the weight of what each says
    expert_losses             auxiliary loss, z-loss and the bias without a loss, over the tokens of all ranks
    expert_dispatch           tokens to the rows of their experts and back: by masks, then sorted; capacity, dropless
    expert_products           rows of each expert times its matrix: a loop, padded, one grouped kernel
    expert_layer              a mixture in the place of an MLP, and a plain GPT with mixtures
    expert_exchange           tokens to the ranks of their experts and back: counts, then rows
    expert_parallel           experts spread over ranks: slots for all, then as many rows as there are
    expert_parallelize        the experts of a plain model spread; beside tensor parallelism, cut or whole
    expert_gradients          which gradients are averaged over which ranks
    expert_depth              a block that sees only some tokens, on the same dispatch
    expert_runs               how busy each expert was over recorded training runs; reads text, so not here
    expert_bytes              what a mixture sends and keeps, to the byte
    expert_prices             what the kernels of a mixture take on one rank
    expert_time               seconds of a mixture: products of few rows, moves of rows, tokens on their way
    expert_overlap            tokens in parts: one's all-to-all beside another's experts, and shared experts beside it
    expert_overlap_time       its seconds, and what nothing hides
    expert_balance            which expert lies where, and which in several copies, so that the busiest rank has least
    expert_best               the best there is, by trying all
    expert_rebalance          placed anew during a run, from the loads seen so far
    expert_against_dense      a mixture beside dense models of as many FLOPs or parameters, over numbers of GPUs
    expert_published          two published comparisons beside what is predicted

Several kinds at once:
    mesh                      named axes over ranks, the groups along them, and the order of axes as placement
    combined_check            a combination of axes as data, and what is wrong with one before any rank starts
    combined_part             this rank's layers, tokens and rows of a plain GPT
    combined_optimizer        ZeRO-1 over the ranks with the same part; the norm of a gradient that lies on every axis
    combined_step             a whole step on a mesh: all of these, mixed precision and clipping
    combined_checkpoint       saved on one mesh, loaded on another; slow to import, so not here
    placement                 every order of the axes priced: seconds of a step, bytes by level, and who waits
    placement_bytes           what a step sends on each axis: inside nodes, along rails, across rails
    strategies                a table that goes round, computed anew: efficiency, memory saved, bytes
"""

# ruff: noqa: I001  (in reading order)
from lablib.parallel.ring_all_reduce import exchange as exchange
from lablib.parallel.ring_all_reduce import ring_all_gather as ring_all_gather
from lablib.parallel.ring_all_reduce import ring_all_reduce as ring_all_reduce
from lablib.parallel.ring_all_reduce import ring_reduce_scatter as ring_reduce_scatter
from lablib.parallel.tree_all_reduce import tree_all_reduce as tree_all_reduce
from lablib.parallel.hierarchical_all_reduce import hierarchical_all_reduce as hierarchical_all_reduce
from lablib.parallel.naive_data_parallel import average_gradients as average_gradients
from lablib.parallel.naive_data_parallel import broadcast_module as broadcast_module
from lablib.parallel.bucketed_data_parallel import average_gradients_in_buckets as average_gradients_in_buckets
from lablib.parallel.bucketed_data_parallel import plan_buckets as plan_buckets
from lablib.parallel.data_parallel import DataParallel as DataParallel
from lablib.parallel.data_parallel import all_reduce_average as all_reduce_average
from lablib.parallel.hierarchical_aggregation import HierarchicalAverage as HierarchicalAverage
from lablib.parallel.hierarchical_aggregation import node_mesh as node_mesh
from lablib.parallel.data_parallel_scaling import StepProfile as StepProfile
from lablib.parallel.data_parallel_scaling import StepTime as StepTime
from lablib.parallel.data_parallel_scaling import predict_step as predict_step
from lablib.parallel.data_parallel_scaling import profile_step as profile_step
from lablib.parallel.data_parallel_scaling import scaling_efficiency as scaling_efficiency
from lablib.parallel.zero_shards import AllGather as AllGather
from lablib.parallel.zero_shards import FlatLayout as FlatLayout
from lablib.parallel.zero_shards import FlatUnit as FlatUnit
from lablib.parallel.zero_shards import Piece as Piece
from lablib.parallel.zero_shards import ReduceScatter as ReduceScatter
from lablib.parallel.zero_shards import all_gather_shards as all_gather_shards
from lablib.parallel.zero_shards import reduce_scatter_average as reduce_scatter_average
from lablib.parallel.zero1 import Zero1 as Zero1
from lablib.parallel.zero2 import Zero2 as Zero2
from lablib.parallel.zero3 import Zero3 as Zero3
from lablib.parallel.zero3_units import default_units as default_units
from lablib.parallel.zero_hybrid import HybridReduceScatter as HybridReduceScatter
from lablib.parallel.zero import Zero as Zero
from lablib.parallel.zero_per_parameter import LayoutCost as LayoutCost
from lablib.parallel.zero_per_parameter import compare_layouts as compare_layouts
from lablib.parallel.zero_per_parameter import gather_by_parameter as gather_by_parameter
from lablib.parallel.zero_per_parameter import padded_shard_numel as padded_shard_numel
from lablib.parallel.zero_per_parameter import reduce_scatter_by_parameter as reduce_scatter_by_parameter
from lablib.parallel.zero_per_parameter import rows_of as rows_of
from lablib.parallel.zero_per_parameter import shard_rows as shard_rows
from lablib.parallel.zero_bytes import BF16 as BF16
from lablib.parallel.zero_bytes import FP32 as FP32
from lablib.parallel.zero_bytes import MIXED as MIXED
from lablib.parallel.zero_bytes import MIXED_FP32_GRADIENTS as MIXED_FP32_GRADIENTS
from lablib.parallel.zero_bytes import HeldBytes as HeldBytes
from lablib.parallel.zero_bytes import TrainingPrecision as TrainingPrecision
from lablib.parallel.zero_bytes import zero_bytes as zero_bytes
from lablib.parallel.zero_bytes import zero_sent_bytes as zero_sent_bytes
from lablib.parallel.zero_claims import Claim as Claim
from lablib.parallel.zero_claims import bytes_a_rank as bytes_a_rank
from lablib.parallel.zero_claims import claims as claims
from lablib.parallel.zero_claims import largest_model as largest_model
from lablib.parallel.zero_claims import ranks_for_saving as ranks_for_saving
from lablib.parallel.zero_claims import ranks_to_fit as ranks_to_fit
from lablib.parallel.zero_claims import readings as readings
from lablib.parallel.zero_latency import Zero3Time as Zero3Time
from lablib.parallel.zero_latency import smallest_batch as smallest_batch
from lablib.parallel.zero_latency import unit_params as unit_params
from lablib.parallel.zero_latency import zero3_time as zero3_time
from lablib.parallel.zero3_published import compared as compared
from lablib.parallel.sharded_optimizers import Sharded as Sharded
from lablib.parallel.sharded_optimizers import ShardedLAMB as ShardedLAMB
from lablib.parallel.sharded_optimizers import pieces_of as pieces_of
from lablib.parallel.sharded_optimizers import require_steps_on_shards as require_steps_on_shards
from lablib.parallel.sharded_optimizers import share_gradients as share_gradients
from lablib.parallel.sharded_muon import OwnerMuon as OwnerMuon
from lablib.parallel.sharded_muon import ShardedMuon as ShardedMuon
from lablib.parallel.sharded_muon_cost import muon_cost as muon_cost
from lablib.parallel.zero_offload import ZeroInfinity as ZeroInfinity
from lablib.parallel.zero_offload import ZeroOffload as ZeroOffload
from lablib.parallel.zero_offload import offload_time as offload_time
from lablib.parallel.tensor_regions import TENSOR as TENSOR
from lablib.parallel.tensor_regions import Entrance as Entrance
from lablib.parallel.tensor_regions import Region as Region
from lablib.parallel.tensor_regions import copy_to_ranks as copy_to_ranks
from lablib.parallel.tensor_regions import gather_from_ranks as gather_from_ranks
from lablib.parallel.tensor_regions import reduce_from_ranks as reduce_from_ranks
from lablib.parallel.tensor_regions import scatter_to_ranks as scatter_to_ranks
from lablib.parallel.tensor_regions import shard_of as shard_of
from lablib.parallel.tensor_regions import shard_range as shard_range
from lablib.parallel.tensor_linear import ColumnLinear as ColumnLinear
from lablib.parallel.tensor_linear import RowLinear as RowLinear
from lablib.parallel.tensor_linear import column_linear as column_linear
from lablib.parallel.tensor_linear import gathered_linear as gathered_linear
from lablib.parallel.tensor_linear import row_linear as row_linear
from lablib.parallel.tensor_mlp import MLPShard as MLPShard
from lablib.parallel.tensor_mlp import naive_tensor_mlp as naive_tensor_mlp
from lablib.parallel.tensor_mlp import shard_mlp as shard_mlp
from lablib.parallel.tensor_mlp import tensor_mlp as tensor_mlp
from lablib.parallel.tensor_attention import AttentionShard as AttentionShard
from lablib.parallel.tensor_attention import check_heads as check_heads
from lablib.parallel.tensor_attention import key_value_heads_of as key_value_heads_of
from lablib.parallel.tensor_attention import shard_attention as shard_attention
from lablib.parallel.tensor_attention import shared_key_value_group as shared_key_value_group
from lablib.parallel.tensor_attention import tensor_attention as tensor_attention
from lablib.parallel.sequence_parallel import SEQUENCE as SEQUENCE
from lablib.parallel.sequence_parallel import NormOnShards as NormOnShards
from lablib.parallel.sequence_parallel import PositionsOnShards as PositionsOnShards
from lablib.parallel.sequence_parallel import gather_sequence as gather_sequence
from lablib.parallel.sequence_parallel import own_tokens as own_tokens
from lablib.parallel.sequence_parallel import scatter_sequence as scatter_sequence
from lablib.parallel.tensor_overlap import OverlappedColumnLinear as OverlappedColumnLinear
from lablib.parallel.tensor_overlap import overlapped_backward_s as overlapped_backward_s
from lablib.parallel.tensor_overlap import overlapped_columns as overlapped_columns
from lablib.parallel.tensor_async import async_mlp as async_mlp
from lablib.parallel.tensor_async import chunked_product_s as chunked_product_s
from lablib.parallel.tensor_async import exposed_chunks_s as exposed_chunks_s
from lablib.parallel.tensor_async import gather_linear as gather_linear
from lablib.parallel.tensor_async import linear_scatter as linear_scatter
from lablib.parallel.tensor_vocabulary import VocabularyEmbedding as VocabularyEmbedding
from lablib.parallel.tensor_vocabulary import VocabularyHead as VocabularyHead
from lablib.parallel.tensor_vocabulary import gathered_loss as gathered_loss
from lablib.parallel.tensor_vocabulary import padded_vocabulary as padded_vocabulary
from lablib.parallel.tensor_vocabulary import shard_vocabulary as shard_vocabulary
from lablib.parallel.tensor_vocabulary import vocabulary_embedding as vocabulary_embedding
from lablib.parallel.tensor_vocabulary import vocabulary_parallel_loss as vocabulary_parallel_loss
from lablib.parallel.tensor_plan import GPT_PLAN as GPT_PLAN
from lablib.parallel.tensor_plan import GPT_SEQUENCE_PLAN as GPT_SEQUENCE_PLAN
from lablib.parallel.tensor_plan import Column as Column
from lablib.parallel.tensor_plan import OnTokens as OnTokens
from lablib.parallel.tensor_plan import Row as Row
from lablib.parallel.tensor_plan import SharedInput as SharedInput
from lablib.parallel.tensor_plan import Vocabulary as Vocabulary
from lablib.parallel.tensor_plan import check_plan as check_plan
from lablib.parallel.tensor_parallelize import parallelize as parallelize
from lablib.parallel.tensor_state import full_gradients as full_gradients
from lablib.parallel.tensor_state import full_parameters as full_parameters
from lablib.parallel.tensor_state import gradient_norm as gradient_norm
from lablib.parallel.tensor_random import TensorGenerators as TensorGenerators
from lablib.parallel.tensor_random import dropout as dropout
from lablib.parallel.tensor_random import naive_sharded_normal as naive_sharded_normal
from lablib.parallel.tensor_random import sharded_normal as sharded_normal
from lablib.parallel.tensor_random import whole_normal as whole_normal
from lablib.parallel.tensor_random import wrong_draws as wrong_draws
from lablib.parallel.tensor_bytes import Kept as Kept
from lablib.parallel.tensor_bytes import LayerSizes as LayerSizes
from lablib.parallel.tensor_bytes import fewest_tokens_for_2d as fewest_tokens_for_2d
from lablib.parallel.tensor_bytes import gpt_sent_bytes as gpt_sent_bytes
from lablib.parallel.tensor_bytes import kept_by_layer as kept_by_layer
from lablib.parallel.tensor_bytes import kept_bytes as kept_bytes
from lablib.parallel.tensor_bytes import korthikanti_bytes as korthikanti_bytes
from lablib.parallel.tensor_bytes import layer_sent_bytes as layer_sent_bytes
from lablib.parallel.tensor_bytes import two_dimensional_sent_bytes as two_dimensional_sent_bytes
from lablib.parallel.tensor_time import TensorLayerTime as TensorLayerTime
from lablib.parallel.tensor_time import tensor_layer_time as tensor_layer_time
from lablib.parallel.tensor_time import tensor_times as tensor_times
from lablib.parallel.context_order import ORDERS as ORDERS
from lablib.parallel.context_order import Documents as Documents
from lablib.parallel.context_order import Order as Order
from lablib.parallel.context_order import attention_flops as attention_flops
from lablib.parallel.context_order import balance as balance
from lablib.parallel.context_order import contiguous_order as contiguous_order
from lablib.parallel.context_order import document_spans as document_spans
from lablib.parallel.context_order import order_of as order_of
from lablib.parallel.context_order import striped_order as striped_order
from lablib.parallel.context_order import visible_pairs as visible_pairs
from lablib.parallel.context_order import zigzag_order as zigzag_order
from lablib.parallel.context_blocks import Block as Block
from lablib.parallel.context_blocks import blocks_of as blocks_of
from lablib.parallel.context_merge import FUSED as FUSED
from lablib.parallel.context_merge import PRODUCTS as PRODUCTS
from lablib.parallel.context_merge import PartialAttention as PartialAttention
from lablib.parallel.context_merge import Passes as Passes
from lablib.parallel.context_merge import attention_in_blocks as attention_in_blocks
from lablib.parallel.context_merge import merge_attention as merge_attention
from lablib.parallel.context_ring import ring_attention as ring_attention
from lablib.parallel.context_gather import gathered_attention as gathered_attention
from lablib.parallel.context_gather import gather_tokens as gather_tokens
from lablib.parallel.context_ulysses import ulysses_attention as ulysses_attention
from lablib.parallel.context_ulysses import heads_of_all_tokens as heads_of_all_tokens
from lablib.parallel.context_ulysses import tokens_of_all_heads as tokens_of_all_heads
from lablib.parallel.context_both import ulysses_ring_attention as ulysses_ring_attention
from lablib.parallel.context_both import nested_order as nested_order
from lablib.parallel.context_both import UlyssesRing as UlyssesRing
from lablib.parallel.context_parallel import ContextParallel as ContextParallel
from lablib.parallel.context_parallel import all_reduce_sum as all_reduce_sum
from lablib.parallel.context_parallel import check_context as check_context
from lablib.parallel.mesh import Mesh as Mesh
from lablib.parallel.combined_check import Combination as Combination
from lablib.parallel.combined_part import Part as Part
from lablib.parallel.combined_optimizer import CombinedOptimizer as CombinedOptimizer
from lablib.parallel.combined_step import CombinedStep as CombinedStep
from lablib.parallel.combined_step import Stepped as Stepped
from lablib.parallel.placement import PlacedMesh as PlacedMesh
from lablib.parallel.placement import far_bytes as far_bytes
from lablib.parallel.placement import place as place
from lablib.parallel.placement import placements as placements
from lablib.parallel.placement_bytes import StepCall as StepCall
from lablib.parallel.placement_bytes import StepTraffic as StepTraffic
from lablib.parallel.placement_bytes import step_calls as step_calls
from lablib.parallel.placement_bytes import step_traffic as step_traffic
from lablib.parallel.strategies import StrategyClaim as StrategyClaim
from lablib.parallel.strategies import StrategyRow as StrategyRow
from lablib.parallel.strategies import StrategyVerdict as StrategyVerdict
from lablib.parallel.strategies import strategies as strategies
from lablib.parallel.strategies import strategy_verdicts as strategy_verdicts
from lablib.parallel.context_bytes import ContextSizes as ContextSizes
from lablib.parallel.context_bytes import context_kept_bytes as context_kept_bytes
from lablib.parallel.context_bytes import context_sent_bytes as context_sent_bytes
from lablib.parallel.context_time import ContextTime as ContextTime
from lablib.parallel.context_time import context_efficiencies as context_efficiencies
from lablib.parallel.context_time import context_time as context_time
from lablib.parallel.context_time import context_times as context_times
from lablib.parallel.context_time import fair_share_s as fair_share_s
from lablib.parallel.context_published import PUBLISHED_RINGS as PUBLISHED_RINGS
from lablib.parallel.context_published import PublishedRing as PublishedRing
from lablib.parallel.context_published import counted_efficiencies as counted_efficiencies
from lablib.parallel.context_published import predicted_efficiencies as predicted_efficiencies
from lablib.parallel.expert_routing import Routing as Routing
from lablib.parallel.expert_routing import check_choices as check_choices
from lablib.parallel.expert_routing import route as route
from lablib.parallel.expert_routing import sigmoid_gates as sigmoid_gates
from lablib.parallel.expert_routing import softmax_gates as softmax_gates
from lablib.parallel.expert_losses import Load as Load
from lablib.parallel.expert_losses import balancing_loss as balancing_loss
from lablib.parallel.expert_losses import group_load as group_load
from lablib.parallel.expert_losses import own_load as own_load
from lablib.parallel.expert_losses import router_z_loss as router_z_loss
from lablib.parallel.expert_losses import update_bias_ as update_bias_
from lablib.parallel.expert_dispatch import LATEST as LATEST
from lablib.parallel.expert_dispatch import SCORE as SCORE
from lablib.parallel.expert_dispatch import Drop as Drop
from lablib.parallel.expert_dispatch import Permutation as Permutation
from lablib.parallel.expert_dispatch import combine as combine
from lablib.parallel.expert_dispatch import dispatch as dispatch
from lablib.parallel.expert_dispatch import expert_capacity as expert_capacity
from lablib.parallel.expert_dispatch import naive_combine as naive_combine
from lablib.parallel.expert_dispatch import naive_dispatch as naive_dispatch
from lablib.parallel.expert_dispatch import naive_masks as naive_masks
from lablib.parallel.expert_dispatch import sort_by_expert as sort_by_expert
from lablib.parallel.expert_products import grouped_product as grouped_product
from lablib.parallel.expert_products import loop_product as loop_product
from lablib.parallel.expert_products import padded_product as padded_product
from lablib.parallel.expert_layer import ExpertMLPs as ExpertMLPs
from lablib.parallel.expert_layer import MixtureConfig as MixtureConfig
from lablib.parallel.expert_layer import MixtureOfExperts as MixtureOfExperts
from lablib.parallel.expert_layer import mixtures as mixtures
from lablib.parallel.expert_layer import with_experts as with_experts
from lablib.parallel.expert_exchange import Exchange as Exchange
from lablib.parallel.expert_exchange import check_experts as check_experts
from lablib.parallel.expert_exchange import exchange_counts as exchange_counts
from lablib.parallel.expert_exchange import exchange_rows as exchange_rows
from lablib.parallel.expert_exchange import from_experts as from_experts
from lablib.parallel.expert_exchange import to_experts as to_experts
from lablib.parallel.expert_parallel import expert_parallel as expert_parallel
from lablib.parallel.expert_parallel import naive_expert_parallel as naive_expert_parallel
from lablib.parallel.expert_parallelize import ExpertParallel as ExpertParallel
from lablib.parallel.expert_parallelize import ExpertShards as ExpertShards
from lablib.parallel.expert_gradients import ExpertReduce as ExpertReduce
from lablib.parallel.expert_gradients import average_expert_gradients as average_expert_gradients
from lablib.parallel.expert_gradients import expert_parameters as expert_parameters
from lablib.parallel.expert_depth import MixtureOfDepths as MixtureOfDepths
from lablib.parallel.expert_depth import choose_tokens as choose_tokens
from lablib.parallel.expert_depth import with_depths as with_depths
from lablib.parallel.expert_bytes import ExpertBytes as ExpertBytes
from lablib.parallel.expert_bytes import ExpertKept as ExpertKept
from lablib.parallel.expert_bytes import ExpertRanks as ExpertRanks
from lablib.parallel.expert_bytes import ExpertSizes as ExpertSizes
from lablib.parallel.expert_bytes import expert_kept_bytes as expert_kept_bytes
from lablib.parallel.expert_bytes import expert_sent_bytes as expert_sent_bytes
from lablib.parallel.expert_bytes import expert_weights as expert_weights
from lablib.parallel.expert_time import ExpertTime as ExpertTime
from lablib.parallel.expert_time import expert_time as expert_time
from lablib.parallel.expert_time import expert_times as expert_times
from lablib.parallel.expert_overlap import overlap_experts as overlap_experts
from lablib.parallel.expert_overlap_time import overlapped_time as overlapped_time
from lablib.parallel.expert_balance import ExpertPlacement as ExpertPlacement
from lablib.parallel.expert_balance import least_possible_load as least_possible_load
from lablib.parallel.expert_balance import place_balanced as place_balanced
from lablib.parallel.expert_balance import place_in_order as place_in_order
from lablib.parallel.expert_best import place_best as place_best
from lablib.parallel.expert_rebalance import Rebalanced as Rebalanced
from lablib.parallel.expert_rebalance import rebalance_over_run as rebalance_over_run
from lablib.parallel.expert_against_dense import AgainstDense as AgainstDense
from lablib.parallel.expert_against_dense import against_dense as against_dense
from lablib.parallel.expert_against_dense import dense_of_equal_flops as dense_of_equal_flops
from lablib.parallel.expert_against_dense import dense_of_equal_parameters as dense_of_equal_parameters
from lablib.parallel.expert_against_dense import fewest_rows as fewest_rows
from lablib.parallel.expert_against_dense import grouped_shares as grouped_shares
from lablib.parallel.expert_against_dense import rows_of_an_expert as rows_of_an_expert
from lablib.parallel.expert_published import OLMOE as OLMOE
from lablib.parallel.expert_published import PUBLISHED_MIXTURES as PUBLISHED_MIXTURES
from lablib.parallel.expert_published import PublishedMixture as PublishedMixture
from lablib.parallel.expert_published import predicted_rates as predicted_rates
