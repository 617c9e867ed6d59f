"""The FLOPs of a whole training: the rule 6 N D, how far off it is, and the days that it takes.

A token meets every parameter once. That is a multiply-add forward, 2 FLOPs, and two of them backward (for the gradient
of the input and for that of the parameter), 4 FLOPs. So N parameters and D tokens take

    6 N D

The rule counts too much: embeddings and norms are looked up or added, not multiplied. And too little: the scores, each
token with every other, have no parameters. For a GPT of L layers, width d, hidden width 4 d, vocabulary V, sequences of
T tokens and as many positions, and a head tied to the embedding, FLOPs by product of matrices over those by the rule:

    (12 L d^2 + V d + 2 L T d) / (12 L d^2 + 13 L d + (V + T + 2) d)         about 1 + T / 6 d for a large model

Legend: N parameters, D tokens, L layers, d width, V vocabulary, T tokens of a sequence.

Source: Kaplan et al., "Scaling Laws for Neural Language Models", 2020, arXiv 2001.08361, section 2.1 (who count N
without embeddings); Brown et al., 2020, arXiv 2005.14165, appendix D (GPT-3: 3.14e23); Narayanan et al., SC21, 2021,
arXiv 2104.04473, section 5.1 (days).
Simplified: one pass over the tokens, no evaluation, no restarts; of a mixture, the parameters that a token visits.
"""

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import step_flops
from lablib.models.transformer_sizes import transformer_parameters

_SECONDS_A_DAY = 86_400


def six_n_d(num_parameters: Numbers, tokens: Numbers) -> Numbers:
    """FLOPs of training so many parameters on so many tokens, by the rule."""
    return 6 * num_parameters * tokens


def over_six_n_d(model: Transformer, seq_len: Numbers | None = None, *, causal: bool = False) -> Numbers:
    """Model FLOPs by product of matrices, over those by the rule: 1 where the rule is right, 2 where it gives half.

    Arguments:
        seq_len: tokens of a sequence, a number or a numpy array; None means the model's `max_seq_len`.
        causal: whether masked scores are left out.
    """
    return step_flops(model, 1, seq_len, causal=causal) / six_n_d(transformer_parameters(model).active, 1)


def training_days(flops: Numbers, num_devices: Numbers, flops_per_s: Numbers) -> Numbers:
    """Days that so many devices take. `flops_per_s`: what each really does, its peak times its utilization."""
    return flops / (num_devices * flops_per_s) / _SECONDS_A_DAY
