# ruff: noqa: I001  (in reading order)
from .checks.check import Check as Check, Checks as Checks, checks_for as checks_for
from .checks.exercise import Exercise as Exercise, exercise as exercise
from .checks.expect import Expect as Expect
from .checks.printing import print_error as print_error, print_text as print_text
from .checks.result import Hint as Hint, Result as Result, ShownSource as ShownSource
from .checks.try_out import try_out as try_out
from .guess import Guess as Guess, Guesses as Guesses, guess as guess
from .running.recorded import recorded_comparison as recorded_comparison
from .show_source import show_source as show_source
