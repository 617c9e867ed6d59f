"""Text: numbers with units, HTML, and error messages.

units      "12.3 MB", "4 GPUs": quantities and plurals
typed      numbers and names as a person types them
toml       TOML values, and tables of a file replaced in place
files      atomic writes of files, and their error
markup     HTML escaping, tables and details for a notebook
language   the reader's language
messages   the text of values, exceptions and tracebacks, even if their methods raise
"""
