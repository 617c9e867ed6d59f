"""Sizes of a GPT, and its parameter count, part by part, as a closed form.

With L layers, width D, hidden width F, vocabulary V and P positions:

    embeddings   V D + P D
    attention    L (4 D^2 + 4 D)          query, key, value, out; each with a bias
    mlp          L (2 D F + F + D)        up, down; each with a bias
    norms        (2 L + 1) 2 D            scale and shift
    head         V D, or 0 when it shares the token embedding's matrix

For large D and F = 4 D that is 12 L D^2, the rule of thumb.
Source: counted from `gpt.py`; the sum agrees with the released GPT-2 checkpoints (tests/models/test_sizes.py).
"""

from dataclasses import dataclass

from lablib.signature import check_fields, checked


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """The sizes of a GPT."""

    num_layers: int  # blocks
    d_model: int  # width D of the residual stream; a multiple of `num_heads`
    num_heads: int  # attention heads H
    vocab_size: int = 50257  # tokens V; 256 for bytes
    max_seq_len: int = 1024  # longest T for which there are position embeddings
    d_ff: int | None = None  # hidden width F of the MLP; None means 4 D
    tied_head: bool = True  # the head's matrix is the token embedding's, one parameter used twice

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("num_layers", "d_model", "num_heads", "vocab_size", "max_seq_len", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: got {getattr(self, name)}.")
        if self.d_model % self.num_heads:
            near = max(1, round(self.d_model / self.num_heads)) * self.num_heads
            raise ValueError(
                f"d_model must be a multiple of num_heads: got {self.d_model} and {self.num_heads}; try {near}."
            )

    @property
    def hidden_size(self) -> int:
        """Width F of the MLP's hidden layer."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def d_head(self) -> int:
        """Width K of one attention head."""
        return self.d_model // self.num_heads


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
