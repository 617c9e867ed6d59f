"""Figures of runs and formulas: `figure_x(data)` returns a plotly figure, without other effects.

style, theme   colours and fonts, light and dark
describe       a sentence and a table for each figure
chart          a plain chart as data
units          numbers with units
lines          line charts
run            figures of a run
plans          figures of predictions
svg            figures without script, for saved notebooks
show           a figure at the end of a cell
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
