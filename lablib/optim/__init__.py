"""Optimizers: the state of each, and its update as a formula. Read `adamw.py` first.

base        the common class: groups, closures; checks, counts and loads state
checks      checks of gradients and of a state to load
foreach     torch's batched operators over a list of tensors
adamw       two means per number, and decoupled decay
adafactor   the second mean as rows and columns
lamb        Adam's direction, in proportion to each layer's weights
lion        the sign of one mean
sophia      a mean over curvatures, clipped
newton_schulz   singular values to about 1, by matrix products
muon        a matrix's momentum with equal singular values
blockwise   8 bits per number, a scale per block
adam8bit    two means in 8 bits
adam_bf16   two means in 16 bits, rounded stochastically
soap        Adam in the axes of the gradients
projection  projection of a gradient on few directions, and the lost part
galore      Adam on a few directions of the gradient
four_bits   two numbers in a byte
q_galore    GaLore in 4 and 8 bits
memory      all optimizers by name, and the bytes that each keeps, by formula
in_backward   steps inside backward, gradients freed
effects     effects of four optimizers on a gradient, for figures
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
