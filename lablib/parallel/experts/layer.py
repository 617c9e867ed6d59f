"""Mixture of experts: a router and E MLPs instead of one, with k of them per token; and a model with such layers.

    model = with_experts(GPT(config), num_experts=8, k=2)
    loss = next_token_loss(model(tokens), targets)
    for mixture in mixtures(model):
        loss = loss + 0.01 * balancing_loss(mixture.routing)

    x -> router -> routing
    x -> dispatch -> rows of expert 0 | 1 | ... -> up, GELU, down of each -> combine by weight (+ shared experts) -> y

Experts of a Llama are gated, as its MLP (SwiGLU): down(silu(gate(x)) * up(x)), three matrices of D F numbers, not two.

Parameters grow with E, the computation per token only with k. Shared experts process every token, with weight 1, so the
other experts need not all learn common features; S of them are one MLP of S F.

Router and scores are computed at least in float32, for any dtype of the model: the choice between close scores with 8
bits of mantissa would be noise.

Cost of the forward pass for N tokens, in a dtype of w bytes:
    FLOPs       4 N (k + S) D F + 2 N D E; a dense MLP 4 N D F; with gates 6 instead of 4
    peak bytes  weights 2 (E + S) D F w + D E w; activations 2 N k (F + D) w, for backward; with gates 3 and 2 N k (2 F
                + D) w
Shapes: N tokens, D width, E experts, k experts per token, F hidden width of one, M rows, S shared experts.
Source: Shazeer et al., 2017, arXiv 1701.06538, section 2; Fedus et al., "Switch Transformers", 2021, arXiv 2101.03961,
section 2 (instead of the MLP; capacity factor; float32 router); Lepikhin et al., "GShard", 2020, arXiv 2006.16668,
section 2.2 (every other layer); Dai et al., "DeepSeekMoE", 2024, arXiv 2401.06066, section 3.2 (shared experts); Jiang
et al., "Mixtral of Experts", 2024, arXiv 2401.04088, section 2.1 (SwiGLU).
Simplified: no biases in experts; `routing` keeps its graph until the next forward; no dropout.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lablib.errors import unknown_name
from lablib.models.gpt import GPT
from lablib.models.llama import Llama
from lablib.parallel.experts.dispatch import LATEST, Drop, combine, dispatch, expert_capacity, sort_by_expert
from lablib.parallel.experts.products import Product, loop_product
from lablib.parallel.experts.routing import Gates, Routing, check_choices, check_weights, route, softmax_gates
from lablib.signature import Count, NonNegativeInt, Positive, check_fields, checked


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """Sizes and options of a mixture."""

    num_experts: Count  # num_experts, k: E, and experts per token
    k: Count
    num_shared: NonNegativeInt = 0  # shared experts S
    capacity_factor: Positive | None = None  # room of an expert, in even shares (`expert_capacity`); None: dropless
    drop: Drop = LATEST  # whom a full expert drops
    gates: Gates = softmax_gates  # gates, normalized, scale, groups, groups_of_token, balanced: as in `route`
    normalized: bool | None = None
    scale: Positive = 1.0
    groups: Count = 1
    groups_of_token: Count = 1
    balanced: bool = False
    has_bias: bool = False  # whether there is a bias for the choice, which `update_bias_` changes
    product: Product = loop_product  # `loop_product`, `padded_product` or `grouped_product`
    has_gate: bool = False  # whether experts are gated by SiLU (SwiGLU), instead of GELU

    def __post_init__(self) -> None:
        check_fields(self)
        check_choices(self.num_experts, self.k, self.groups, self.groups_of_token)
        check_weights(self.k, self.normalized)


class ExpertMLPs(nn.Module):
    """E MLPs (up_EDF, down_EFD) without biases; `forward(rows_MD, counts)` gives each its run of rows by `product`.

    `gate`: a third matrix [E, D, F], through SiLU as the gate of `up`; None: GELU.
    """

    def __init__(self, up: Tensor, down: Tensor, product: Product = loop_product, gate: Tensor | None = None):
        super().__init__()
        self.up, self.down, self.product = nn.Parameter(up), nn.Parameter(down), product
        self.gate = None if gate is None else nn.Parameter(gate)

    @property
    def num_experts(self) -> int:
        return len(self.up)

    def forward(self, rows_MD: Float[Tensor, "M D"], counts: tuple[int, ...]) -> Float[Tensor, "M D"]:
        hidden_MF = self.product(rows_MD, self.up, counts)
        if self.gate is None:
            hidden_MF = F.gelu(hidden_MF, approximate="tanh")
        else:
            hidden_MF = F.silu(self.product(rows_MD, self.gate, counts)) * hidden_MF
        return self.product(hidden_MF, self.down, counts)

    def extra_repr(self) -> str:
        return f"{self.num_experts} experts, {self.up.shape[1]} to {self.up.shape[2]}"


class MixtureOfExperts(nn.Module):
    """Router, experts and shared experts: `mixture(x)` has the shape of x, (..., D).

    Attributes:
        routing: of the last forward, for losses, with its graph; None before.
        num_dropped: choices dropped in the last forward.
        bias_E: of the choice, float32; None without `has_bias`.

    Arguments:
        config: its sizes and options.
        d_model, d_ff: widths D and F.
        generator: of the initial weights, on the CPU: N(0, 0.02), and `residual_std` for projections to the residual
        stream.
        dtype, device: of the parameters.
    """

    routing: Routing | None
    bias_E: Tensor | None
    needs_all_tokens = True  # on tensor ranks: plans with sequence parallelism must name it (`tensor/plan.py`)

    @checked
    def __init__(
        self,
        config: MixtureConfig,
        d_model: Count,
        d_ff: Count,
        *,
        generator: torch.Generator | None = None,
        residual_std: float = 0.02,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        device = torch.get_default_device() if device is None else torch.device(device)
        generator = generator or torch.Generator("cpu").manual_seed(0)

        def drawn(std: float, *shape: int) -> Tensor:
            if device.type == "meta":
                return torch.empty(shape, dtype=dtype, device=device)
            # In float64 on the CPU and rounded, as in gpt.py: the same mixture in every dtype and on every device.
            whole = torch.empty(shape, dtype=torch.float64, device="cpu").normal_(0.0, std, generator=generator)
            return whole.to(device, dtype)

        self.config, self.routing, self.num_dropped = config, None, 0
        self.router = nn.Linear(d_model, config.num_experts, bias=False, device="meta")
        self.router.weight = nn.Parameter(drawn(0.02, config.num_experts, d_model))

        def mlps(count: int, width: int) -> ExpertMLPs:
            up, down = drawn(0.02, count, d_model, width), drawn(residual_std, count, width, d_model)
            return ExpertMLPs(up, down, config.product, drawn(0.02, *up.shape) if config.has_gate else None)

        self.experts = mlps(config.num_experts, d_ff)
        self.shared = mlps(1, config.num_shared * d_ff) if config.num_shared else None
        self.register_buffer("bias_E", torch.zeros(config.num_experts, device=device) if config.has_bias else None)

    def forward(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        x_ND = x.reshape(-1, x.shape[-1])
        self.routing = self.route(x_ND)
        return self.mix(x_ND, self.routing).view(x.shape)

    def route(self, x_ND: Float[Tensor, "N D"]) -> Routing:
        """The experts of each token."""
        config = self.config
        return route(
            self.logits(x_ND, self.router.weight),
            config.k,
            gates=config.gates,
            normalized=config.normalized,
            scale=config.scale,
            bias_E=self.bias_E,
            groups=config.groups,
            groups_of_token=config.groups_of_token,
            balanced=config.balanced,
        )

    def logits(self, x_ND: Float[Tensor, "N D"], weight_ED: Float[Tensor, "E D"]) -> Float[Tensor, "N E"]:
        """The router's."""
        dtype = torch.promote_types(x_ND.dtype, torch.float32)
        with _without_autocast(x_ND.device.type):
            return F.linear(x_ND.to(dtype), weight_ED.to(dtype))

    def mix(self, x_ND: Float[Tensor, "N D"], routing: Routing) -> Float[Tensor, "N D"]:
        """The weighted sum of the outputs of the chosen experts, plus the shared experts."""
        permutation = sort_by_expert(routing, self.capacity(routing), self.config.drop)
        self.num_dropped = permutation.num_dropped
        rows_MD = self.experts(dispatch(x_ND, permutation), permutation.counts)
        y_ND = combine(rows_MD, permutation, routing.weights_Nk)
        return y_ND if self.shared is None else y_ND + self.shared(x_ND, (len(x_ND),))

    def capacity(self, routing: Routing) -> int | None:
        """Maximum rows of an expert; None: unlimited."""
        factor = self.config.capacity_factor
        if factor is None or not routing.num_tokens:
            return None
        return expert_capacity(routing.num_tokens, routing.k, routing.num_experts, factor)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"routing": None}  # a copy has the weights, but not the graph of the last forward


