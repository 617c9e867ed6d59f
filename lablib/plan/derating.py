"""Derating: losses of real machines that the simulator leaves out; the planner's constants.

Each is a physical share of the cost model's figure, the same for every model, cluster and publication. `IDEAL` turns
them off: then a prediction equals a measurement of the simulator. "Fitted" means: to all published runs at once, within
physical bounds (lablib/validation/constants.py), and compared with the fit that leaves each source out.
"""

from dataclasses import dataclass

from lablib.hardware.device import Device
from lablib.signature import Checked, NonNegative, PositiveFraction


@dataclass(frozen=True, slots=True)
class Derating(Checked):
    """Losses of a real machine."""

    # rate of products in a training step relative to the same product alone and repeated, where power does not limit
    # them (Device.flops_per_joule): operands come cold, kernels differ. Fitted.
    matmul_share: PositiveFraction = 0.85
    memory_share: PositiveFraction = 0.95  # the same for memory-bound kernels. Fitted.
    # share of a node's bandwidth that collectives reach. Fitted; NCCL's bus bandwidth over NVLink was measured at 0.81
    # (8 H200: 366 of 450 GB/s) to 0.84 (8 A100: 253 of 300).
    intra_share: PositiveFraction = 0.83
    inter_share: PositiveFraction = 0.91  # share of the network cards' line rate. Fitted.
    # collective_s, rank_s: seconds of each collective or message of a training program beyond its wires, and for each
    # further rank of the node: the start of its kernel, hops, and ranks that are not quite in step. Of NCCL on 8 B200,
    # as measured between products: 22 to 26 us, and 5.5 to 9.2 us per rank (MooreThreads/SimuMax,
    # configs/system/b200_bf16_ceperm.json, 4dcaae5).
    collective_s: NonNegative = 25e-6
    rank_s: NonNegative = 9e-6
    # node_s, hop_s: the same of an all-gather or reduce-scatter, which NCCL runs as one ring, for each further node,
    # and for each rank of the further nodes: hwLat of the protocol for large messages (NVIDIA/nccl,
    # src/graph/tuning.cc: ring, Simple, NET and NVLink). An all-reduce has trees.
    node_s: NonNegative = 14e-6
    hop_s: NonNegative = 3.4e-6
    # share of hidden communication that compute loses to it: NCCL's kernels take cores and bandwidth
    contention: NonNegative = 0.12
    # seconds in which the host starts one eager operator; the device waits where its kernels are shorter. Fitted, in
    # effect to one source: only vTrain's rows of small models on few GPUs depend on it.
    dispatch_s: NonNegative = 23e-6
    # fixed seconds per step: the data's first batch, the clipping's synchronization, logging. An estimate.
    step_s: NonNegative = 5e-3
    # the rate, at heads of 128, of an attention kernel on a device one generation newer than its target, and again for
    # every further generation; narrower heads lose nothing more (machine.py). Fitted, in effect to the two sources with
    # such kernels; FlashAttention-2 reaches 35% of an H100 where FlashAttention-3 reaches up to 75% (Shah et al., 2024,
    # arXiv 2407.08608), a share of 0.47, and FlashAttention half of FlashAttention-2 (arXiv 2307.08691).
    generation_share: PositiveFraction = 0.58
    # is_power_limited, has_generations: whether the power limit and `generation_share` apply
    is_power_limited: bool = True
    has_generations: bool = True
    base_bytes: NonNegative = 1.0e9  # workspaces of libraries on each GPU. An estimate.
    # cache of torch's allocator, as a share of the allocated bytes. Fitted to memory read from nvidia-smi or from the
    # allocator.
    cached_share: NonNegative = 0.14
    # driver, kernels and communication library: 1.3 GB for the first two (bigscience's chronicle of BLOOM, 1,271 MiB),
    # the rest an estimate of NCCL's buffers
    driver_bytes: NonNegative = 2.8e9

    def sustained_share(self, dtype: str, device: Device) -> float:
        """The share of the rate of large products that a device sustains under its power limit.

        At most the device's measured share within a step (`Device.step_share`), which the simulator uses, too.
        """
        share = min(self.matmul_share, device.step_share)
        if not (self.is_power_limited and device.power_w and device.flops_per_joule):
            return share
        scaled = device.flops_per_joule * device.peak(dtype) / device.peak("float16")
        sustained = device.power_w * device.flops_per_joule_by_dtype.get(dtype, scaled)
        return min(share, sustained / device.matmul_rate(dtype))


USUAL = Derating()
IDEAL = Derating(
    **dict.fromkeys(("matmul_share", "memory_share", "intra_share", "inter_share"), 1.0),
    **dict.fromkeys(("collective_s", "rank_s", "node_s", "hop_s", "contention", "dispatch_s", "step_s"), 0.0),
    **dict.fromkeys(("base_bytes", "cached_share", "driver_bytes"), 0.0),
    is_power_limited=False,
    has_generations=False,
)
