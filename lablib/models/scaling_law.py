"""Scaling laws: the loss of a language model from its parameters and its training tokens.

The loss of a well-tuned training falls as a sum of two powers to a floor, the entropy of the text:

    L(N, D) = E + A / N^alpha + B / D^beta            nats per token

With C = 6 N D FLOPs to spend, the least loss is at

    N = G (C / 6)^(beta / (alpha + beta)),   D = C / (6 N),   G = (alpha A / (beta B))^(1 / (alpha + beta))

Tokens that are met again teach less. D tokens of a corpus of U, R = D / U - 1 repetitions, count as

    D' = U + U R* (1 - exp(-R / R*)),   R* = 15.39        for D > U, and D' = D otherwise

Legend: N parameters, D tokens of training, U tokens of the corpus, C FLOPs.
Source: Hoffmann et al., "Training Compute-Optimal Large Language Models", 2022, arXiv 2203.15556, section 3.3 and
equation 10 (`CHINCHILLA`); Besiroglu et al., "Chinchilla Scaling: A Replication Attempt", 2024, arXiv 2404.10102,
(`REPLICATION`: the first fit contradicts the same paper's optimal sizes, this one agrees with them);
Muennighoff et al., "Scaling Data-Constrained Language Models", 2023, arXiv 2305.16264, section 3 (repetition).
Simplified: the loss on MassiveText with its tokenizer, at the end of a cosine schedule; other text and other schedules
have other constants. Too many parameters for a small corpus are not discounted, as Muennighoff et al. do.
"""

from dataclasses import dataclass
from math import exp

from lablib.models.training_compute import six_n_d
from lablib.signature import Positive, checked

REPETITIONS = 15.387756  # R*, Muennighoff et al., appendix A


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """The constants of a fit; the losses are in nats."""

    entropy: float  # E
    parameter_factor: float  # A
    token_factor: float  # B
    alpha: float
    beta: float

    @checked
    def loss(self, num_parameters: Positive, tokens: Positive, corpus_tokens: Positive | None = None) -> float:
        """The loss at the end of a training; `corpus_tokens`: different tokens, None for as many as are trained on."""
        seen = tokens if corpus_tokens is None else effective_tokens(tokens, corpus_tokens)
        return self.entropy + self.parameter_factor / num_parameters**self.alpha + self.token_factor / seen**self.beta

    @checked
    def best_parameters(self, flops: Positive) -> float:
        """Parameters with the least loss for these FLOPs of training."""
        both = self.alpha + self.beta
        ratio = self.alpha * self.parameter_factor / (self.beta * self.token_factor)
        return ratio ** (1 / both) * (flops / six_n_d(1.0, 1.0)) ** (self.beta / both)


CHINCHILLA = ScalingLaw(1.69, 406.4, 410.7, 0.34, 0.28)
REPLICATION = ScalingLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658)


@checked
def effective_tokens(tokens: Positive, corpus_tokens: Positive) -> float:
    """Tokens met once that teach as much as `tokens` of a corpus of `corpus_tokens`."""
    repetitions = tokens / corpus_tokens - 1
    if repetitions <= 0:
        return tokens
    return corpus_tokens * (1 + REPETITIONS * (1 - exp(-repetitions / REPETITIONS)))
