# ruff: noqa: I001  (in reading order)
from .batch_calculator import batch_calculator as batch_calculator
from .bubble_simulator import bubble_simulator as bubble_simulator
from .compression_calculator import compression_calculator as compression_calculator
from .controls import (
    Choice as Choice,
    IntChoice as IntChoice,
    LogSlider as LogSlider,
    Steps as Steps,
    Text as Text,
    Toggle as Toggle,
)
from .explore import explore as explore
from .live_monitor import LiveMonitor as LiveMonitor
from .loader_calculator import loader_calculator as loader_calculator
from .memory_calculator import memory_calculator as memory_calculator
from .placement_calculator import placement_calculator as placement_calculator
from .tensor_calculator import tensor_calculator as tensor_calculator
