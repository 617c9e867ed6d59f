"""A plain Llama without parallelism: the GPT with RMSNorm, rotary positions, grouped heads and a gated MLP.

Modules have the names of `gpt.py`, so that code that trains, cuts or saves a GPT by its names works on it, too:

    tokens -> embedding -> (+attention(norm), +mlp(norm)) x num_layers -> norm -> head -> logits

    norm         y = w x / sqrt(mean(x^2) + eps): no mean is subtracted, nothing is added
    positions    pair i of a query's or key's numbers is rotated by the angle t base^(-2 i / K) of its position t, so
                 that their product depends on the distance. Pair i is (x_i, x_{i + K/2}), two halves, as in
                 transformers; the paper's are neighbours (x_2i, x_{2i+1}): the same up to the order of a head's rows
    attention    G heads of keys and values for H of queries: heads h H/G to (h + 1) H/G - 1 read the keys of head h
    mlp          down(silu(gate(x)) * up(x)), three matrices

No layer has a bias, and the head has its own matrix unless `tied_head`.

Cost, for one token with context T: about 2 P + 4 L T H K FLOPs forward; twice that backward.
Shapes: B batch, T time, D width, H heads, G heads of keys and values, K width of a head, F hidden width, V vocabulary.
Source: Touvron et al., "LLaMA", 2023, arXiv 2302.13971, section 2.2; Llama Team, 2024, arXiv 2407.21783, section 3.2
(8 key-value heads, base 500,000); Su et al., "RoFormer", 2021, arXiv 2104.09864, equations 14, 15; Zhang and Sennrich,
2019, arXiv 1910.07467; Shazeer, 2020, arXiv 2002.05202; Ainslie et al., 2023, arXiv 2305.13245.
Simplified: the initial values of gpt.py; no scaling of the rotary angles for longer contexts; the angles are computed
in each layer again, so that a layer needs only its input.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lablib.models.gpt import GPT, Attention, Block, Undrawn, initialize, require_length
from lablib.models.llama_sizes import LlamaConfig
from lablib.models.sizes import GPTConfig
from lablib.signature import checked


@checked
def rotate(x_BHTK: Float[Tensor, "B H T K"], positions_BT: Int[Tensor, "#B T"], base: float) -> Tensor:
    """Rotate each pair (i, i + K/2) by the angle of its position and its i; a new tensor."""
    half = x_BHTK.shape[-1] // 2
    powers_k = torch.arange(half, device=x_BHTK.device, dtype=torch.float64) / half
    angles_B1Tk = positions_BT[:, None, :, None].double() * base**-powers_k
    wide = torch.promote_types(x_BHTK.dtype, torch.float32)  # 16 bits are too few for a product of two of 8 or 11 bits
    cos, sin = angles_B1Tk.cos().to(wide), angles_B1Tk.sin().to(wide)
    first, second = x_BHTK[..., :half], x_BHTK[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x_BHTK.dtype)


class GroupedAttention(Attention):
    """Causal self-attention with rotary positions, and with fewer heads of keys and values than of queries."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype):
        nn.Module.__init__(self)
        self.num_heads, self.num_kv_heads = config.num_heads, config.kv_heads
        self.d_head, self.rope_base = config.d_head, config.rope_base
        widths = [heads * self.d_head for heads in (self.num_heads, self.num_kv_heads, self.num_kv_heads)]
        self.query, self.key, self.value = (linear(config.d_model, width, device, dtype) for width in widths)
        self.out = linear(widths[0], config.d_model, device, dtype)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        # The numbers of heads follow from the outputs (-1): tensor parallelism may leave some of them on this rank.
        q_BHTK, k_BGTK, v_BGTK = (
            layer(x_BTD).unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        positions_1T = torch.arange(q_BHTK.shape[2], device=x_BTD.device)[None]
        q_BHTK, k_BGTK = (rotate(x, positions_1T, self.rope_base) for x in (q_BHTK, k_BGTK))
        is_grouped = self.num_heads != self.num_kv_heads
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BGTK, v_BGTK, is_causal=True, enable_gqa=is_grouped)
        return self.out(y_BHTK.transpose(1, 2).flatten(-2))


class GatedMLP(nn.Module):
    """SwiGLU: two matrices from D to F, one through SiLU as the gate of the other, and one back."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.gate, self.up = (linear(config.d_model, config.hidden_size, device, dtype) for _ in range(2))
        self.down = linear(config.hidden_size, config.d_model, device, dtype)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class LlamaBlock(Block):
    """One layer, with the forward pass of gpt.py."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype):
        nn.Module.__init__(self)
        self.attention_norm, self.mlp_norm = (
            nn.RMSNorm(config.d_model, config.norm_eps, device=device, dtype=dtype) for _ in range(2)
        )
        self.attention, self.mlp = GroupedAttention(config, device, dtype), GatedMLP(config, device, dtype)


class Llama(nn.Module):
    """The whole model: `Llama(config)(tokens_BT)` is `logits_BTV`. Arguments as of `GPT`."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        seed: int | torch.Generator = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        device = torch.get_default_device() if device is None else torch.device(device)
        self.config = config
        with Undrawn():
            self.token_embedding = nn.Embedding(config.vocab_size, config.d_model, device=device, dtype=dtype)
            self.blocks = nn.ModuleList(LlamaBlock(config, device, dtype) for _ in range(config.num_layers))
            self.final_norm = nn.RMSNorm(config.d_model, config.norm_eps, device=device, dtype=dtype)
            self.head = linear(config.d_model, config.vocab_size, device, dtype)
        if config.tied_head:
            self.head.weight = self.token_embedding.weight
        if device.type != "meta":
            initialize(self, config.num_layers, seed)

    def forward(self, tokens_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Scores of every token as the next one, before softmax. Tokens in [0, V), int64; T at most `max_seq_len`."""
        require_length(tokens_BT, self.config.max_seq_len)
        x_BTD = self.token_embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.final_norm(x_BTD))


def linear(inputs: int, outputs: int, device: torch.device, dtype: torch.dtype) -> nn.Linear:
    """A matrix without a bias."""
    return nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)


@checked
def model_of(
    config: GPTConfig | LlamaConfig,
    *,
    seed: int | torch.Generator = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> GPT | Llama:
    """The model with these sizes. Arguments as of `GPT`."""
    if isinstance(config, LlamaConfig):
        return Llama(config, seed=seed, dtype=dtype, device=device)
    return GPT(config, seed=seed, dtype=dtype, device=device)
