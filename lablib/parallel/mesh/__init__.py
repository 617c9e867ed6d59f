"""Several kinds of parallelism at once, on a mesh of ranks.

mesh              axes, their order, and the groups of a rank
part              the part of a model that a rank holds
step              one training step with data, tensor and pipeline parallelism
optimizer         its optimizer and the norm of all gradients
check             the step compared with one device
checkpoint        saved on one mesh, loaded on another
checkpoint_files  entries, description and checksums of a checkpoint
"""
