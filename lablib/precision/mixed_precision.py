"""Mixed precision: forward and backward in 16 bits, weights and their updates in FP32. A real run in each format.

16-bit products are fast and activations small. But the update of a weight is often less than half the distance of its
16-bit neighbours, and would round to zero. So the weights are kept in FP32 (master weights), and the model works on a
copy:

    copy      w_16 <- round(w_32)
    forward, backward on w_16, of the loss times S              S: the loss scale, 1 without one (loss_scaling.py)
    gradient  g_32 <- float(g_16) / S                           the step is skipped if any overflowed
    update    w_32 <- optimizer(w_32, g_32)

The size of gradients depends on the batch: the loss is a mean over its N tokens, so each token's gradient has a factor
1 / N. Published runs use 2^19 tokens and more per step, in micro-batches with summed gradients. Here each step has one
micro-batch of n tokens, which represents all N / n: its loss is divided by N / n before backward, and its gradients, in
FP32, are added N / n times. So gradients have the size of the large run, and only the noise is that of the small batch.

Cost: bytes per parameter of w_16, g_16, w_32, g_32, Adam's m and v: 2 + 2 + 4 + 4 + 4 + 4, not fewer than in FP32.
Shapes: B sequences of T tokens, n = B T.
Source: Micikevicius et al., "Mixed Precision Training", 2017, arXiv 1710.03740, section 3; Kalamkar et al., 2019, arXiv
1905.12322 (BF16 needs no scale); 2^19 tokens: Brown et al., 2020, arXiv 2005.14165, table 2.1.
Simplified: the whole model is in 16 bits, including norms and softmax (autocast keeps them in FP32); the loss is in
FP32. Nothing is emulated: the tensors are torch.float16 and torch.bfloat16, and their products sum in FP32.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from lablib.data import batches, load_corpus, train_val_split
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.precision.exponents import GradientExponents
from lablib.precision.loss_scaling import LossScaler
from lablib.signature import OneOf, checked

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class MixedPrecision:
    """Steps of a model in 16 bits with master weights in FP32.

    Arguments:
        model: in the dtype of forward and backward; its parameters are overwritten in each step.
        masters: the same model in FP32, which the optimizer changes; the model itself, to train in its own dtype.
        optimizer: of the parameters of `masters`.
        scaler: scales the loss; None: no scaling.
    """

    def __init__(
        self, model: nn.Module, masters: nn.Module, optimizer: torch.optim.Optimizer, scaler: LossScaler | None = None
    ):
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
        self._pairs = list(zip(model.parameters(), masters.parameters(), strict=True))

    @torch.no_grad()
    def copy_weights(self) -> None:
        """w_16 <- round(w_32). Frees the gradients of the previous step."""
        for param, master in self._pairs:
            master.grad = None
            if param is not master:
                param.copy_(master)

    def backward(self, loss: Tensor, num_micro_batches: int = 1) -> None:
        """Gradients of the masters, still scaled, of the mean over `num_micro_batches` losses like this one."""
        scaled = self.scaler.scale(loss) if self.scaler else loss
        (scaled / num_micro_batches).backward()
        for param, master in self._pairs:
            gradient, param.grad = param.grad, None  # freed as soon as it is copied: never all of them twice
            assert gradient is not None
            master.grad = gradient.to(master.dtype)
            if num_micro_batches > 1:
                master.grad.mul_(num_micro_batches)

    def update(self) -> None:
        """w_32 <- optimizer(w_32, g_32 / S), unless a gradient overflowed."""
        if self.scaler is None:
            self.optimizer.step()
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()


@dataclass(frozen=True, slots=True)
class TextRun:
    """Records of a run, one entry per step."""

    losses: list[float] = field(default_factory=list)  # of the text of each step, in nats per byte
    zero_shares: list[float] = field(default_factory=list)  # share of the weights' gradients that is exactly zero
    scales: list[float] = field(default_factory=list)  # loss scale that the step used; 1 without scaler
    # exponents of all gradients of backward, with the loss divided and scaled; None if `watches` is False
    watch: GradientExponents | None = None


@checked
def train_on_text(
    dtype: Annotated[torch.dtype, OneOf(DTYPES)],
    scaler: LossScaler | None = None,
    *,
    num_steps: int = 60,
    weights_dtype: torch.dtype = torch.float32,
    tokens_per_step: int = 2**19,
    watches: bool = False,
    seed: int = 0,
) -> TextRun:
    """Train a small GPT on real text, forward and backward in a dtype, with master weights. About a second; repeatable.

    Arguments:
        dtype: torch.float32, torch.bfloat16 or torch.float16.
        scaler: of the loss.
        weights_dtype: of the master weights and of the optimizer's states. In FP16 the run diverges at once: Adam's
            epsilon of 1e-8 is zero there, and it divides zero by zero.
        tokens_per_step: N tokens in the mean of the loss; a multiple of the micro-batch's 512.
        watches: whether to count exponents of gradients.

    Raises ValueError: `tokens_per_step` is not a multiple of 512.
    """
    batch_size, seq_len = 8, 64
    num_micro_batches, rest = divmod(tokens_per_step, batch_size * seq_len)
    if rest or num_micro_batches < 1:
        raise ValueError(
            f"tokens_per_step must be a multiple of {batch_size * seq_len}: got {tokens_per_step}; try {2**19}."
        )
    config = GPTConfig(2, 64, 2, vocab_size=256, max_seq_len=seq_len)
    model, masters = (GPT(config, seed=seed, dtype=one) for one in (dtype, weights_dtype))
    training = MixedPrecision(model, masters, torch.optim.AdamW(masters.parameters(), lr=3e-3), scaler)
    run = TextRun(watch=GradientExponents(model) if watches else None)
    train, _ = train_val_split(load_corpus())
    for _, (inputs_BT, targets_BT) in zip(range(num_steps), batches(train, batch_size, seq_len, seed), strict=False):
        training.copy_weights()
        loss = next_token_loss(model(inputs_BT), targets_BT)
        run.losses.append(loss.item())
        run.scales.append(scaler.loss_scale if scaler else 1.0)
        training.backward(loss, num_micro_batches)
        run.zero_shares.append(_zero_share(masters))
        training.update()
    return run


def _zero_share(module: nn.Module) -> float:
    gradients = [param.grad for param in module.parameters() if param.grad is not None]
    return sum(int((g == 0).sum()) for g in gradients) / sum(g.numel() for g in gradients)
