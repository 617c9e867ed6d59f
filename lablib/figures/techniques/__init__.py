"""Figures of single techniques, most of them for one lab each.

exponents                            numbers and formats among powers of two (02)
time_memory                          ways to keep less: time against memory (03)
batch_splits, packing, schedules     micro-batches, packed documents, learning rates (04)
spread, steps_law, widths            runs and their spread, critical batch, muP (04)
optimizers, updates                  recorded runs, and what an update does (05)
tiles, staircase                     programs of a kernel, tile quantization (06)
loading                              a loop fed by a loader (07)
compression, compression_pays        recorded runs, and when compression pays (11)
matrices, tensor_times               matrices cut over ranks, a layer over ranks (12)
context_times, expert_load, expert_times
                                     long sequences and mixtures of experts (14)
"""
