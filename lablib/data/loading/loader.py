"""Settings of a loader (workers, prefetch, copies), and random times of loads and steps.

    workers x prefetch    batches that are loaded ahead, in the host's memory; hides jitter
    copy                  bytes / bandwidth seconds per batch; the stream decides whether the device waits
    times                 constant, or with jitter: lognormal (most are short, a few much longer than the mean) or
                          exponential (the queue's closed form)

Cost: none; `draw_times` makes one number per time.
Source: the arguments of `torch.utils.data.DataLoader`, torch 2.13.
Simplified: see loader_timeline.py, which runs them.
"""

import math
import random
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from lablib.signature import Checked, Count, NonNegative, NonNegativeInt, Range, checked

Spread = Annotated[float, Range(ge=0, le=1e6)]  # its square is a float; hardly a draw is near the mean of such times


class Copy(Enum):
    """Memory and stream of a batch's copy to the device."""

    PAGEABLE = "pageable"
    PINNED = "pinned, in the stream of compute"
    OWN_STREAM = "pinned, on a separate stream"


class Jitter(Enum):
    """Distribution of times around their mean."""

    NONE = "none"
    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Loader(Checked):
    """Settings of a loader."""

    workers: NonNegativeInt = 0  # processes that load; 0: the loop loads by itself
    # orders that each worker has at most, batches loaded and not taken included (torch's prefetch_factor)
    prefetch: Count = 2
    keeps_order: bool = True  # batches are taken in the order of their numbers; if False, the first that is loaded
    persistent: bool = False  # workers live from one epoch to the next
    start_s: NonNegative = 0.0  # seconds until a new worker begins its first load
    copy: Copy = Copy.PAGEABLE  # memory and stream of the copy
    batch_bytes: NonNegative = 0.0  # bytes of a batch
    copy_bytes_per_s: Annotated[float, Range(gt=0)] = 25e9  # bandwidth between host and device
    reads_loss: bool = True  # the loop waits for the end of each step (`loss.item()`); if False, it is one step ahead

    @property
    def copy_s(self) -> float:
        """Seconds C to copy a batch."""
        return self.batch_bytes / self.copy_bytes_per_s


@checked
def draw_times(
    mean_s: NonNegative,
    num: Annotated[int, Range(ge=0, le=10**8)],
    jitter: Jitter = Jitter.NONE,
    spread: Spread = 0.5,
    seed: int = 0,
) -> list[float]:
    """Times in seconds with this mean, distributed as `jitter`; a shorter list is the beginning of a longer one.

    `spread`: standard deviation over the mean of a lognormal distribution; of an exponential one it is 1.
    """
    draw = random.Random(seed)
    if jitter is Jitter.NONE:
        return [float(mean_s)] * num
    if jitter is Jitter.EXPONENTIAL:
        return [mean_s * draw.expovariate(1.0) for _ in range(num)]
    # exp(N(m, v)) has mean exp(m + v / 2) and (deviation / mean)^2 = exp(v) - 1.
    variance = math.log1p(spread**2)
    return [mean_s * draw.lognormvariate(-variance / 2, math.sqrt(variance)) for _ in range(num)]
