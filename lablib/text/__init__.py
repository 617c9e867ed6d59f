"""Text: numbers with units, HTML, and error messages.

units      "12.3 MB", "4 GPUs": quantities and plurals
files      files written whole or not at all, and the error when that fails
markup     HTML escaping, tables and details for a notebook
messages   the text of values, exceptions and tracebacks, whatever their own methods do
"""
