"""Pictures of what a run did and of what a formula says: `figure_x(data)` returns a plotly figure, and does no more.

Reading order: what is shared, then the figures, then how they reach the reader.
"""

from lablib.figures.describe import describe as describe
from lablib.figures.describe import table as table
from lablib.figures.export import with_drawn_figures as with_drawn_figures
from lablib.figures.reconcile import figure_reconcile as figure_reconcile
from lablib.figures.show import show as show
from lablib.figures.style import LOOKS as LOOKS
from lablib.figures.style import kind_of_phase as kind_of_phase
from lablib.figures.timeline import figure_timeline as figure_timeline
from lablib.figures.units import in_words as in_words
from lablib.figures.units import unit_for as unit_for
