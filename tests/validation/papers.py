"""Formulas as printed in papers, to compare the planner and the closed forms with.

Korthikanti's formulas: activation bytes of a GPT for backward, per layer and on the first stage.

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

Megatron's formulas: parameters of a GPT, and bytes of model states per rank.

    P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h))        l layers of width h, vocabulary V, s positions

12 l h^2 are the matrices; 13 l h the biases (9) and norms (4) of the layers; (V + s) h the embeddings. The norm at the
end (2 h) is left out, and the head shares the embedding's matrix.

Mixed precision with Adam keeps 18 bytes per parameter: 2 of the parameter, 4 of its gradient (summed in 32 bits), 12 of
the optimizer. The memory figure of Korthikanti et al. counts them for the matrices of the layers only, 12 l h^2 / (t
p).

Source: Narayanan et al., SC21, 2021, arXiv 2104.04473, equation 2; Korthikanti et al., 2022, arXiv 2205.05198,
figure 1. Their FLOPs are in lablib/models/transformer_flops.py.

ZeRO's table: bytes of parameters, gradients and optimizer states on each of n ranks, by stage.

Data-parallel ranks all keep the same model states. ZeRO gives each rank 1/n of the optimizer states (stage 1), also of
the gradients (stage 2), also of the parameters (stage 3). For P parameters in 16 bits and K bytes of optimizer states
per parameter (12 for Adam: master copy and two moments):

    stage 0   2 P + 2 P + K P          stage 2   2 P + (2 P + K P) / n
    stage 1   2 P + 2 P + K P / n      stage 3   (2 P + 2 P + K P) / n

Each rank sends 2 P numbers per step (an all-reduce) in stages 0 to 2, and 1.5 times as many in stage 3, which gathers
parameters in forward and in backward.

Source: Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", 2019, arXiv
1910.02054, sections 3.1, 5 and 7, figure 1 and table 1.
Simplified as in the paper: n divides everything; no buffers, activations or fragmentation.
"""

from lablib.cost.arrays import Numbers


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
    """
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


STATE_BYTES = 18  # per parameter: weight 2, gradient 4, master copy 4, two moments 8


def megatron_parameters(layers: Numbers, h: Numbers, vocab_size: Numbers, s: Numbers) -> Numbers:
    """P of a GPT of `layers` layers of width h, over `vocab_size` tokens and s positions."""
    return 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocab_size + s) / (12 * layers * h))


def megatron_layer_states_bytes(layers: Numbers, h: Numbers, *, tensor: Numbers = 1, pipeline: Numbers = 1) -> Numbers:
    """Bytes of parameters, gradients and optimizer states on each rank, of the layers' matrices only."""
    return STATE_BYTES * 12 * layers * h**2 / (tensor * pipeline)


ADAM_BYTES = 12  # K: master copy, first and second moment, 4 bytes each


def zero_states_bytes(
    params: Numbers, stage: int, ranks: Numbers, optimizer_bytes: Numbers = ADAM_BYTES
) -> dict[str, Numbers]:
    """Bytes on each rank of "parameters", "gradients" and "optimizer"; their sum is the paper's figure.

    Arguments:
        params: P of the model that a rank would hold without ZeRO; a number or a numpy array.
        stage: 0 to 3.
        ranks: n, the data-parallel ranks.
        optimizer_bytes: K, per parameter.
    """
    return {
        "parameters": 2 * params / (ranks if stage >= 3 else 1),
        "gradients": 2 * params / (ranks if stage >= 2 else 1),
        "optimizer": optimizer_bytes * params / (ranks if stage >= 1 else 1),
    }


def zero_sent_numbers(params: Numbers, stage: int) -> Numbers:
    """Numbers that each rank sends in a step, for many ranks: 2 P, or 3 P with stage 3 (section 7)."""
    return (3 if stage >= 3 else 2) * params
