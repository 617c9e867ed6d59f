"""Sizes of a Llama.

Source: Touvron et al., "LLaMA", 2023, arXiv 2302.13971, section 2.2; Llama Team, "The Llama 3 Herd of Models", 2024,
arXiv 2407.21783, table 3 (the defaults here: vocabulary, length, base of the rotary angles).
"""

from dataclasses import dataclass

from lablib.signature import check_fields
from lablib.text.units import largest_divisor, plural


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of a Llama."""

    num_layers: int  # blocks
    d_model: int  # width D of the residual stream
    num_heads: int  # heads H of queries
    vocab_size: int = 128256  # tokens V
    max_seq_len: int = 8192  # longest T that the model is asked for
    d_ff: int | None = None  # hidden width F; None: 8/3 D, rounded up to a multiple of 8
    tied_head: bool = False  # whether the head's matrix is the token embedding's
    num_kv_heads: int | None = None  # heads G of keys and values; None: H
    head_dim: int | None = None  # width K of a head, even; None: D / H
    rope_base: float = 500_000.0  # of the rotary angles
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("num_layers", "d_model", "num_heads", "kv_heads", "vocab_size", "max_seq_len", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: got {getattr(self, name)}.")
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads: got {self.num_heads} and {self.kv_heads}; try "
                f"{plural(largest_divisor(self.num_heads, self.kv_heads), 'key-value heads')}."
            )
        if self.head_dim is None and self.d_model % self.num_heads or self.d_head < 2 or self.d_head % 2:
            near = 2 * self.num_heads * max(1, round(self.d_model / (2 * self.num_heads)))
            raise ValueError(
                f"a head must have an even width, d_model / num_heads or head_dim: got {self.d_model} / "
                f"{self.num_heads} and head_dim={self.head_dim}; try d_model={near}, or another head_dim."
            )
        if not self.rope_base > 1:
            raise ValueError(f"rope_base must be above 1: got {self.rope_base}; try 10000.")

    @property
    def hidden_size(self) -> int:
        """Width F of the MLP's hidden layer."""
        return -(-8 * self.d_model // 24) * 8 if self.d_ff is None else self.d_ff

    @property
    def kv_heads(self) -> int:
        """Heads G of keys and values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def d_head(self) -> int:
        """Width K of one attention head."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim
