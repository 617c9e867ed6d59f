"""Activation recomputation: what is kept from forward to backward, and what is computed a second time for that.

    policy       repeated, a layer                             kept, a layer          besides, in backward
    none         nothing                                       S                      nothing
    selective    attention's core: scores, softmax, dropout    S - C                  C
      of products  what is cheap, every second product         I + A + O / 2          S less what is kept
    full         the forward pass                              I                      S
    every k      the forward pass                              I / k                  k S
    first k      of k layers of each stage as full, of the others as none

Which of the two "selective" is, the stack says. With flash attention its first kind keeps the scores of no layer
anyway: C is 0, and it only costs time.

Legend: S all bytes that a layer keeps for backward, C those of attention's core, I of its input (R D w: R tokens of a
micro-batch on a rank, D width, w bytes of a number), A of attention's output, O of the outputs of its linear layers.
Source: Chen et al., "Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174 (every k); Korthikanti et
al., 2022, arXiv 2205.05198, section 5 (selective); Megatron-LM's `--recompute-method block` (first k);
pytorch/torchtitan, parallelize_llama.py (of products).
Simplified: the mean layer of a stage stands for all: with "first k" each is recomputed in part.
"""

from typing import NamedTuple

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import forward_flops, recompute_flops
from lablib.plan.layer import Work
from lablib.plan.machine import Pass
from lablib.plan.stack import Stack
from lablib.signature import shown

KINDS = ("none", "selective", "full")
# Of the products of a layer, the share whose outputs `selective="products"` keeps: torchtitan's list of what is kept
# has `mm`, every second time. It sees products of 8 bits as `mm` too, before their tensors turn them into scaled ones.
KEPT_PRODUCTS = 0.5


class Recompute(NamedTuple):
    """One policy.

    Attributes:
        name: as it was asked for.
        kind: "none", "selective" or "full".
        every: layers that share one checkpoint.
        first: how many layers of a stage are recomputed; None: all.
    """

    name: str
    kind: str
    every: int = 1
    first: int | None = None

    def share(self, layers: Numbers) -> Numbers:
        """Of a stage's layers, the share that is recomputed."""
        return 1.0 if self.first is None else minimum(self.first / maximum(layers, 1), 1.0)

    def recomputed(self, work: Work, stack: Stack, layers: Numbers) -> Pass:
        """What of a mean layer's forward pass runs a second time."""
        if self.kind == "none":
            return Pass()
        if self.kind == "full":
            once = work.forward.plus(work.skipped.times(-1 / self.every))
            return once if self.first is None else once.times(self.share(layers))
        if stack.selective == "products":
            # What is cheap, and the products whose outputs are not kept; attention and what came over the wires are.
            return work.forward._replace(
                product_s=(1 - KEPT_PRODUCTS) * work.forward.product_s, attention_s=0.0, tensor_s=0.0
            )
        return work.core

    def recomputed_flops(self, model: Transformer, stack: Stack, layers: Numbers, seq_len: Numbers) -> Numbers:
        """FLOPs of a token that run a second time: of `layers` layers a stage, all together."""
        if self.kind == "selective" and stack.selective == "products":
            flops = forward_flops(model, seq_len)
            return (1 - KEPT_PRODUCTS) * (sum(flops.values()) - flops["scores"] - flops["head"])
        return self.share(layers) * recompute_flops(model, seq_len, recompute=self.kind)

    def saved_bytes(self, work: Work, stack: Stack, entering_bytes: Numbers, layers: Numbers) -> Numbers:
        """What a mean layer keeps of one micro-batch; `entering_bytes` are those of its input."""
        if self.kind == "none":
            return work.saved_bytes
        if self.kind == "selective" and stack.selective == "products":
            return entering_bytes + work.attention_bytes + KEPT_PRODUCTS * work.output_bytes
        if self.kind == "selective":
            return work.saved_bytes - work.core_bytes
        share = self.share(layers)
        return share * entering_bytes / self.every + (1 - share) * work.saved_bytes

    def working_bytes(self, work: Work, saved_bytes: Numbers, layers: Numbers) -> Numbers:
        """What is there besides while backward is at work: the stretch that was made again."""
        if self.kind == "none":
            return 0.0 * saved_bytes
        if self.kind == "selective":
            return maximum(work.saved_bytes - saved_bytes, 0.0)  # what is kept can be more, beside products in 8 bits
        return minimum(self.every, layers) * work.saved_bytes


def recompute_policy(text: str) -> Recompute:
    """The policy of that name. Raises ValueError for another text."""
    if isinstance(text, str) and text in KINDS:
        return Recompute(text, text)
    word, _, number = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if word in ("every", "first") and number.isdecimal() and len(number) < 10 and int(number) >= 1:
        return Recompute(text, "full", **{word: int(number)})
    raise ValueError(
        f'recompute is "none", "selective", "full", "every k" or "first k" layers: got {shown(text)}; try "every 4"'
    )
