"""Error feedback: add the omitted part of a message to the next step's gradient, so it is delayed, not lost.

A compressor may send a small part of a gradient: the largest hundredth, or signs. Without feedback the omitted part is
lost. With feedback every rank keeps it, for each bucket separately:

    a_t = g_t + e_t            the gradient and the residual
    c_t = C(a_t)               the message's content; the mean of all ranks' c_t is the update
    e_{t+1} = a_t - c_t        the new residual

    c_1 + ... + c_t + e_{t+1} = g_1 + ... + g_t        exactly: an invariant that a test can check

Residuals belong to parameters. A residual shared by two buckets would add the omitted part of one layer to another.

Cost: N numbers kept per rank (4 bytes each in float32, the size of the gradients); three passes over them per step.
Shapes: a bucket and its residual are flat, [N].
Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, section 3 (error feedback); Karimireddy et
al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019, arXiv 1901.09847, algorithm 2.
Simplified: with a changing rate, the paper keeps the residual of the step (rate times gradient); here it is of the
gradient, as usual in data-parallel training.
"""

import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage
from lablib.signature import check_type


class ErrorFeedback(LossyAverage):
    """The compressor, with a residual for each bucket.

        DataParallel(model, reduce=ErrorFeedback(TopK(0.01)))

    Arguments:
        compressor: its message must be closer to the gradient than zero. A compressor that scales its message up to be
            unbiased (`RandomK` by default) is not: its residual would grow from step to step.

    `residuals`: index of the bucket -> the part omitted so far. Save it with a checkpoint.
    """

    def __init__(self, compressor: LossyAverage):
        check_type("ErrorFeedback: compressor", compressor, LossyAverage)
        if getattr(compressor, "is_unbiased", False):
            raise ValueError(
                f"ErrorFeedback needs a compressor without scaling: got {type(compressor).__name__} "
                "with is_unbiased=True, which scales its message; set is_unbiased=False."
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
    """Raise ValueError if a residual has another size than its bucket: buckets were rebuilt."""
    if residual.numel() != numel:
        raise ValueError(
            f"{name}: bucket {bucket.index} must keep its size: it has {numel} numbers, its residual "
            f"{residual.numel()}; after a change of buckets or ranks, make a new {name}."
        )
