"""muP: a parametrization in which the best learning rate of a narrow model is also best for a wide one.

One step of Adam changes every weight by about the learning rate, for any gradient. The changes of a hidden unit's
fan_in weights all have the sign of their input, so the unit moves fan_in times as far as one weight: twice the width,
twice the change. So a good rate for a narrow model makes a wide one diverge. muP (maximal update parametrization)
divides by this growth relative to a base width. With m = width / base width:

                                initial std    Adam's rate    multiplier of the output
    embeddings, biases, norms        1              1             1            one input for each unit
    matrices in the blocks       1 / sqrt(m)      1 / m           1            m times as many inputs
    head                             1              1          1 / m         m times as many inputs, in the output
    scores of attention                                      1 / sqrt(m_K)     m_K = K / base K

Scores are sums of K products. At the start queries and keys are independent and the sum grows as sqrt(K), by which
attention divides it. After training they are aligned, and it grows as K, so muP divides by another sqrt(K), relative to
the base.

Coordinate check: train a few steps at several widths and measure the change of each activation. Under muP it is the
same at every width (scores change a little less, until training outweighs their start); otherwise it grows with the
width.

Cost: none in training. A search at the base width takes m^2 times fewer FLOPs per run.
Shapes: D width, K width of a head, F hidden width of the MLP; B sequences, T tokens; S, T queries and keys.
Source: Yang et al., "Tensor Programs V", 2022, arXiv 2203.03466: table 8 for Adam (the form that allows a tied head),
definition 4.1 (attention), appendix D.1 (the check).
Simplified: the standard deviation at the base width is GPT-2's 0.02; depth, length and batch are not transferred;
Adam's epsilon is taken as 0. Decoupled decay is rate x decay, so decays are multiplied by the divisors of their rates.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.models.gpt import Attention
from lablib.signature import Count, NonNegative, NonNegativeInt, Positive, checked


@checked
def apply_mup_(model: GPT, base: GPTConfig) -> None:
    """Convert a newly initialized GPT to muP: smaller matrices, and multipliers by hooks. Call once per model.

    `base`: the model at the width where both parametrizations agree; ValueError if not equal except for widths.
    """
    config = model.config
    _check_same_but_width(config, base)
    with torch.no_grad():
        for param, growth in _matrices(model, base):
            param.mul_(growth**-0.5)
    model.head.register_forward_pre_hook(lambda _, inputs: (inputs[0] * (base.d_model / config.d_model),))
    for module in model.modules():
        if isinstance(module, Attention):
            _scale_output(module.query, math.sqrt(base.d_head / config.d_head))


@checked
def mup_groups(model: GPT, base: GPTConfig, lr: NonNegative, weight_decay: NonNegative = 0.0) -> list[dict[str, Any]]:
    """Parameter groups for AdamW, each with its rate; `lr` and `weight_decay` are for the base width."""
    _check_same_but_width(model.config, base)
    growth_of = dict(_matrices(model, base))
    groups: dict[float, list[Tensor]] = {}
    for param in model.parameters():
        groups.setdefault(growth_of.get(param, 1.0), []).append(param)
    return [
        {"params": params, "lr": lr / growth, "weight_decay": weight_decay * growth}
        for growth, params in groups.items()
    ]


@checked
def at_width(base: GPTConfig, growth: Count, wider_heads: bool = False) -> GPTConfig:
    """The same model, `growth` times as wide: with more heads, or with wider heads."""
    return replace(
        base,
        d_model=base.d_model * growth,
        num_heads=base.num_heads * (1 if wider_heads else growth),
        d_ff=base.hidden_size * growth,
    )


@checked
def coordinate_check(
    config: GPTConfig,
    base: GPTConfig | None,
    tokens_BT: Int[Tensor, "B T"],
    *,
    num_steps: NonNegativeInt = 4,
    lr: Positive = 1e-2,
    seed: int = 0,
) -> dict[str, float]:
    """Change of activations after some steps of Adam on one batch.

    Arguments:
        config: sizes of the model.
        base: in muP from this one; None: standard parametrization.
        tokens_BT: T at least 2; all but the last of a row are inputs.

    Returns:
        Root mean square of the change: of the stream after the embedding and after each block, of the
        first block's attention scores, and of the logits.
    """
    _check_tokens(tokens_BT, config)
    model = GPT(config, seed=seed)
    groups: Any = model.parameters()
    if base is not None:
        apply_mup_(model, base)
        groups = mup_groups(model, base, lr)
    optimizer = torch.optim.Adam(groups, lr=lr)
    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:].contiguous()
    start = _activations(model, inputs_BT)
    for _ in range(num_steps):
        optimizer.zero_grad()
        next_token_loss(model(inputs_BT), targets_BT).backward()
        optimizer.step()
    end = _activations(model, inputs_BT)
    return {name: (end[name] - start[name]).square().mean().sqrt().item() for name in start}


@torch.no_grad()
def _activations(model: GPT, inputs_BT: Tensor) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module) -> RemovableHandle:
        def store(module: nn.Module, inputs: Any, output: Tensor) -> None:
            seen[name] = output

        return module.register_forward_hook(store)

    first = model.get_submodule("blocks.0")
    hooks = [keep(f"block {index}", block) for index, block in enumerate(model.blocks)]
    hooks += [keep(name, first.get_submodule(f"attention.{name}")) for name in ("query", "key")]
    hooks.append(first.register_forward_pre_hook(lambda _, inputs: seen.update(embedding=inputs[0])))
    logits_BTV = model(inputs_BT)
    for hook in hooks:
        hook.remove()
    q_BTHK, k_BTHK = (seen.pop(name).unflatten(-1, (-1, model.config.d_head)) for name in ("query", "key"))
    scores_BHTT = torch.einsum("bshk,bthk->bhst", q_BTHK, k_BTHK) / math.sqrt(model.config.d_head)
    return seen | {"scores": scores_BHTT, "logits": logits_BTV}


def _matrices(model: GPT, base: GPTConfig) -> Iterator[tuple[Tensor, float]]:
    """Each matrix between two widths, and the growth of its fan_in."""
    narrow = GPT(base, device="meta").get_parameter
    for name, param in model.named_parameters():
        if name.startswith("blocks.") and param.ndim == 2:
            yield param, param.shape[1] / narrow(name).shape[1]


def _scale_output(module: nn.Module, factor: float) -> None:
    def scale(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output * factor

    module.register_forward_hook(scale)


def _check_tokens(tokens_BT: Tensor, config: GPTConfig) -> None:
    most = config.max_seq_len + 1
    if (
        tokens_BT.ndim != 2
        or not len(tokens_BT)
        or not 2 <= tokens_BT.shape[1] <= most
        or tokens_BT.dtype != torch.int64
    ):
        raise ValueError(
            f"tokens_BT must be int64, rows of 2 to {most} tokens: got {tuple(tokens_BT.shape)}, {tokens_BT.dtype}."
        )
    low, high = int(tokens_BT.min()), int(tokens_BT.max())
    if low < 0 or high >= config.vocab_size:
        raise ValueError(f"tokens must be from 0 to vocab_size - 1 = {config.vocab_size - 1}: got {low} to {high}.")


def _check_same_but_width(config: GPTConfig, base: GPTConfig) -> None:
    for name in ("num_layers", "vocab_size", "max_seq_len", "tied_head"):
        ours, theirs = getattr(config, name), getattr(base, name)
        if ours != theirs:
            raise ValueError(f"muP transfers only between widths: got {name} {ours} and, of the base, {theirs}.")
