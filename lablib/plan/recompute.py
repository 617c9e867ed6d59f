"""Activation recomputation: bytes kept from forward to backward, and work that is repeated for it.

    policy       repeated, per layer                           kept, per layer        besides, in backward
    none         nothing                                       S                      nothing
    selective    attention's core: scores, softmax, dropout    S - C                  C
      of products  all but every second product                I + A + O / 2          S minus the kept bytes
      all but weights  all but the products with weights       I + O                  S minus the kept bytes
    full         the forward pass                              I                      S
    every k      the forward pass                              I / k                  k S
    first k      of k layers of each stage as full, of the others as none

Of "full" and "every k", stacks that stop early (`Stack.stops_recomputation`) leave out the end of the last layer: its
MLP's last product, of F by D, its sum over ranks and its residual, which keep nothing for backward.

The stack decides which of the three "selective" is. Flash attention keeps no scores, so C is 0, and the first kind only
costs time.

Legend: S bytes that a layer keeps for backward, C bytes of attention's core, I of its input (R D w: R tokens of a
micro-batch on a rank, D width, w bytes per number), A of attention's output, O of the outputs of its linear layers; F
hidden width of its MLP.
Source: Chen et al., "Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174 (every k); Korthikanti et
al., 2022, arXiv 2205.05198, section 5 (selective); Megatron-LM's `--recompute-method block` (first k);
pytorch/torchtitan, parallelize_llama.py (of products); jax.checkpoint_policies, dots_with_no_batch_dims_saveable.
Simplified: the average layer of a stage represents all: with "first k" each is recomputed in part.
"""

from difflib import get_close_matches
from typing import NamedTuple

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import forward_flops, recompute_flops
from lablib.plan.layer import Work
from lablib.plan.machine import PassTime
from lablib.plan.stack import Stack
from lablib.signature import shown

KINDS = ("none", "selective", "full")
# Share of a layer's products that keep their outputs with `selective="products"`: torchtitan keeps every second `mm`,
# and sees products of 8 bits as `mm` too, before their tensors turn them into scaled ones.
KEPT_PRODUCTS = 0.5


class Recompute(NamedTuple):
    """One policy."""

    name: str  # as in the argument
    kind: str  # "none", "selective" or "full"
    every: int = 1  # layers that share one checkpoint
    first: int | None = None  # layers of a stage that are recomputed; None: all

    def share(self, layers: Numbers) -> Numbers:
        """Share of a stage's layers that are recomputed."""
        return 1.0 if self.first is None else minimum(self.first / maximum(layers, 1), 1.0)

    def recomputed(self, work: Work, stack: Stack, layers: Numbers) -> PassTime:
        """The part of an average layer's forward pass that runs a second time."""
        if self.kind == "none":
            return PassTime()
        if self.kind == "full":
            once = work.forward.plus(work.skipped.times(-1 / self.every))
            return once if self.first is None else once.times(self.share(layers))
        if stack.selective == "products":
            # The other products and all cheap operators; outputs of attention and of collectives are kept.
            product_s = (1 - KEPT_PRODUCTS) * work.forward.product_s
            return work.forward._replace(product_s=product_s, attention_s=0.0, tensor_s=0.0)
        if stack.selective == "all but weights":
            return work.forward._replace(product_s=work.core.product_s, tensor_s=0.0)
        return work.core

    def recomputed_flops(self, model: Transformer, stack: Stack, layers: Numbers, seq_len: Numbers) -> Numbers:
        """FLOPs per token of all layers that run a second time, with `layers` layers in a stage."""
        if self.kind == "selective" and stack.selective == "products":
            flops = forward_flops(model, seq_len)
            return (1 - KEPT_PRODUCTS) * (sum(flops.values()) - flops["scores"] - flops["head"])
        last = 0.0
        if self.kind == "full" and (stack.stops_recomputation or stack.is_eager):
            last = 2 * model.d_model * model.hidden_size * (model.num_layers - model.num_expert_layers) / self.every
        return self.share(layers) * (recompute_flops(model, seq_len, recompute=self.kind) - last)

    def saved_bytes(self, work: Work, stack: Stack, entering_bytes: Numbers, layers: Numbers) -> Numbers:
        """Bytes that an average layer keeps of one micro-batch; `entering_bytes` are its input's."""
        if self.kind == "none":
            return work.saved_bytes
        if self.kind == "selective" and stack.selective == "products":
            return entering_bytes + work.attention_bytes + KEPT_PRODUCTS * work.output_bytes
        if self.kind == "selective" and stack.selective == "all but weights":
            return entering_bytes + work.output_bytes
        if self.kind == "selective":
            return work.saved_bytes - work.core_bytes
        share = self.share(layers)
        return share * entering_bytes / self.every + (1 - share) * work.saved_bytes

    def working_bytes(self, work: Work, saved_bytes: Numbers, layers: Numbers) -> Numbers:
        """Additional bytes during backward: the stretch that is recomputed."""
        if self.kind == "none":
            return 0.0 * saved_bytes
        if self.kind == "selective":
            return maximum(work.saved_bytes - saved_bytes, 0.0)  # with products in 8 bits more may be kept
        return minimum(self.every, layers) * work.saved_bytes


def recompute_policy(text: str) -> Recompute:
    """The policy of that name. Raises ValueError for another text."""
    if isinstance(text, str) and text in KINDS:
        return Recompute(text, text)
    word, _, number = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if word in ("every", "first") and number.isdecimal() and len(number) < 10 and int(number) >= 1:
        return Recompute(text, "full", **{word: int(number)})
    near = get_close_matches(text[:40], KINDS, n=1) if isinstance(text, str) else []
    raise ValueError(
        'recompute is "none", "selective", "full", "every k" or "first k" layers: got '
        f'{shown(text)}; try "{near[0] if near else "every 4"}"'
    )
