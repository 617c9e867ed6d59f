"""Random-k: all ranks send the same k of N gradients, drawn in each step, with an all-reduce.

The draw comes from a common seed, so indices are equal on all ranks and need not be sent. The message may be scaled by
N/k, so that its expectation is the gradient:

    E[C(g)] = g         as each place is drawn with probability k/N
    E|C(g) - g|^2 = (N/k - 1) |g|^2        variance: at 1%, 99 times the squared norm of the gradient

Or it is sent without scaling, and error feedback keeps the rest; not both, as the scaled message overshoots.

Cost for n ranks, k of N gradients of b bytes:
    time_s      2(n-1) alpha + 2(n-1)/n k b beta, and N draws
    peak bytes  k b, and 8 N for the draw
    sent bytes  2(n-1)/n k b per rank
Shapes: a bucket is flat, [N]; indices [k].
Source: Wangni et al., "Gradient Sparsification for Communication-Efficient Distributed Optimization", 2017, arXiv
1710.09854, section 2 (unbiased sparsification); Stich et al., "Sparsified SGD with Memory", 2018, arXiv 1809.07599,
section 2 (random-k with memory).
Simplified: uniform probabilities; Wangni et al. choose large gradients more often.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage
from lablib.compress.top_k import Ratio, num_kept
from lablib.parallel.data.overlapped import all_reduce_average
from lablib.signature import checked


class RandomK(LossyAverage):
    """The mean of k gradients at random indices, the same on all ranks; 0 elsewhere.

    Arguments:
        ratio: k as a share of a bucket, above 0 and up to 1.
        seed: the same on all ranks.
        is_unbiased: whether the message is scaled by N/k. False inside `ErrorFeedback`.
    """

    @checked
    def __init__(self, ratio: Ratio = 0.01, seed: int = 0, is_unbiased: bool = True):
        self.ratio, self.seed, self.is_unbiased = ratio, seed, is_unbiased
        self._num_steps: dict[int, int] = {}

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        flat, k = buffer.view(-1), num_kept(buffer.numel(), self.ratio)
        indices = self._draw(flat.numel(), bucket.index)[:k].to(flat.device)
        values = flat[indices]
        if self.is_unbiased:
            values *= flat.numel() / k
        own = torch.zeros_like(buffer)
        own.view(-1)[indices] = values
        yield all_reduce_average(values, group)
        buffer.zero_()
        flat[indices] = values
        return own

    def _draw(self, numel: int, index: int) -> Tensor:
        """The indices of a bucket in a random order, different in each step."""
        step = self._num_steps[index] = self._num_steps.get(index, -1) + 1
        generator = torch.Generator().manual_seed(hash((self.seed, index, step)) % 2**63)
        return torch.randperm(numel, generator=generator, device="cpu")
