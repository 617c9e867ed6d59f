"""Global settings, written to by the script: every process has its own."""

CHANNELS = 4
RANK = -1
HISTORY = []
