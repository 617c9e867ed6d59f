"""Records of a run: spans, transfers, allocations, and their summaries.

timeline.py       spans
traffic.py        collectives and messages
allocations.py    storages, in columns
memory.py         the memory of a run, by rank and category
memory_snapshot.py  snapshots of CUDA's allocator
memory_viz.py     the same, written: a file for torch's memory viewer
memory_text.py    a run's memory in words
allocator_settings.py   PYTORCH_ALLOC_CONF as a record
allocator_blocks.py     blocks of an allocator's segments
caching_allocator.py    torch's caching allocator: rounding, splitting, fragmentation
expandable_segments.py  the allocator with pages mapped on demand
allocator_replay.py     a run's memory replayed through the allocator
step_terms.py     a measured step by term, from a number, a file or a trace
summary.py        time per rank: compute, communication, waiting, idle
spent.py          time per part, to compare two runs
comparison.py     recorded comparisons of predicted and measured times
phase_path.py     path of named blocks around an operator
steps.py          the steps of a program, and the numbers of each
passes.py         phase of unnamed work: forward or compute
rank_text.py      ranks and groups as text
perfetto.py       a trace for ui.perfetto.dev
circular_wait.py  deadlocks of unbatched messages on NCCL
saved.py          conversion of records to and from JSON values
draw.py           a figure by its name

The simulator, real processes, scripts and the replay of a pipeline make the same records.
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
