"""What real machines lose and the simulator does not: the few constants of the planner, each physical and global.

They are shares of what the cost model says, the same for every model, cluster and publication; none belongs to one data
set. `NONE` turns them off: then a prediction is what the simulator would measure.
"""

from dataclasses import dataclass

from lablib.hardware.device import Device


@dataclass(frozen=True, slots=True)
class Losses:
    """What is lost.

    Attributes:
        product_share: what products reach in a training step of what they reach alone and repeated: clocks sink under
            sustained power, and operands come cold.
        memory_share: the same for kernels limited by memory.
        inside_share: of a node's wires, what collectives reach (NCCL's bus bandwidth over the specification).
        outside_share: of the network cards' line rate.
        dispatch_s: seconds in which the host starts one eager operator; when that is longer than the kernels take, the
            device waits.
        step_s: fixed seconds a step: data, logging, the clipping's synchronization.
    """

    product_share: float = 0.85
    memory_share: float = 0.95
    inside_share: float = 0.83
    outside_share: float = 0.91
    dispatch_s: float = 57e-6
    step_s: float = 5e-3
    base_bytes: float = 1.0e9
    is_power_limited: bool = True
    has_generations: bool = True
    generation_share: float = 0.55

    def sustained_share(self, dtype: str, device: Device) -> float:
        """The share of the rate of large products that a device keeps up under its power limit."""
        if not (self.is_power_limited and device.power_w and device.flops_per_joule):
            return self.product_share
        scale = device.peak(dtype) / device.peak("float16")
        sustained = device.power_w * device.flops_per_joule * scale
        return min(self.product_share, sustained / device.matmul_rate(dtype))


NONE = Losses(
    product_share=1.0,
    memory_share=1.0,
    inside_share=1.0,
    outside_share=1.0,
    dispatch_s=0.0,
    step_s=0.0,
    base_bytes=0.0,
    is_power_limited=False,
    has_generations=False,
)
