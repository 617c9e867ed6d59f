"""Parameter count of a GPT, part by part, as a closed form.

With L layers, width D, hidden width F, vocabulary V and P positions:

    embeddings   V D + P D
    attention    L (4 D^2 + 4 D)          query, key, value, out; each with a bias
    mlp          L (2 D F + F + D)        up, down; each with a bias
    norms        (2 L + 1) 2 D            scale and shift
    head         V D, or 0 when it shares the token embedding's matrix

For large D and F = 4 D that is 12 L D^2, the rule of thumb.
Source: counted from `gpt.py`; the sum agrees with the released GPT-2 checkpoints (tests/models/test_sizes.py).
"""

from lablib.models.gpt import GPTConfig
from lablib.signature import checked


@checked
def parameter_counts(config: GPTConfig) -> dict[str, int]:
    """Parameters of each part of the model: embeddings, attention, mlp, norms, head. A tied head counts 0."""
    layers, d, f = config.num_layers, config.d_model, config.hidden_size
    return {
        "embeddings": (config.vocab_size + config.max_seq_len) * d,
        "attention": layers * (4 * d * d + 4 * d),
        "mlp": layers * (2 * d * f + f + d),
        "norms": (2 * layers + 1) * 2 * d,
        "head": 0 if config.tied_head else config.vocab_size * d,
    }


@checked
def num_parameters(config: GPTConfig) -> int:
    """Parameters of the whole model; times 4 for its bytes in float32."""
    return sum(parameter_counts(config).values())
