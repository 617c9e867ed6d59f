"""Figures of predictions.

plans                          step time against memory, many plans at once
waterfall                      a step as a sum of its parts
plan_memory                    the peak of each pipeline stage
communication, collectives     communication of a step, and the cost of a collective
pipeline, pipeline_simulation  a replayed schedule, and one that is tried out
scaling                        efficiency against the number of ranks
topology, networks             a small cluster, and how nodes are wired
validation, validation_picture predicted against published
"""
