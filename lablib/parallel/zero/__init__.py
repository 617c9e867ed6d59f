"""ZeRO: optimizer states, gradients and parameters sharded over data-parallel ranks.

shards             parameters as one flat buffer, cut into one shard per rank
stage1             optimizer states sharded
stage2             gradients also sharded
stage3             parameters also sharded: gathered for each unit, and prefetched
units              modules that are gathered together, and graph nodes that start a gather
hybrid             shards within a node, replicas across nodes
module             the module and its optimizer, at any stage
per_parameter      each parameter cut by rows, as in FSDP2, next to the flat buffer
bytes              bytes held and sent at each stage
optimizers         optimizers that can update flat shards, and shapes for the others
sharded_muon       Muon by owner, gather, or exchange of whole matrices
sharded_muon_cost  bytes and FLOPs of the three
offload            optimizer states, or everything, in host memory
checkpoint         save at one stage, load at another on other ranks
checkpoint_files   boxes of tensors in files, with checksums, for ZeRO and for a mesh
"""
