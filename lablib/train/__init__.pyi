# ruff: noqa: I001  (in reading order)
from .checkpoint import Checkpoints as Checkpoints
from .checkpoint_state import PerRank as PerRank, load_objects as load_objects
from .generators import generator_states as generator_states, set_generator_states as set_generator_states
