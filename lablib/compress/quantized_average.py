"""The quantized all-reduce for error feedback: it also returns the content of this rank's codes.

`quantized_all_reduce.py` rounds a gradient once on its own rank and once as the mean. Here the first rounding is also
returned, so `ErrorFeedback(QuantizedAverage(Int4()))` adds its error to the next step. The error of the second
rounding, of the mean, is lost.

Cost: as `quantized_all_reduce.py`, and the rank's own codes are computed and read once more.
Shapes: a bucket is flat, [N]; pieces [n, P].
Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, section 3 (error feedback).
Simplified: nearest rounding; a stochastic quantizer would draw again for the returned content.
"""

import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage
from lablib.compress.quantized import Quantizer
from lablib.compress.quantized_all_reduce import in_pieces, quantized_all_reduce
from lablib.signature import checked


class QuantizedAverage(LossyAverage):
    """The mean of all ranks' codes, quantized again; `quantizer`: with nearest rounding, the same on every rank."""

    @checked
    def __init__(self, quantizer: Quantizer):
        self.quantizer = quantizer

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        own, num_ranks = buffer.clone(), dist.get_world_size(group)
        if num_ranks > 1 and buffer.numel():
            codes = self.quantizer.quantize(in_pieces(buffer, num_ranks))
            own.view(-1).copy_(self.quantizer.dequantize(codes).flatten()[: buffer.numel()])
        yield quantized_all_reduce(buffer, group, self.quantizer)
        return own
