"""The numbers with units of lablib/text/units.py, where labs look for them."""

from lablib.text.units import Unit, axis_title, format_quantity, log_ticks, unit_for

__all__ = ["Unit", "axis_title", "format_quantity", "log_ticks", "unit_for"]
