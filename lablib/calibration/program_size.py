"""Batch sizes that keep a device busy: a program of a few milliseconds measures mainly launches.

A lab's program takes 50 to 500 ms on a CPU and 0.4 to 5 ms on an H200, where launching its kernels takes as long. So on
GPUs the batch grows by powers of two until its products alone take `LEAST_S` at the device's rate in float32.
"""

from math import ceil, log2

from lablib.hardware import Cluster
from lablib.signature import checked

LEAST_S = 20e-3


@checked
def batch_for(cluster: Cluster, batch: int, flops: float) -> int:
    """The batch with which a program takes long enough to be measured.

    Args:
        cluster: the calibrated machine. If its ranks share the cores of a CPU the batch is unchanged.
        batch: the batch on a CPU.
        flops: of the program's products on one rank with that batch.

    Raises ValueError: FLOPs that are not positive.
    """
    if not flops > 0:
        raise ValueError(f"flops of a program must be positive: got {flops}; give 6 per parameter and token of a step")
    if cluster.shared_cores:
        return batch
    return batch * 2 ** max(0, ceil(log2(LEAST_S * cluster.device.matmul_rate("float32") / flops)))
