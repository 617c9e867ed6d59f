"""Sizes of a published transformer, as input of the planner.

A decoder of `num_layers` layers, each attention and an MLP, dense or a mixture of experts. `GPTConfig` (gpt.py) is the
model that this project builds and trains; this record also describes models that it only predicts: fewer heads of keys
than of queries (GQA: Ainslie et al., 2023, arXiv 2305.13245), keys and values from a narrow latent (MLA: DeepSeek-V2,
2024, arXiv 2405.04434, section 2.1), gated MLPs (SwiGLU: Shazeer, 2020, arXiv 2002.05202), experts (Shazeer et al.,
2017, arXiv 1701.06538; DeepSeekMoE, 2024, arXiv 2401.06066), windows of attention in some layers (Mistral: Jiang et
al., 2023, arXiv 2310.06825, section 2), attention and MLP side by side (PaLM: 2022, arXiv 2204.02311, section 2).

    block         one layer, of an input x                           norms
    sequential    y = x + attention(norm(x)); y + MLP(norm(y))       2
    parallel      x + attention(norm(x)) + MLP(norm'(x))             2: GPT-NeoX (arXiv 2204.06745), Falcon 40B
    shared norm   x + attention(norm(x)) + MLP(norm(x))              1: GPT-J, PaLM, Falcon 7B

Legend: L layers, D width, H heads of queries, G heads of keys and values, K width of a head, F hidden width of the MLP,
V vocabulary, T positions.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from lablib.errors import unknown_name
from lablib.models.llama_sizes import LlamaConfig
from lablib.models.sizes import GPTConfig
from lablib.signature import whole_number

ACTIVATIONS = ("gelu", "swiglu")
POSITIONS = ("learned", "rotary", "alibi")
NORMS = ("layer", "rms")
BLOCKS = ("sequential", "parallel", "shared norm")
_NAMES = MappingProxyType({"activation": ACTIVATIONS, "positions": POSITIONS, "norm": NORMS, "block": BLOCKS})


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA): DeepSeek-V2, section 2.1 and appendix C."""

    query_rank: int  # width of the queries' latent, d'_c; 0 for queries without a latent
    kv_rank: int  # width of the latent of keys and values, d_c
    d_rotary: int  # width of a head's part with the position, d_h^R
    d_plain: int  # width of its part without the position, d_h
    d_value: int  # width of a head's values


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts instead of the MLP."""

    num_experts: int  # routed experts E
    num_active: int  # routed experts k per token
    d_ff: int  # hidden width of one expert
    num_shared: int = 0  # experts that every token visits, in addition
    num_dense_layers: int = 0  # layers that keep a dense MLP, at the bottom or between the others
    # tokens of the busiest expert rank over their mean; or a capacity factor to which all experts are filled
    imbalance: float = 1.0


@dataclass(frozen=True, slots=True)
class Window:
    """Attention to the nearest tokens only, in some layers; the others attend to all tokens before."""

    tokens: int  # w: keys that a query sees at most, its own included
    num_layers: int | None = None  # layers with the window; None: all
    is_chunked: bool = False  # whether keys are those of the query's chunk of w tokens (Llama 4), not the last w


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes of a decoder."""

    name: str  # the model's
    num_layers: int  # num_layers, d_model, num_heads, vocab_size: L, D, H, V
    d_model: int
    num_heads: int
    vocab_size: int
    max_seq_len: int  # T; the number of position embeddings, and the default length of training
    d_ff: int | None = None  # F; None means 4 D
    num_kv_heads: int | None = None  # G; None means H (plain multi-head attention), 1 is multi-query
    d_head: int | None = None  # K; None means D / H
    activation: str = "gelu"  # "gelu" (two matrices) or "swiglu" (three)
    positions: str = "learned"  # "learned", "rotary" or "alibi"
    norm: str = "layer"  # "layer" (scale and shift) or "rms" (scale)
    has_bias: bool = True  # whether linear layers have biases
    tied_head: bool = True  # whether the head's matrix is the token embedding's
    latent: Latent | None = None  # keys and values from a latent (MLA); None otherwise
    experts: Experts | None = None  # a mixture of experts; None for a dense model
    window: Window | None = None  # attention to the nearest tokens only; None: to all tokens before
    block: str = "sequential"  # arrangement of attention and MLP: "sequential", "parallel" or "shared norm"
    source: str = ""  # source of the sizes

    def __post_init__(self) -> None:
        for name in ("num_layers", "d_model", "num_heads", "vocab_size", "max_seq_len", "hidden_size", "kv_heads"):
            self._check_count(name, getattr(self, name))
        if self.d_head is not None:
            self._check_count("d_head", self.d_head)
        if self.latent:
            self._check_latent(self.latent)
        if self.experts:
            self._check_experts(self.experts)
        if self.window:
            self._check_window(self.window)
        for kind, names in _NAMES.items():
            if getattr(self, kind) not in names:
                raise unknown_name(kind, getattr(self, kind), names)
        if self.experts and self.block != "sequential":
            raise ValueError(
                f"a block with experts is sequential: got block={self.block!r} for {self.name!r}; leave out one of them"
            )
        if self.d_head is None and self.d_model % self.num_heads:
            near = max(1, round(self.d_model / self.num_heads)) * self.num_heads
            raise ValueError(
                f"d_model must be a multiple of num_heads, or d_head given: got {self.d_model} and {self.num_heads} "
                f"for {self.name!r}; try {near}"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads: got {self.num_heads} and {self.kv_heads} "
                f"for {self.name!r}"
            )

    def _check_count(self, name: str, value: Any, minimum: int = 1) -> None:
        whole_number(name, value, minimum, max(minimum, 1), f" for {self.name!r}")

    def _check_latent(self, latent: Latent) -> None:
        if not isinstance(latent, Latent):
            raise ValueError(f"latent is a Latent, or None: got {latent!r} for {self.name!r}")
        for name in ("query_rank", "kv_rank", "d_rotary", "d_plain", "d_value"):
            self._check_count(name, getattr(latent, name), 0 if name in ("query_rank", "d_rotary") else 1)

    def _check_experts(self, experts: Experts) -> None:
        if not isinstance(experts, Experts):
            raise ValueError(f"experts is an Experts, or None: got {experts!r} for {self.name!r}")
        for name in ("num_experts", "num_active", "d_ff"):
            self._check_count(name, getattr(experts, name))
        for name in ("num_shared", "num_dense_layers"):
            self._check_count(name, getattr(experts, name), 0)
        if not (isinstance(experts.imbalance, (int, float)) and 0 < experts.imbalance < float("inf")):
            raise ValueError(
                f"imbalance must be a positive number: got {experts.imbalance!r} for {self.name!r}; try 1.2"
            )
        if experts.num_active > experts.num_experts:
            raise ValueError(
                f"num_active must be 1 to num_experts: got {experts.num_active} of {experts.num_experts} "
                f"for {self.name!r}"
            )
        if experts.num_dense_layers > self.num_layers:
            raise ValueError(
                f"num_dense_layers must be 0 to num_layers: got {experts.num_dense_layers} of {self.num_layers} "
                f"for {self.name!r}"
            )

    def _check_window(self, window: Window) -> None:
        if not isinstance(window, Window):
            raise ValueError(f"window is a Window, or None: got {window!r} for {self.name!r}")
        self._check_count("tokens", window.tokens)
        if window.num_layers is not None:
            self._check_count("num_layers", window.num_layers, 0)
        if self.num_window_layers > self.num_layers:
            raise ValueError(
                f"num_layers of the window must be 0 to {self.num_layers}: got {window.num_layers} for {self.name!r}"
            )

    @property
    def hidden_size(self) -> int:
        """F, the hidden width of a dense MLP."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def kv_heads(self) -> int:
        """G, heads of keys and of values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """K, the width of a head (of queries and keys)."""
        if self.latent:
            return self.latent.d_plain + self.latent.d_rotary
        return self.d_model // self.num_heads if self.d_head is None else self.d_head

    @property
    def value_size(self) -> int:
        """The width of a head's values."""
        return self.latent.d_value if self.latent else self.head_size

    @property
    def num_expert_layers(self) -> int:
        """Layers with a mixture of experts as MLP."""
        return self.num_layers - self.experts.num_dense_layers if self.experts else 0

    @property
    def num_window_layers(self) -> int:
        """Layers with attention to the nearest tokens only."""
        if self.window is None:
            return 0
        return self.num_layers if self.window.num_layers is None else self.window.num_layers

    @property
    def num_norms(self) -> int:
        """Norms of a layer, without those of latents."""
        return 1 if self.block == "shared norm" else 2

    @classmethod
    def of(cls, config: GPTConfig | LlamaConfig, name: str = "gpt") -> "Transformer":
        """The record of a `GPTConfig`: multi-head attention, GELU, learned positions, biases; or of a `LlamaConfig`."""
        sizes = ("num_layers", "d_model", "num_heads", "vocab_size", "max_seq_len", "d_ff", "tied_head")
        made = cls(name, **{size: getattr(config, size) for size in sizes})
        if isinstance(config, GPTConfig):
            return made
        own = {"d_ff": config.hidden_size, "num_kv_heads": config.kv_heads, "d_head": config.d_head}
        return replace(made, **own, activation="swiglu", positions="rotary", norm="rms", has_bias=False)
