"""Error feedback: the omitted part of a message is added to the next step's gradient, so nothing is lost, only late.

A compressor may send little of a gradient: its largest hundredth, its signs. Without feedback the omitted part is never
learned. With feedback every rank keeps it, for each bucket separately:

    a_t = g_t + e_t            the gradient and the residual
    c_t = C(a_t)               the message's content; the mean of all ranks' c_t is the update
    e_{t+1} = a_t - c_t        the new residual

    c_1 + ... + c_t + e_{t+1} = g_1 + ... + g_t        exactly: an invariant that a test can check

Residuals belong to parameters. One that is shared by two buckets would add the omitted part of one layer to another.

Cost: N numbers kept for each rank (4 bytes each in float32, as much as the gradients); three passes over them a step.
Shapes: a bucket and its residual are flat, [N].
Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, section 3 (error feedback); Karimireddy et
al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019, arXiv 1901.09847, algorithm 2.
Simplified: with a rate that changes, the paper keeps the residual of the step (rate times gradient); here it is the
gradient's, as is usual in data-parallel training.
"""

import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage
from lablib.signature import check_type


class ErrorFeedback(LossyAverage):
    """The compressor, with a residual for each bucket.

        DataParallel(model, reduce=ErrorFeedback(TopK(0.01)))

    Arguments:
        compressor: its message must be nearer to the gradient than no message. A compressor that scales its message up
            to be unbiased (`RandomK` by default) is not: its residual would grow from step to step.

    Attributes:
        residuals: index of the bucket -> the part omitted so far. To be saved with a checkpoint.
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
    """Raise ValueError where a residual has another size than its bucket: buckets were laid out again."""
    if residual.numel() != numel:
        raise ValueError(
            f"{name}: bucket {bucket.index} must keep its size: it has {numel} numbers, its residual "
            f"{residual.numel()}; after a change of buckets or ranks, make a new {name}."
        )
