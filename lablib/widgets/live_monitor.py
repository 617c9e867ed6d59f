"""The figure of a monitor below a cell, redrawn while the cell runs."""

import time
from collections.abc import Callable, Sequence

from IPython.display import display

from lablib.figures.show import picture_bundle
from lablib.signature import NonNegative, checked
from lablib.train.alerts import AlertEvent
from lablib.train.monitor import Monitor, Sample


class LiveMonitor:
    """Shows the monitor's figure, and draws it again at a sample that comes `every_s` or more after the last drawing.

    It is one of the monitor's writers: the cell that records redraws, and `monitor.close()` draws the end.
    """

    @checked
    def __init__(self, monitor: Monitor, every_s: NonNegative = 1.0, clock: Callable[[], float] = time.monotonic):
        self._monitor, self._every_s, self._clock = monitor, every_s, clock
        self._drawn_s = clock()
        self._handle = display(picture_bundle(monitor.figure()), raw=True, display_id=True)
        monitor.writers.append(self)

    def write(self, sample: Sample, events: Sequence[AlertEvent]) -> None:
        """Redraw, if it is time."""
        if self._clock() - self._drawn_s >= self._every_s:
            self.close()

    def close(self) -> None:
        """Draw the latest state."""
        self._drawn_s = self._clock()
        if self._handle is not None:  # None outside of a notebook
            self._handle.update(picture_bundle(self._monitor.figure()), raw=True)
