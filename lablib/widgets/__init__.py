"""Controls that call one function and one figure: `explore`, and the records that describe its controls."""

from lablib.widgets.batch_calculator import batch_calculator as batch_calculator
from lablib.widgets.bubble_simulator import bubble_simulator as bubble_simulator
from lablib.widgets.compression_calculator import compression_calculator as compression_calculator
from lablib.widgets.controls import Choice as Choice
from lablib.widgets.controls import IntChoice as IntChoice
from lablib.widgets.controls import LogSlider as LogSlider
from lablib.widgets.controls import Steps as Steps
from lablib.widgets.controls import Text as Text
from lablib.widgets.controls import Toggle as Toggle
from lablib.widgets.explore import explore as explore
from lablib.widgets.loader_calculator import loader_calculator as loader_calculator
from lablib.widgets.memory_calculator import memory_calculator as memory_calculator
from lablib.widgets.placement_calculator import placement_calculator as placement_calculator
from lablib.widgets.tensor_calculator import tensor_calculator as tensor_calculator
