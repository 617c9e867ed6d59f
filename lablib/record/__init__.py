"""Records of a run: spans, transfers, allocations, and their summaries.

timeline.py       spans
traffic.py        collectives and messages
allocations.py    storages, in columns
memory.py         the memory of a run, by rank and category
memory_text.py    a run's memory in words
summary.py        time per rank: compute, communication, waiting, idle
spent.py          time per part, to compare two runs
comparison.py     a recorded comparison of predicted and measured times
phase_path.py     the path of blocks around a piece of work
passes.py         forward or backward, where no phase is named
rank_text.py      ranks and groups as text
perfetto.py       a trace for ui.perfetto.dev
circular_wait.py  calls that wait for each other on NCCL
saved.py          records as plain values, and back
draw.py           a figure by its name

Records know no backend: the simulator, real processes, scripts and the replay of a pipeline make the same ones.
"""

from lablib.record.memory import Allocation, Memory
from lablib.record.summary import Summary
from lablib.record.timeline import Span, Timeline
from lablib.record.traffic import Traffic, Transfer

__all__ = ["Allocation", "Memory", "Span", "Summary", "Timeline", "Traffic", "Transfer"]
