"""Korthikanti's formulas: activation bytes of a GPT for backward, per layer and on the first stage.

For s tokens of b sequences, width h, a heads, L layers, vocabulary v; t tensor-parallel ranks; numbers have 16 bits,
masks one byte. Bytes per layer (table 2):

    nothing recomputed                        s b h (34 + 5 a s / h)
    tensor parallel                           s b h (10 + 24 / t + 5 a s / (h t))
    tensor and sequence parallel              s b h (34 / t + 5 a s / (h t))
    tensor parallel, selective                s b h (10 + 24 / t)
    tensor and sequence parallel, selective   s b h (34 / t)
    full                                      s b h (2)               the layer's input, the same on all ranks

34 are 11 of attention, 19 of the MLP and 4 of two norms; 5 a s / h the scores: softmax, its mask, its dropped-out copy.
Selective recomputation computes those again, which are 70% of GPT-3's bytes and 2.7% of its FLOPs.

The first of p stages has p micro-batches in flight in 1F1B, each of L / p layers, so the activations of L layers;
interleaved with m chunks per stage, 1 + (p - 1) / (p m) times as much. Outside the layers (section 4.3), with sequence
parallelism:

    s b h p / t        masks of the dropout behind the embedding, for each micro-batch in flight
    4 s b h (1 + v / h) / t   where p = 1: the inputs of the last norm and of the head, and logits in 32 bits

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv 2205.05198,
equations 1 to 6, table 2, section 4.2.3 and 4.3.
Simplified as in the paper: GELU MLPs of width 4 h, dropout everywhere, no FlashAttention.
"""

from lablib.cost.arrays import Numbers
from lablib.errors import unknown_name

RECOMPUTE = ("none", "selective", "full")


def layer_activation_bytes(
    s: Numbers,
    b: Numbers,
    h: Numbers,
    a: Numbers,
    *,
    tensor: Numbers = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> Numbers:
    """Bytes per layer and micro-batch on each rank (table 2).

    Arguments:
        s, b, h, a: tokens, sequences, width, heads; numbers or numpy arrays.
        tensor: t, ranks that share each matrix.
        sequence_parallel: whether norms, dropout and residuals are split over them too.
        recompute: "none", "selective" or "full".

    Raises:
        ValueError: an unknown `recompute`.
    """
    if recompute not in RECOMPUTE:
        raise unknown_name("recompute", recompute, RECOMPUTE)
    if recompute == "full":
        return 2 * s * b * h
    shared = 34 / tensor if sequence_parallel else 10 + 24 / tensor
    scores = 5 * a * s / (h * tensor) if recompute == "none" else 0
    return s * b * h * (shared + scores)


def first_stage_activation_bytes(
    s: Numbers,
    b: Numbers,
    h: Numbers,
    a: Numbers,
    layers: Numbers,
    *,
    tensor: Numbers = 1,
    pipeline: Numbers = 1,
    chunks: Numbers = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> Numbers:
    """Bytes of all layers of the first stage, for its micro-batches in flight (equations 5 and 6).

    Arguments:
        layers: L of the whole model.
        pipeline: p stages, of a 1F1B schedule with at least p micro-batches.
        chunks: m pieces of the model on each stage, interleaved; 1: not interleaved.
        Others as in `layer_activation_bytes`.
    """
    layer = layer_activation_bytes(s, b, h, a, tensor=tensor, sequence_parallel=sequence_parallel, recompute=recompute)
    return layers * layer * interleaving_factor(pipeline, chunks)


def interleaving_factor(pipeline: Numbers, chunks: Numbers) -> Numbers:
    """Factor of the first stage in an interleaved schedule: 1 + (p - 1) / (p m); 1 if m is 1."""
    return 1 + (chunks > 1) * (pipeline - 1) / (pipeline * chunks)


def outer_activation_bytes(
    s: Numbers, b: Numbers, h: Numbers, v: Numbers, *, tensor: Numbers = 1, pipeline: Numbers = 1
) -> Numbers:
    """Bytes outside the layers on the first stage: embedding, and if it is also the last, norm, head and loss."""
    return s * b * h / tensor * (pipeline + (pipeline == 1) * 4 * (1 + v / h))
