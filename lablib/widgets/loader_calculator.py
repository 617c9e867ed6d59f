"""Loader calculator: rate, jitter, workers, prefetch and step time -> idle time of the device.

The picture has the idle share for every prefetch: of this loader, from a simulated run; and by the closed forms for
constant and for exponential times.
"""

import plotly.graph_objects as go

from lablib.data.loading.queueing import idle_share_constant, idle_share_exponential
from lablib.data.loading.smallest_prefetch import idle_share
from lablib.figures.lines import figure_idle_shares
from lablib.signature import checked
from lablib.widgets.controls import Control, IntChoice, LogSlider
from lablib.widgets.explore import Exploration, explore

PREFETCHES = (1, 2, 4, 8, 16)
NUM_BATCHES = 400  # of each simulated run: five of them take some 20 ms
_EXAMPLES = ({"spread": 0}, {"workers": 8})


@checked
def loader_calculator(interactive: bool = True) -> Exploration:
    """The calculator, to end a cell with; not interactive: its figure at a few settings."""
    controls: list[Control] = [
        LogSlider("load_s", "Load a batch", 1e-3, 10.0, 0.2, "s"),
        IntChoice("spread", "Jitter", (0, 25, 50, 100, 200), 100, "% of it"),
        IntChoice("workers", "Workers", (1, 2, 4, 8, 16), 2),
        IntChoice("prefetch", "Prefetch", PREFETCHES, 2, "a worker"),
        LogSlider("step_s", "Step", 1e-3, 10.0, 0.1, "s"),
    ]
    return explore(idle_shares, _draw, controls, interactive, _EXAMPLES)


@checked
def idle_shares(
    load_s: float, spread: int, workers: int, prefetch: int, step_s: float
) -> tuple[int, dict[str, list[float]]]:
    """The chosen prefetch, and the idle share at each of `PREFETCHES`: simulated, and by both closed forms.

    `spread` is the standard deviation of load times in percent of their mean.
    """
    simulated = [idle_share(load_s, step_s, workers, one, spread / 100, NUM_BATCHES) for one in PREFETCHES]
    exponential = [idle_share_exponential(load_s, step_s, workers, one) for one in PREFETCHES]
    constant = [idle_share_constant(load_s, step_s, workers)] * len(PREFETCHES)
    return prefetch, {
        "this loader, simulated": simulated,
        "exponential times (M/M/k/K)": exponential,
        "constant times (D/D)": constant,
    }


def _draw(found: tuple[int, dict[str, list[float]]]) -> go.Figure:
    prefetch, shares = found
    here = [f"{name} {line[PREFETCHES.index(prefetch)]:.1%}" for name, line in shares.items()]
    summary = f"With prefetch {prefetch} the device waits: {', '.join(here)}."
    return figure_idle_shares(PREFETCHES, shares, summary=summary)
