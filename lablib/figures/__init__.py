"""Pictures of what a run did and of what a formula says: `figure_x(data)` returns a plotly figure, and does no more.

Reading order: what is shared, then the figures, then how they reach the reader.
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
