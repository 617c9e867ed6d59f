"""How batches get to a device: the settings of a loader, and the times that loads and steps take.

    workers x prefetch    batches that are loaded ahead, in the host's memory; hides jitter
    copy                  bytes / bandwidth seconds a batch; where it takes place decides whether the device waits
    times                 constant, or with jitter: lognormal (most are short, a few much longer than the mean) or
                          exponential (that of the queue's closed form)

Cost: none; `draw_times` makes as many numbers as asked.
Source: the arguments of `torch.utils.data.DataLoader`, torch 2.13.
Simplified: see loader_timeline.py, which runs them.
"""

import math
import random
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from lablib.signature import NonNegative, Range, check_fields, checked

MAX_SPREAD = 1e6  # its square is a float; hardly a draw of such times is near their mean


class Copy(Enum):
    """How a batch gets from the host's memory to the device's."""

    PAGEABLE = "pageable"
    PINNED = "pinned, in the stream of compute"
    OWN_STREAM = "pinned, on a stream of its own"


class Jitter(Enum):
    """How times spread around their mean."""

    NONE = "none"
    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Loader:
    """How batches get to the device.

    Attributes:
        workers: processes that load; 0: the loop loads by itself.
        prefetch: orders that each worker has at most, batches loaded and not taken included (torch's prefetch_factor).
        keeps_order: batches are taken in the order of their numbers; else the first that is loaded.
        persistent: workers live from one epoch to the next.
        start_s: seconds until a new worker begins its first load.
        copy: from which memory, on which stream.
        batch_bytes: bytes of a batch.
        copy_bytes_per_s: bandwidth between host and device.
        reads_loss: the loop waits for the end of each step (`loss.item()`); else it is one step ahead.
    """

    workers: int = 0
    prefetch: int = 2
    keeps_order: bool = True
    persistent: bool = False
    start_s: float = 0.0
    copy: Copy = Copy.PAGEABLE
    batch_bytes: float = 0.0
    copy_bytes_per_s: float = 25e9
    reads_loss: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.workers < 0 or self.prefetch < 1:
            raise ValueError(
                "a loader needs workers >= 0 and prefetch >= 1 order for each: "
                f"got {self.workers} and {self.prefetch}; try 2 and 2."
            )
        if not (0 <= self.start_s < math.inf and 0 <= self.batch_bytes < math.inf and self.copy_bytes_per_s > 0):
            raise ValueError(
                "start_s and batch_bytes must be finite and at least 0, copy_bytes_per_s above 0: "
                f"got {self.start_s}, {self.batch_bytes} and {self.copy_bytes_per_s}."
            )

    @property
    def copy_s(self) -> float:
        """Seconds C to copy a batch."""
        return self.batch_bytes / self.copy_bytes_per_s


@checked
def draw_times(
    mean_s: NonNegative,
    num: Annotated[int, Range(ge=0, le=10**8)],
    jitter: Jitter = Jitter.NONE,
    spread: Annotated[float, Range(ge=0, le=MAX_SPREAD)] = 0.5,
    seed: int = 0,
) -> list[float]:
    """Times with this mean, in seconds.

    Arguments:
        mean_s: at least 0.
        num: how many.
        jitter: their distribution.
        spread: of a lognormal one, the standard deviation over the mean; that of an exponential one is 1.
        seed: of the draw; one seed is one list, and the first of a longer one.
    """
    draw = random.Random(seed)
    if jitter is Jitter.NONE:
        return [float(mean_s)] * num
    if jitter is Jitter.EXPONENTIAL:
        return [mean_s * draw.expovariate(1.0) for _ in range(num)]
    # exp(N(m, v)) has mean exp(m + v / 2) and (deviation / mean)^2 = exp(v) - 1.
    variance = math.log1p(spread**2)
    return [mean_s * draw.lognormvariate(-variance / 2, math.sqrt(variance)) for _ in range(num)]
