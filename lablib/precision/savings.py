"""Memory savings of mixed precision in one step, by content: a program for the simulator, and formulas.

16-bit numbers take half the bytes, but few numbers of a step are only in 16 bits. For each of P parameters:

    bytes                        FP32    16 bits, master weights
    weights                      4       2 + 4
    gradient                     4       2, then 4
    Adam's m and v               8       8
    in all                       16      18, and 2 more of one gradient after the other

So the permanent memory of a step is not halved: it grows by an eighth. Activations are halved, except in FP32: logits
and their softmax, 4 bytes for each token and word of the vocabulary, two or three times. "Half the memory" holds only
if activations outweigh the rest.

    run = launch(partial(training_steps, BF16, config, 8), ranks=1, cluster="dgx-a100", fidelity="shapes")
    run.memory.at_peak(0)                               # bytes by category at the peak
    run.timeline.without("warm-up").makespan_s          # seconds of a step

Source: Micikevicius et al., 2017, arXiv 1710.03740, sections 3.1 and 4; Rajbhandari et al., "ZeRO", 2019, arXiv
1910.02054, section 3.1 (16 bytes per parameter: it keeps gradients in 16 bits).
Simplified: no loss scaler; every number of the model is in 16 bits (autocast keeps weights in FP32 and copies them).
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.phases import phase
from lablib.precision.formats import BF16, FP16, FP32, TF32, Format
from lablib.precision.mixed_precision import MixedPrecision
from lablib.signature import OneOf, checked

FORMATS = (FP32, TF32, BF16, FP16)
Trained = Annotated[Format, OneOf(FORMATS)]


@dataclass(frozen=True, slots=True)
class PrecisionBytes:
    """Bytes held between steps, independent of the batch, and bytes of gradients."""

    weights: int
    gradients: int
    optimizer_states: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer_states


@checked
def held_bytes(num_parameters: int, format: Trained) -> PrecisionBytes:
    """Bytes of weights (with masters), gradients and Adam's states, by the table above; TF32 is FP32 in memory."""
    weights = 4 if format.num_bits > 16 else 2 + 4
    return PrecisionBytes(weights * num_parameters, 4 * num_parameters, 8 * num_parameters)


@checked
def training_steps(
    format: Trained, config: GPTConfig, batch_size: int, seq_len: int = 1024, num_steps: int = 2
) -> None:
    """Train for some steps, on zeros: the program to launch. All but the last are in phase "warm-up".

    Arguments:
        format: of forward and backward: FP32, TF32 (FP32 with TF32 products), BF16 or FP16, the last two with master
            weights.
        batch_size, seq_len: B and T of the tokens.
        num_steps: the first one makes the optimizer's states, so that the last of two is like all others.
    """
    torch.set_float32_matmul_precision("high" if format == TF32 else "highest")
    with phase("warm-up"):
        masters = GPT(config)
        model = GPT(config, dtype=format.dtype) if format.num_bits == 16 and format.dtype else masters
        training = MixedPrecision(model, masters, torch.optim.AdamW(masters.parameters(), foreach=False))
        tokens_BT = torch.zeros(batch_size, seq_len, dtype=torch.int64)
    for left in reversed(range(num_steps)):
        forward, backward, optimizer = ("warm-up",) * 3 if left else ("forward", "backward", "optimizer")
        with phase(forward):
            training.copy_weights()
            loss = next_token_loss(model(tokens_BT), tokens_BT)
        with phase(backward):
            training.backward(loss)
        with phase(optimizer):
            training.update()
