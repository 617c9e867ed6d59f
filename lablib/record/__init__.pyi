# ruff: noqa: I001  (in reading order)
from .timeline import Span as Span, Timeline as Timeline
from .traffic import Traffic as Traffic, Transfer as Transfer
from .memory import Allocation as Allocation, Memory as Memory
from .summary import Summary as Summary
from .allocator_settings import AllocatorSettings as AllocatorSettings
from .caching_allocator import CachingAllocator as CachingAllocator, OutOfMemory as OutOfMemory
from .expandable_segments import ExpandableAllocator as ExpandableAllocator
from .allocator_replay import AllocatorReplay as AllocatorReplay
