"""Controls that call one function and one figure: `explore`, and the records that describe its controls."""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
