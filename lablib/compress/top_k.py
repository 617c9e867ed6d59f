"""Top-k: send only the k largest of N gradients, each with its index.

Few gradients are large. A message has the k of largest magnitude as (value, index) pairs. Ranks choose different
indices, so an all-reduce cannot sum messages: every rank gathers all of them and sums them.

    rank 0   [ .1 -9  .2  3 ]  ->  (-9, 1)  \\
                                             all_gather  ->  [ 3.5 -4.5  0  0 ] on both: half of each, others 0
    rank 1   [  7  .1  0  1 ]  ->  ( 7, 0)  /

That is biased: small gradients are never sent, even if they always have the same sign. With error feedback they
accumulate until they are among the largest.

Cost for n ranks, k of N gradients of b bytes:
    time_s      (n-1) (alpha + k (b + 4) beta), a choice of about four readings, n sparse sums
    peak bytes  n k (b + 4) more than the gradients
    sent bytes  (n-1) k (b + 4) per rank, less than 2(n-1)/n b N if k/N < 2b / (n (b+4)): 1% sends less below 100 ranks
Shapes: a bucket is flat, [N]; values and indices [k].
Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", 2017, arXiv 1704.05021, section 3;
Lin et al., "Deep Gradient Compression", 2017, arXiv 1712.01887, sections 3.1 and 3.2.
Simplified: Lin et al. also correct momentum (their section 3.1), clip locally, and warm the sparsity up (3.2); they
estimate the threshold from a sample, here it is exact. The k largest are of a bucket, not of each layer.
"""

from typing import Annotated

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage, check_gradients
from lablib.signature import Count, PositiveFraction, checked

Ratio = Annotated[PositiveFraction, "try 0.01 for 1% of the gradients"]
MAX_NUMBERS = 2**31 - 1  # the limit of a four-byte index


@checked
def num_kept(numel: int, ratio: Ratio) -> int:
    """k for a share of `numel` numbers: rounded, at least one."""
    return min(numel, max(1, round(ratio * numel)))


@checked
def top_k(gradients: Tensor, k: Count) -> tuple[Tensor, Tensor]:
    """The k gradients of largest magnitude, in order of their indices: values [k] and indices [k] (int32).

    ValueError: k is above the number of gradients, or gradients that cannot be compared.
    """
    check_gradients("top_k", gradients)
    flat = gradients.flatten()
    if k > flat.numel():
        raise ValueError(f"top_k: k must be at most the number of gradients: got {k} of {flat.numel()}.")
    if flat.numel() > MAX_NUMBERS:
        raise ValueError(f"top_k: at most 2**31 - 1 gradients have a 4-byte index: got {flat.numel()}; use buckets.")
    indices = flat.abs().topk(k, sorted=False).indices.sort().values
    return flat[indices], indices.to(torch.int32)


class TopK(LossyAverage):
    """The mean of all ranks' k largest gradients, a share `ratio` of a bucket; 0 where no rank sent any."""

    @checked
    def __init__(self, ratio: Ratio = 0.01):
        self.ratio = ratio

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        num_ranks = dist.get_world_size(group)
        values, indices = top_k(buffer, num_kept(buffer.numel(), self.ratio))
        own = torch.zeros_like(buffer)
        own.view(-1)[indices.long()] = values
        all_values, all_indices = ([torch.empty_like(part) for _ in range(num_ranks)] for part in (values, indices))
        pairs = ((all_values, values), (all_indices, indices))
        for work in [dist.all_gather(all_parts, part, group=group, async_op=True) for all_parts, part in pairs]:
            assert work is not None
            yield work
        buffer.zero_()
        for rank_values, rank_indices in zip(all_values, all_indices, strict=True):  # in rank order: deterministic
            buffer.view(-1)[rank_indices.long()] += rank_values / num_ranks
        return own
