"""A plain GPT without parallelism: the model of every technique in this project.

Tokens and positions are embedded and added. Each of `num_layers` blocks then adds two corrections to this residual
stream: attention, in which a token reads the tokens before it, and an MLP, which works on each token separately. Both
read a layer-normalized copy (pre-norm), so the stream runs unchanged from the embedding to the head. The head scores
every word of the vocabulary as the next token.

    tokens -> embedding -> (+attention(norm), +mlp(norm)) x num_layers -> norm -> head -> logits

Cost, for one token with context T (a multiply-add is two FLOPs): the forward pass takes about 2 P + 4 L T D FLOPs, with
P the parameters of the matrices and L the layers; backward takes twice that. `sizes.py` has P as a closed form.

Shapes (one letter per dimension; names end in them, as in `x_BTD`):
    B batch    T time, i.e. position    D model width    H attention heads    K width of a head, H K = D
    F hidden width of the MLP           V vocabulary

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3 (pre-norm, scaled
initialization of residual projections); Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165.
Simplified: no dropout; query, key and value are three matrices (GPT-2 stores them as one); GPT-3's sparse attention
layers are dense here.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from lablib.models.sizes import GPTConfig
from lablib.signature import checked


class Attention(nn.Module):
    """Causal self-attention: every position takes a weighted mean of the values at itself and before."""

    def __init__(self, config: GPTConfig, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.num_heads = config.num_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(config.d_model, config.d_model, device=device, dtype=dtype) for _ in range(4)
        )

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        # The number of heads follows from the output (-1): tensor parallelism may leave some of them on this rank.
        d_head = self.query.in_features // self.num_heads
        q_BHTK, k_BHTK, v_BHTK = (
            linear(x_BTD).unflatten(-1, (-1, d_head)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.out(y_BHTK.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two matrices with a GELU between: D to F and back, for each token separately."""

    def __init__(self, config: GPTConfig, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.up = nn.Linear(config.d_model, config.hidden_size, device=device, dtype=dtype)
        self.down = nn.Linear(config.hidden_size, config.d_model, device=device, dtype=dtype)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.down(F.gelu(self.up(x_BTD), approximate="tanh"))  # the tanh form, as in GPT-2


class Block(nn.Module):
    """One layer: attention, then the MLP; each reads a normalized copy of the stream and is added to it."""

    def __init__(self, config: GPTConfig, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model, device=device, dtype=dtype)
        self.attention = Attention(config, device, dtype)
        self.mlp_norm = nn.LayerNorm(config.d_model, device=device, dtype=dtype)
        self.mlp = MLP(config, device, dtype)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class Undrawn(TorchFunctionMode):
    """Layers made under it keep uninitialized parameters, since torch's initial values would be overwritten."""

    _FILLS = frozenset({init.kaiming_uniform_, init.uniform_, init.normal_, Tensor.fill_, Tensor.zero_})

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        return (args[0] if args else kwargs["tensor"]) if func in self._FILLS else func(*args, **kwargs)


class GPT(nn.Module):
    """The whole model: `GPT(config)(tokens_BT)` is `logits_BTV`.

    Arguments:
        config: the sizes; `model_config("gpt2")` has published ones.
        seed: a number, or a CPU generator to draw from. The same seed gives the same weights on every device and in
            every dtype, up to rounding; torch's default generators are not used.
        dtype: of the parameters; float64 for tests of gradients.
        device: of the parameters; None: torch's default device. "meta" builds only the shapes, at no cost.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        seed: int | torch.Generator = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        device = torch.get_default_device() if device is None else torch.device(device)
        self.config = config
        with Undrawn():  # `initialize` draws
            self.token_embedding = nn.Embedding(config.vocab_size, config.d_model, device=device, dtype=dtype)
            self.position_embedding = nn.Embedding(config.max_seq_len, config.d_model, device=device, dtype=dtype)
            self.blocks = nn.ModuleList(Block(config, device, dtype) for _ in range(config.num_layers))
            self.final_norm = nn.LayerNorm(config.d_model, device=device, dtype=dtype)
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False, device=device, dtype=dtype)
        if config.tied_head:
            self.head.weight = self.token_embedding.weight
        if device.type != "meta":
            initialize(self, config.num_layers, seed)

    def forward(self, tokens_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Scores of every token as the next one, before softmax. Tokens in [0, V), int64; T at most `max_seq_len`."""
        require_length(tokens_BT, self.config.max_seq_len)
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.token_embedding(tokens_BT) + self.position_embedding(positions_T)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.final_norm(x_BTD))


def require_length(tokens_BT: Tensor, max_seq_len: int) -> None:
    """Raise ValueError for sequences that are too long for the model."""
    if tokens_BT.shape[1] > max_seq_len:
        raise ValueError(f"a sequence must have at most max_seq_len={max_seq_len} tokens: got {tokens_BT.shape[1]}.")


@torch.no_grad()
def initialize(model: nn.Module, num_layers: int, seed: int | torch.Generator) -> None:
    """GPT-2's initialization: weights N(0, 0.02), over sqrt(2 L) if added to the stream; biases 0, norms 1."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator("cpu").manual_seed(seed)
    # The stream is a sum of 2 L corrections: without the factor its variance would grow with the depth.
    residual_std = 0.02 / math.sqrt(2 * num_layers)
    for name, param in model.named_parameters():
        if name.endswith("bias"):
            param.zero_()
        elif param.ndim == 1:  # the weight of a norm
            param.fill_(1.0)
        else:
            std = residual_std if name.endswith(("attention.out.weight", "mlp.down.weight")) else 0.02
            # Drawn in float64 on the CPU and rounded: the same model for any dtype and device.
            drawn = torch.empty(param.shape, dtype=torch.float64, device="cpu")
            param.copy_(drawn.normal_(0.0, std, generator=generator))


@checked
def next_token_loss(logits_BTV: Float[Tensor, "B T V"], targets_BT: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the next token, in nats. Computed in float32, or in float64 for such logits.

    A uniform prediction gives ln(V): 5.545 for bytes. `targets_BT` are the inputs shifted by one position.
    """
    # Widen half-precision logits: exp and the sum over V lose too much in 8 or 11 bits.
    dtype = torch.promote_types(logits_BTV.dtype, torch.float32)
    return F.cross_entropy(logits_BTV.to(dtype).flatten(0, 1), targets_BT.flatten())
