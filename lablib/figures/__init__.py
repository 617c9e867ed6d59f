"""Figures of runs and formulas: `figure_x(data)` returns a plotly figure and does nothing else.

style, theme   colours and fonts, light and dark
describe       a sentence and a table for each figure
units          numbers with units
lines          a line chart
run            figures of a run
plans          figures of predictions
techniques     figures of single techniques
svg            figures without script, for saved notebooks
show           a figure at the end of a cell
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