def _without_autocast(device_type: str) -> Any:
    is_there = torch.amp.is_autocast_available(device_type)  # not for "meta"
    return torch.autocast(device_type, enabled=False) if is_there else nullcontext()


@checked
def with_experts(
    model: GPT | Llama,
    num_experts: Count,
    k: Count,
    *,
    d_ff: Count | None = None,
    every: Count = 1,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Replace the MLP of every `every`-th block by a mixture, in place, and return the model.

    Arguments:
        num_experts, k: E, and how many of them a token visits.
        d_ff: hidden width of an expert; None: the width of the MLP.
        every: 1 for all blocks, 2 for every other one, beginning with the second.
        seed: of the initial weights of routers and experts: N(0, 0.02), and the model's std for residual projections.
        options: other options of `MixtureConfig`; `has_gate` is True for a Llama, unless it is given.

    Raises:
        ValueError: invalid or unknown options of `MixtureConfig`; a model that already has mixtures, or too few blocks
            for `every`.
    """
    known = [field.name for field in fields(MixtureConfig)][2:]
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    config = MixtureConfig(num_experts, k, **{"has_gate": isinstance(model, Llama), **options})
    width = model.config.hidden_size if d_ff is None else d_ff
    if next(mixtures(model), None) is not None:
        raise ValueError("with_experts takes a model with MLPs in its blocks: got one with mixtures; make a new model.")
    if every > len(model.blocks):
        raise ValueError(
            f"every must be at most the number of blocks: got {every} of {len(model.blocks)}; try every=1."
        )
    generator = torch.Generator("cpu").manual_seed(seed)
    for block in list(model.blocks)[every - 1 :: every]:
        weight = block.get_parameter("mlp.up.weight")
        block.mlp = MixtureOfExperts(
            config,
            model.config.d_model,
            width,
            generator=generator,
            residual_std=0.02 / math.sqrt(2 * model.config.num_layers),
            dtype=weight.dtype,
            device=weight.device,
        ).train(block.training)
    return model


def mixtures(model: nn.Module) -> Iterator[MixtureOfExperts]:
    """The mixtures of a model, in order of blocks."""
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))
