"""What a run leaves: when each rank did what, what travelled, who held how many bytes, and what is said of these.

timeline.py     spans, and everything said of time
traffic.py      collectives and messages
blocks.py       storages, kept as columns
memory_tracker.py       the memory of a run, by rank and category
memory_text.py  a run's memory in words
summary.py      where the time went, rank by rank
spent.py        where it went part by part, to compare two runs
perfetto.py     a trace that ui.perfetto.dev opens
circular_wait.py        calls that wait for each other on NCCL
saved.py        records as plain values, and back

Records know no backend: the simulator, real processes, scripts and the replay of a pipeline make the same ones.
"""

from lablib.record.memory import Allocation, Memory
from lablib.record.summary import Summary
from lablib.record.timeline import Span, Timeline
from lablib.record.traffic import Traffic, Transfer

__all__ = ["Allocation", "Memory", "Span", "Summary", "Timeline", "Traffic", "Transfer"]
