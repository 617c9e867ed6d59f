"""The learning rate for another batch size: linear scaling for SGD, square-root scaling for Adam.

A batch k times as large takes k times fewer steps through the same examples; so each step should be longer:

    linear        rate x k             SGD. k steps with gradients g_i of one batch each are about one step with their
                                       mean and k times the rate, as long as the weights hardly move in between.
    square root   rate x sqrt(k)       Adam. It divides by the gradient's size: where noise dominates, a batch k times
                                       as large has gradients sqrt(k) times smaller, which Adam undoes. Steps then have
                                       the same length, and k times fewer of them reach a factor sqrt(k) less far, which
                                       the rate makes up for. To average over the same examples, 1 - beta grows by k.

Each rule holds only while noise dominates: a rate above the limit of the curvature diverges at any batch size. Linear
scaling starts with a warmup, as weights move fast early on.

Cost: none.
Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017, arXiv 1706.02677, section 2.1; Malladi et al., "On the SDEs
and Scaling Rules for Adaptive Gradient Algorithms", 2022, arXiv 2205.10287, definition 5.1.
Simplified: the rules are for runs with the same number of examples; they do not limit k.
"""

import math

from lablib.signature import Count, NonNegative, checked


@checked
def linear_rate(rate: NonNegative, from_batch: Count, to_batch: Count) -> float:
    """SGD's rate at `to_batch`, from a good rate at `from_batch`."""
    return rate * (to_batch / from_batch)


@checked
def square_root_rate(rate: NonNegative, from_batch: Count, to_batch: Count) -> float:
    """Adam's rate at `to_batch`, from a good rate at `from_batch`."""
    return rate * math.sqrt(to_batch / from_batch)
