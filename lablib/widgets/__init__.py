"""Interactive widgets: `explore` connects controls, one function and one figure.

controls       records of controls: choices, sliders, toggles
explore        one call, with or without widgets
all_pictures   figures at many settings, for pages without Python
explorer       with widgets: controls, and one figure that is redrawn at a change
whole_figure   a plotly widget that always shows the latest figure
parts          a live text, a fitted figure, a player
live_monitor   a monitor's metrics and alerts, redrawn while they are recorded
*_calculator, bubble_simulator
               the widgets of labs
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
