# ruff: noqa: I001  (in reading order)
from .timeline import Span as Span, Timeline as Timeline
from .traffic import Traffic as Traffic, Transfer as Transfer
from .memory import Allocation as Allocation, Memory as Memory
from .summary import Summary as Summary
