"""Error feedback: what a message left out is added to the next step's gradient, so nothing is lost, only late.

A compressor may say little of a gradient: its largest hundredth, its signs. Left alone, what it never says is never
learned. With feedback every rank keeps the rest, for each bucket by itself:

    a_t = g_t + e_t            the gradient and what was left out so far
    c_t = C(a_t)               what the message says; the mean of all ranks' c_t is the update
    e_{t+1} = a_t - c_t        the residual

    c_1 + ... + c_t + e_{t+1} = g_1 + ... + g_t        exactly: an invariant that a test can hold an implementation to

Residuals belong to parameters. One that is shared by two buckets adds what was left out of one layer to another.

Cost: N numbers kept for each rank (4 bytes each in float32, as much as the gradients); three passes over them a step.
Shapes: a bucket and its residual are flat, [N].
Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, section 3 (error feedback); Karimireddy et
al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019, arXiv 1901.09847, algorithm 2.
Simplified: with a rate that changes, the paper keeps the residual of the step (rate times gradient); here, as is usual
in data-parallel training, that of the gradient.
"""

import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage
from lablib.signature import check_type


class ErrorFeedback(LossyAverage):
    """The compressor, with a residual for each bucket.

        DataParallel(model, reduce=ErrorFeedback(TopK(0.01)))

    Arguments:
        compressor: whose message is nearer to the gradient than no message. One that scales up what it sends to be
            right on average (`RandomK` as it is made by default) is not: its residual would grow from step to step.

    Attributes:
        residuals: index of the bucket -> what its messages left out so far. To be saved with a checkpoint.

    Raises:
        ValueError: in a call, a bucket whose residual has another size: buckets were laid out anew.
    """

    def __init__(self, compressor: LossyAverage):
        check_type("ErrorFeedback: compressor", compressor, LossyAverage)
        if getattr(compressor, "is_unbiased", False):
            raise ValueError(
                f"ErrorFeedback needs a compressor that sends numbers as they are: got {type(compressor).__name__} "
                "with is_unbiased=True, which scales them up; set is_unbiased=False."
            )
        self.compressor = compressor
        self.residuals: dict[int, Tensor] = {}

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        residual = self.residuals.get(bucket.index)
        if residual is not None:
            check_residual("ErrorFeedback", bucket, residual, buffer.numel())
            buffer += residual.view_as(buffer)
        accumulated = buffer.clone()  # memory peaks: bucket, copy and residual
        said = yield from self.compressor.exchange(buffer, group, bucket)
        self.residuals[bucket.index] = accumulated.sub_(said)
        return said


def check_residual(name: str, bucket: Bucket, residual: Tensor, numel: int) -> None:
    """Raise where what was kept of a bucket has another size than the bucket has now."""
    if residual.numel() != numel:
        raise ValueError(
            f"{name}: bucket {bucket.index} must keep its size: it has {numel} numbers, its residual "
            f"{residual.numel()}; after a change of buckets or ranks, make a new {name}."
        )
