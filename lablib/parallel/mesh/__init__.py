"""Several kinds of parallelism at once, on a mesh of ranks.

mesh        axes, their order, and the groups of a rank
check       a model, a mesh, a batch and a schedule, checked before any rank starts
part        the part of a model that a rank holds
step        one training step with data, context, tensor and pipeline parallelism
optimizer   its optimizer and the norm of all gradients
zero        the same with gradients or parameters cut, too
checkpoint  save on one mesh, load on another
"""
