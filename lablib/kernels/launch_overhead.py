"""Launch overhead: a step of many small kernels, launched one by one, as a CUDA graph, or as one kernel.

A GPU runs the kernels in its queue; the host fills the queue, one kernel after the other, each in h seconds of Python,
dispatch and driver. Kernel i can start when it has been launched and the one before it has ended:

    end_i = max(end_(i-1), (i + 1) h) + d_i                     d_i seconds of the kernel on the device

    host    |h0|h1|h2|h3|                     the host is slower:  the device idles between kernels
    device     |d0|  |d1|  ...                the host is faster:  launches hide behind the kernel that runs

For n kernels of d seconds, with a gap g between two kernels on the device (its teardown, the next one's set-up):

    one by one      h + (n - 1) max(h, d + g) + d
    CUDA graph      h_graph + n d + (n - 1) g              one launch for all; the device does the rest
    mega-kernel     h + n d - time in tails                one kernel: no gap, and the next part starts in idle cores

A mega-kernel waits for the last tiles of a wave once instead of n times: with a share t of each kernel's time in its
tail, n d (1 - t) + t d. The simulator launches its kernels one by one in this way (lablib/sim/ranks/rank.py): h is
`Device.launch_s`, g is `Device.queued_s`.

Larger batches increase d but not n and h, so from some batch on a step is limited by the device. A faster device needs
a larger batch to hide the host.

Cost: O(kernels). Measured on H100s: 1.3 us between two kernels of a CUDA graph; one forward pass of Llama-1B is about a
hundred kernels; as one kernel it reads its weights at 78% of the bandwidth, engines with separate kernels at 50%.
Source: Nguyen et al., "Accelerating PyTorch with CUDA Graphs", PyTorch blog, 2021; NVIDIA, "CUDA Graph Best Practice
for PyTorch" (docs.nvidia.com/dl-cuda-graph); Spector, Juravsky et al., "Look Ma, No Bubbles! Designing a Low-Latency
Megakernel for Llama-1B", Hazy Research blog, 2025-05-27 (the three numbers).
Simplified: one stream; a queue without end; the host never waits for a value; a graph's launch does not grow with n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.signature import FractionBelow1, NonNegative, checked

GRAPH_GAP_S = 1.3e-6  # between two kernels of a CUDA graph on an H100, by the blog of 2025


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Seconds of a step, and of the device's kernels in it."""

    step_s: float
    busy_s: float

    @property
    def idle_share(self) -> float:
        """Share of the step in which the device waits, for the host or between kernels."""
        return 1 - self.busy_s / self.step_s if self.step_s else 0.0


@checked
def one_by_one(kernels_s: Sequence[NonNegative], launch_s: NonNegative, gap_s: NonNegative = 0.0) -> LaunchedStep:
    """Each kernel, `kernels_s` on the device, launched by the host in `launch_s`; `gap_s` between two in the queue."""
    end_s = -gap_s
    for index, kernel_s in enumerate(kernels_s):
        end_s = max(end_s + gap_s, (index + 1) * launch_s) + kernel_s
    return LaunchedStep(max(end_s, 0.0), float(sum(kernels_s)))


@checked
def cuda_graph(
    kernels_s: Sequence[NonNegative], launch_s: NonNegative, gap_s: NonNegative = GRAPH_GAP_S
) -> LaunchedStep:
    """All kernels by one launch of the host."""
    busy_s = float(sum(kernels_s))
    return LaunchedStep(launch_s + busy_s + max(0, len(kernels_s) - 1) * gap_s, busy_s)


@checked
def mega_kernel(
    kernels_s: Sequence[NonNegative], launch_s: NonNegative, tail_share: FractionBelow1 = 0.0
) -> LaunchedStep:
    """All kernels as parts of one: no gaps, and only the last tail.

    `tail_share`: share of each kernel's time that its half-empty last wave wastes (`wave_waste`, tile_quantization.py).
    """
    last_s = kernels_s[-1] if kernels_s else 0.0
    busy_s = sum(kernels_s) * (1 - tail_share) + tail_share * last_s
    return LaunchedStep(launch_s + busy_s, busy_s)
