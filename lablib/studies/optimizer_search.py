"""Search of learning rate and weight decay, equal for all optimizers: a grid that extends at its edge.

A comparison is only as good as the worse tuned of the two. A grid made for one optimizer favours it: a rate has the
size of a step for AdamW, of a sign for Lion, of a share of the weights for LAMB. So:

    rates     start f^k for k = 0 ... K - 1, each with each decay
    then      while the best has no neighbour (the rate once more, or less, by f; the same decay): try that one

Each optimizer has its start, and all have the factor f. The result does not depend on the start as long as the loss has
one minimum over rates; the number of trials does, and is part of the result.

Then the best of one seed is tested: it and its better neighbour are tried on further seeds, and the lower mean is taken
(`best_of_means`). A rate near divergence can be best on one seed and diverge on the next.

Cost: 2 K trials and a few on one seed, and two settings on further ones. Reported losses must come from other seeds:
the minimum of many noisy losses is too small.
Source: the protocol of Wen et al., "Fantastic Pretraining Optimizers and Where to Find Them", 2025, arXiv 2509.02046,
section 3, with two settings where they search all.
Simplified: one grid; a neighbour at another decay is not tried.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lablib.signature import checked

FACTOR = 2.0


@dataclass(frozen=True)
class Search:
    """Trials of a search."""

    losses: dict[tuple[float, float], float]  # (rate, decay) -> loss, in the order of the trials
    best: tuple[float, float]  # the rate and decay of the least loss
    is_inside: bool  # whether both neighbours of the best were tried

    @property
    def runner_up(self) -> tuple[float, float]:
        """The better of the two rates next to the best, at the same decay; the best itself if there is none."""
        rate, decay = self.best
        same = sorted(other for other, its_decay in self.losses if its_decay == decay)
        place = same.index(rate)
        beside = [(other, decay) for other in same[max(0, place - 1) : place + 2] if other != rate]
        return min(beside, key=self.losses.__getitem__, default=self.best)


@checked
def best_of_means(losses: Mapping[tuple[float, float], Sequence[float]]) -> tuple[float, float]:
    """Of the settings with the most seeds, the one with the least mean loss.

    `losses`: (rate, decay) -> loss on each of its seeds.
    """
    max_seeds = max(map(len, losses.values()))
    return min((key for key in losses if len(losses[key]) == max_seeds), key=lambda key: sum(losses[key]))


@checked
def search(
    loss_of: Callable[[float, float], float],
    start: float,
    num_rates: int,
    decays: Sequence[float],
    factor: float = FACTOR,
    max_trials: int = 24,
) -> Search:
    """Find the rate and the decay of the least loss.

    Arguments:
        loss_of: rate, decay -> loss; infinite if training diverged.
        start: the least rate of the grid.
        num_rates: rates of the grid, at each decay.
        decays: of the grid.
        factor: from one rate to the next.
    """
    losses = {
        (start * factor**place, decay): loss_of(start * factor**place, decay)
        for decay in decays
        for place in range(num_rates)
    }
    places = {(place, decay): (start * factor**place, decay) for decay in decays for place in range(num_rates)}
    while True:
        place, decay = min(places, key=lambda key: losses[places[key]])
        missing = [(side, decay) for side in (place - 1, place + 1) if (side, decay) not in places]
        if not missing or len(losses) >= max_trials:
            return Search(losses, places[place, decay], not missing)
        for side, _ in missing:
            places[side, decay] = (start * factor**side, decay)
            losses[start * factor**side, decay] = loss_of(start * factor**side, decay)
