"""Figures of predictions.

plans                          step time against memory, many plans at once
waterfall                      a step as a sum of its parts
plan_memory                    the peak of each pipeline stage
batch_splits                   micro-batches of one global batch
communication                  communication of a step
tensor_times                   a layer over tensor-parallel ranks
pipeline, pipeline_simulation  a replayed schedule, and a simulated one
topology, networks             a small cluster, and the links between nodes
validation                     predicted against published
"""
