"""Two measures of speedup: steps per second, and seconds to the same loss.

A format that makes a step faster may need more steps, as its gradients are less precise:

    throughput          = (seconds per step of the reference) / (seconds per step)
    time to equal loss  = throughput * (steps of the reference to the loss) / (steps to it)

The second is the speedup of a whole run. Losses of single batches scatter, so the loss is a mean over the last `window`
steps.

Source: time to accuracy, Coleman et al., "DAWNBench", 2017.
Simplified: one run of each; another seed changes the number of steps by some percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lablib.signature import Count, Range, checked

Time = Annotated[float, Range(gt=0, example=1.0)]


@dataclass(frozen=True, slots=True)
class SpeedClaim:
    """Speedup over a reference; above 1 is faster."""

    throughput: float  # by steps per second
    to_equal_loss: float  # by seconds to the same loss; 0 if it is never reached


@checked
def steps_to_loss(losses: Sequence[float], target: float, window: Count = 10) -> int | None:
    """The number of steps after which the mean of the last `window` losses is at most `target`; None: never."""
    means = (sum(losses[end - window : end]) / window for end in range(window, len(losses) + 1))
    return next((end for end, mean in enumerate(means, start=window) if mean <= target), None)


@checked
def speed_claim(
    losses: Sequence[float],
    step_time_s: Time,
    reference_losses: Sequence[float],
    reference_step_time_s: Time,
    target: float,
    window: Count = 10,
) -> SpeedClaim:
    """Both speedups of a run over a reference. ValueError: the reference never reaches the target."""
    steps, reference_steps = (steps_to_loss(one, target, window) for one in (losses, reference_losses))
    if reference_steps is None:
        raise ValueError(
            f"the reference must reach the target: it never has a mean loss of {target}; try a higher one."
        )
    throughput = reference_step_time_s / step_time_s
    return SpeedClaim(throughput, throughput * reference_steps / steps if steps else 0.0)
