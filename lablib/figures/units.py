"""The numbers with units of lablib/units.py, where labs look for them."""

from lablib.units import Unit, axis_title, format_quantity, log_ticks, unit_for

__all__ = ["Unit", "axis_title", "format_quantity", "log_ticks", "unit_for"]
