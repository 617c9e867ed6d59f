"""Interactive widgets: `explore` connects controls, one function and one figure.

controls       records of controls: choices, sliders, toggles
explore        one call, with or without widgets
explorer       with widgets: controls, one figure, redrawn at a change
static         without widgets, for papermill and print
player         a slider over moments, with buttons
whole_figure   a plotly widget that always shows the latest figure
redraw         the differences between two figures, in one message
fit            width and name of a plotly widget
late_start     widgets that start late
live_text      text that a screen reader reads aloud when it changes
*_calculator, bubble_simulator
               the widgets of labs
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
