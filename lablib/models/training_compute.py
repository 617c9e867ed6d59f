"""FLOPs of a whole training: the rule 6 N D, its error, and the days of training.

Each token uses every parameter once: a multiply-add forward, 2 FLOPs, and two of them backward (for the gradient of the
input and for the parameter's gradient), 4 FLOPs. So N parameters and D tokens take

    6 N D

The rule counts too much: embeddings and norms are looked up or added, not multiplied. It also counts too little: the
scores, each token with every other, have no parameters. For a GPT of L layers, width d, hidden width 4 d, vocabulary V,
sequences of T tokens and as many positions, and a tied head, FLOPs of the matrix products over the rule's FLOPs:

    (12 L d^2 + V d + 2 L T d) / (12 L d^2 + 13 L d + (V + T + 2) d)         about 1 + T / 6 d for a large model

Legend: N parameters, D tokens, L layers, d width, V vocabulary, T tokens of a sequence.

Source: Kaplan et al., "Scaling Laws for Neural Language Models", 2020, arXiv 2001.08361, section 2.1 (counts N without
embeddings); Brown et al., 2020, arXiv 2005.14165, appendix D (GPT-3: 3.14e23); Narayanan et al., SC21, 2021, arXiv
2104.04473, section 5.1 (days).
Simplified: one pass over the tokens, no evaluation, no restarts; of a mixture, the active parameters of a token.
"""

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import step_flops
from lablib.models.transformer_sizes import transformer_parameters

_SECONDS_A_DAY = 86_400


def six_n_d(num_parameters: Numbers, tokens: Numbers) -> Numbers:
    """FLOPs of training `num_parameters` on `tokens`, by the rule."""
    return 6 * num_parameters * tokens


def over_six_n_d(model: Transformer, seq_len: Numbers | None = None, *, causal: bool = False) -> Numbers:
    """Model FLOPs of the products over the rule's: 1 if exact, 2 if the rule gives half. As `forward_flops`."""
    return step_flops(model, 1, seq_len, causal=causal) / six_n_d(transformer_parameters(model).active, 1)


def training_days(flops: Numbers, num_devices: Numbers, flops_per_s: Numbers) -> Numbers:
    """Days on `num_devices`. `flops_per_s`: achieved rate per device, its peak times its utilization."""
    return flops / (num_devices * flops_per_s) / _SECONDS_A_DAY
