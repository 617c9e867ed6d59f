"""ZeRO stage 2: gradients are also sharded. The full gradient of a bucket is freed as soon as it is reduced.

Stage 1 keeps the full gradient, of which a rank needs only its shard. Here a bucket is reduce-scattered during
backward, its shard is kept and the rest is freed. So the full gradient never exists at once: one bucket is being filled
and one is in flight. Micro-batches accumulate into the shard, each after a separate reduce-scatter.

    backward 3 | backward 2                       | backward 1
               [ reduce-scatter 3 ] keep 1/n, free [ reduce-scatter 2 ] keep 1/n, free

Cost for n ranks, P parameters of p bytes (gradients: the same), K bytes of optimizer state and master copy for each, m
micro-batches:
    time_s      as stage 1
    peak bytes (p + (p + K)/n) P at rest; during backward two more buckets: one in flight and one being filled sent
    bytes (m + 1) (n-1)/n S per rank and step, S = p P: for m = 1 as data parallelism. Under `no_sync` no
                reduce-scatter, so 2(n-1)/n S, but the full gradient is kept until the last micro-batch, as in stage 1
Shapes: a full buffer is [N], N the padded elements of a bucket; a shard is [N / n].
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, sections 5.2 and 7.2.1.
Simplified: as stage 1.
"""

from lablib.parallel.data.overlapped import BucketBackward
from lablib.parallel.zero.shards import FlatUnit, num_under_way
from lablib.parallel.zero.stage1 import Reduction, Zero1


class Zero2(Zero1):
    """A replica with sharded optimizer state and gradients. As `Zero1`, but backward may run many times per step."""

    def _launch(self, unit: FlatUnit, now: BucketBackward) -> None:
        # One in flight, after the time of a whole bucket of backward; free its buffer before the next.
        while len(now.under_way) >= num_under_way(self._reduce_scatter):
            self._finish(now.under_way.pop(0))
        full = unit.pack_gradients(unit.params)
        for param in unit.params:
            param.grad = None
        now.under_way.append(self._start(unit, full))

    def _finish(self, reduction: Reduction) -> None:
        reduction.handle.wait()
        reduction.unit.add_gradient(reduction.shard)
