"""Megatron's formulas: parameters of a GPT, and bytes of model states per rank.

    P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h))        l layers of width h, vocabulary V, s positions

12 l h^2 are the matrices; 13 l h the biases (9) and norms (4) of the layers; (V + s) h the embeddings. The norm at the
end (2 h) is left out, and the head shares the embedding's matrix.

Mixed precision with Adam keeps 18 bytes per parameter: 2 of the parameter, 4 of its gradient (summed in 32 bits), 12 of
the optimizer. The memory figure of Korthikanti et al. counts them for the matrices of the layers only, 12 l h^2 / (t
p).

Source: Narayanan et al., SC21, 2021, arXiv 2104.04473, equation 2; Korthikanti et al., 2022, arXiv 2205.05198,
figure 1. Their FLOPs are in lablib/models/transformer_flops.py.
"""

from lablib.cost.arrays import Numbers

STATE_BYTES = 18  # per parameter: weight 2, gradient 4, master copy 4, two moments 8


def megatron_parameters(layers: Numbers, h: Numbers, vocab_size: Numbers, s: Numbers) -> Numbers:
    """P of a GPT of `layers` layers of width h, over `vocab_size` tokens and s positions."""
    return 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocab_size + s) / (12 * layers * h))


def megatron_layer_states_bytes(layers: Numbers, h: Numbers, *, tensor: Numbers = 1, pipeline: Numbers = 1) -> Numbers:
    """Bytes of parameters, gradients and optimizer states on each rank, of the layers' matrices only."""
    return STATE_BYTES * 12 * layers * h**2 / (tensor * pipeline)
