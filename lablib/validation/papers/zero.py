"""ZeRO's table: bytes of parameters, gradients and optimizer states on each of n ranks, by stage.

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

ADAM_BYTES = 12  # K: master copy, first and second moment, 4 bytes each
STAGES = (0, 1, 2, 3)


def zero_states_bytes(
    params: Numbers, stage: int, ranks: Numbers, optimizer_bytes: Numbers = ADAM_BYTES
) -> dict[str, Numbers]:
    """Bytes on each rank of "parameters", "gradients" and "optimizer"; their sum is the paper's figure.

    Arguments:
        params: P of the model that a rank would hold without ZeRO; a number or a numpy array.
        stage: 0 to 3.
        ranks: n, the data-parallel ranks.
        optimizer_bytes: K, per parameter.

    Raises:
        ValueError: an unknown stage.
    """
    if stage not in STAGES:
        raise ValueError(f"stage is 0, 1, 2 or 3: got {stage!r}")
    return {
        "parameters": 2 * params / (ranks if stage >= 3 else 1),
        "gradients": 2 * params / (ranks if stage >= 2 else 1),
        "optimizer": optimizer_bytes * params / (ranks if stage >= 1 else 1),
    }


def zero_sent_numbers(params: Numbers, stage: int) -> Numbers:
    """Numbers that each rank sends in a step, for many ranks: 2 P, or 3 P with stage 3 (section 7)."""
    return (3 if stage >= 3 else 2) * params
