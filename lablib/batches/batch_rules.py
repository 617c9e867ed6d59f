"""Published rules for the batch size of a language model, by loss, by compute or by tokens.

All were fitted to many small runs, and agree that the batch grows with the length of the training, as the noise scale
does when the loss falls. They define the best batch differently: for Kaplan it is the critical batch, where steps and
tokens are both twice their minimum; for the others, the lowest loss for a given budget.

    Kaplan et al.   B_crit = 2e8 / L^(1 / 0.21)                        tokens, from the loss L in nats per token
    DeepSeek LLM    B = 0.2920 C^0.3271      C FLOPs of the training, without embedding
    Step Law        B = 0.58 D^0.571         D tokens

Cost: none.
Source: Kaplan et al., "Scaling Laws for Neural Language Models", 2020, arXiv 2001.08361, equation 1.4; DeepSeek-AI,
"DeepSeek LLM", 2024, arXiv 2401.02954, equation 1; Li et al., "Predictable Scale: Part I, Step Law", 2025, arXiv
2503.04715, equation 1.
Simplified: each law holds for its own data, tokenizer, optimizer and schedule; outside the measured range (a small
model on a laptop, say) it is a guess.
"""

from typing import Annotated

from lablib.signature import Positive, Range, checked


@checked
def kaplan_critical_batch(loss: Annotated[float, Range(ge=1e-3, le=1000), "give nats per token, such as 2.5"]) -> float:
    """Tokens of the critical batch at a loss, in nats per token."""
    return 2e8 / loss ** (1 / 0.21)


@checked
def deepseek_batch(compute_flops: Positive) -> float:
    """Tokens of the best batch for a training of `compute_flops`."""
    return 0.2920 * compute_flops**0.3271


@checked
def step_law_batch(num_tokens: Positive) -> float:
    """Tokens of the best batch for a training on `num_tokens`."""
    return 0.58 * num_tokens**0.571
