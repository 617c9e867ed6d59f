"""Gradient accumulation: the gradient of a large batch, computed in parts, with the same weight for every token.

The loss of a batch is the mean over its N tokens. Cut the batch into micro-batches i with n_i tokens each and run
backward on one at a time: `param.grad` accumulates the gradients, and only one micro-batch's activations exist. The
result is the large batch's gradient if each part is divided by the total N:

    exact            sum_i  grad(summed loss_i) / N                         N = n_1 + ... + n_k, of all ranks
    mean of means    sum_i  grad(summed loss_i) / n_i / k                   equal only if all n_i are: a token of a
                                                                            short micro-batch would count for more

Padding does not count: targets of IGNORED have no loss. So micro-batches of padded text have uneven n_i even with equal
shapes, and so does the last one of a text that does not divide evenly.

Over W data ranks a replica averages gradients, a division by W that the loss must compensate, and N counts the tokens
of all ranks: one all-reduce of one number before the first backward.

    loss_i = scale x W x (summed loss_i) / N                                scale: the loss scale, 1 without one

Cost: activations of one micro-batch; gradients are in memory all the time. FLOPs as the large batch. Sent bytes: the
gradients once per step (`no_sync` for all micro-batches but the last) and 8 bytes for N.
Shapes: B sequences of a micro-batch, T tokens of one, V vocabulary.
Source: published trainers had the mean of means until October 2024 (huggingface/transformers, pull requests 34191 and
34198; over devices 34373).
Simplified: the model returns logits and the loss is cross-entropy; no other terms.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Protocol, runtime_checkable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lablib.data import Batch
from lablib.precision.loss_scaling import LossScaler
from lablib.signature import NonEmpty, checked

IGNORED = -100  # torch's `ignore_index`: a target that has no loss


@runtime_checkable
class Replica(Protocol):
    """A module that averages its gradients over the ranks of `group` in backward, but not under `no_sync`."""

    @property
    def group(self) -> dist.ProcessGroup | None: ...

    def no_sync(self) -> AbstractContextManager[None]: ...


MicroBatches = Annotated[Sequence[Batch], NonEmpty(), "give at least one micro-batch on every rank"]


@checked
def summed_loss(logits_BTV: Float[Tensor, "B T V"], targets_BT: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Cross-entropy in nats, summed over the tokens with a target other than IGNORED; at least in float32.

    ValueError: logits that do not match the targets.
    """
    if logits_BTV.ndim != 3 or logits_BTV.shape[:2] != targets_BT.shape or not logits_BTV.is_floating_point():
        raise ValueError(
            "logits_BTV must be floating, [B, T, V], and targets_BT [B, T]: "
            f"got {tuple(logits_BTV.shape)} and {tuple(targets_BT.shape)}."
        )
    dtype = torch.promote_types(logits_BTV.dtype, torch.float32)
    logits_NV = logits_BTV.to(dtype).flatten(0, 1)
    return F.cross_entropy(logits_NV, targets_BT.flatten(), reduction="sum", ignore_index=IGNORED)


def count_tokens(targets_BT: Int[Tensor, "B T"]) -> int:
    """Number of tokens with a loss (target not IGNORED)."""
    return int((targets_BT != IGNORED).sum())


@checked
def accumulate_mean_of_means(model: nn.Module, micro_batches: MicroBatches) -> float:
    """Naive: the mean of the micro-batches' means, exact only for equal numbers of tokens. ValueError: one has none."""
    for place, batch in enumerate(micro_batches):
        if count_tokens(batch.targets) == 0:
            raise ValueError(f"each micro-batch must have a token with a loss: number {place} has none; leave it out.")
    total = 0.0
    for inputs_BT, targets_BT in micro_batches:
        mean = summed_loss(model(inputs_BT), targets_BT) / count_tokens(targets_BT)
        loss = mean / len(micro_batches)
        loss.backward()
        total += loss.item()
    return total


@checked
def accumulate(model: nn.Module, micro_batches: MicroBatches, scaler: LossScaler | None = None) -> float:
    """Add the gradients of the mean loss over all tokens of all micro-batches; return that loss, in nats.

    Arguments:
        model: logits of a micro-batch's inputs. A replica (`DataParallel`, `Zero`) communicates once, and every rank
            must call this; tokens and loss are then of all ranks.
        micro_batches: at least one on each rank; sizes and tokens may differ, also between ranks. (ZeRO stage 3 gathers
            parameters for each, so all ranks need the same number.)
        scaler: scales the losses; unscale the gradients afterwards, and only then clip them.

    Raises ValueError: no token with a loss, or a replica in hybrid sharding, which averages over two groups.
    """
    replica = model if isinstance(model, Replica) else None
    if getattr(model, "replicate_group", None) is not None:
        raise ValueError("the ranks that average must be one group: got a hybrid of two; divide each loss by hand.")
    device = micro_batches[0].targets.device
    num_tokens = torch.tensor(sum(count_tokens(batch.targets) for batch in micro_batches), device=device)
    world_size = 1
    if replica:
        world_size = dist.get_world_size(replica.group)
        dist.all_reduce(num_tokens, group=replica.group)
    if num_tokens == 0:
        raise ValueError("a batch must have a token with a target that is not IGNORED: got none; leave this batch out.")
    scale = world_size * (scaler.loss_scale if scaler else 1.0)  # the replica divides by world_size
    total = backward_all(model, micro_batches, num_tokens, scale, replica.no_sync if replica else nullcontext)
    if replica:
        dist.all_reduce(total, group=replica.group)
    return float(total)


def backward_all(
    model: Callable[[Tensor], Tensor],
    micro_batches: Sequence[Batch],
    num_tokens: Tensor,
    scale: float = 1.0,
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Tensor:
    """Add the gradients of `scale` times the summed loss over `num_tokens`; returns that loss here, without `scale`.

    Reads no value, so the host does not wait for the device. Communicates as the model does, once: all micro-batches
    but the last run under `no_sync`.
    """
    total = torch.zeros((), dtype=torch.float64, device=num_tokens.device)
    for index, (inputs_BT, targets_BT) in enumerate(micro_batches):
        with no_sync() if index < len(micro_batches) - 1 else nullcontext():
            loss = summed_loss(model(inputs_BT), targets_BT) / num_tokens
            total += loss.detach()
            (loss * scale).backward()
    return total
