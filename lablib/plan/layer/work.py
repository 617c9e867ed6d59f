"""Time and memory of a piece of a layer: its passes forward and backward, and bytes kept between them."""

from typing import NamedTuple

from lablib.cost.arrays import Numbers, maximum
from lablib.plan.machine import PassTime


class Sizes(NamedTuple):
    """The cut of one layer: numbers or arrays."""

    micro_batch: Numbers  # B, sequences of a micro-batch
    tokens: Numbers  # S, tokens of each sequence on this rank
    tensor: Numbers  # tensor, context, expert: ranks that share products, sequences and experts
    context: Numbers
    expert: Numbers
    sequence_shards: Numbers  # divisor of activations outside the products: t with sequence parallelism, otherwise 1
    expert_tensor: Numbers = 1  # ranks that share each expert; they are neighbours

    @property
    def rows(self) -> Numbers:
        """R: tokens of a micro-batch on this rank."""
        return 1.0 * self.micro_batch * self.tokens  # their bytes may be beyond 2^63


class Work(NamedTuple):
    """A layer's passes and the bytes that it keeps."""

    forward: PassTime  # forward, input, weight: the passes of one micro-batch
    input: PassTime
    weight: PassTime
    # part of the forward pass that selective recomputation repeats: attention between its products
    core: PassTime = PassTime()
    saved_bytes: Numbers = 0.0  # kept from forward to backward
    core_bytes: Numbers = 0.0  # part of these that selective recomputation does not keep
    peak_bytes: Numbers = 0.0  # temporary bytes of backward
    output_bytes: Numbers = 0.0  # of its linear layers' outputs
    attention_bytes: Numbers = 0.0  # of attention's own output, with one number per row
    # work to add a micro-batch's gradients to the sum, unless products do it (pieces.py)
    accumulate: PassTime = PassTime()
    skipped: PassTime = PassTime()  # part of the forward pass that recomputation leaves out

    def plus(self, other: "Work") -> "Work":
        """Both, one after the other: everything adds up, except that the larger `peak_bytes` counts."""
        pairs = zip(self, other, strict=True)
        added = (one.plus(two) if isinstance(one, PassTime) else one + two for one, two in pairs)
        return Work(*added)._replace(peak_bytes=maximum(self.peak_bytes, other.peak_bytes))

    def times(self, n: Numbers) -> "Work":
        """n of them (or a share of one)."""
        times = (one.times(n) if isinstance(one, PassTime) else n * one for one in self)
        return Work(*times)._replace(peak_bytes=self.peak_bytes)
