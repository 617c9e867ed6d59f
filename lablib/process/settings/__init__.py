"""Per-process settings of Python and torch, which each rank owns, with `take` and `give_back`.

    interpreter.py      environment, streams, paths, working directory, hooks, collector, limits, locale, warnings
    logs.py             logging
    torch_settings.py   dtype, determinism, precision, kernels, hooks, threads
    torch_modules.py    process groups, and state changed by context managers
    random_states.py    random generators

Ranks of a simulation are threads that take turns in one process, ranks on real backends are processes that run one
program after another. The rule is the same for both:

    A rank starts with a copy of the notebook's settings at the launch, as it starts with a copy of the arguments; its
    changes are its own and are discarded when the run ends.

On processes only plain data is copied (`travels`); streams, hooks, handlers and filters start there as in a new
process. Modes of a thread (`is_of_thread`: grad mode, autocast, default device, decimal context) start on every rank as
in a new thread. Random generators start from the rank's number (lablib/process/rank_state.py).

The simulator swaps these states with the turn (lablib/sim/ranks/own_settings.py), or selects them by thread
(lablib/sim/ranks/by_thread.py); the process takes `taken(AROUND_A_RUN)` before a run and restores it at the end. A
worker process stores `taken()` when it starts, and before each program restores that, overridden by the launching
process's `taken(TRAVELLING)`.

Simplified: a process owns more than this (resource limits, other libraries' modules); simulated ranks share module
variables.
"""

from collections.abc import Iterable
from typing import Any

from lablib.process.settings import interpreter, logs, random_states, torch_modules, torch_settings
from lablib.process.settings.setting import ProcessSetting

SETTINGS: tuple[ProcessSetting, ...] = (
    *(interpreter.SETTINGS + logs.SETTINGS + torch_settings.SETTINGS),
    *(torch_modules.SETTINGS + random_states.SETTINGS),
)
OF_THE_PROCESS = tuple(setting for setting in SETTINGS if not setting.is_of_thread)
AROUND_A_RUN = tuple(setting for setting in SETTINGS if not setting.is_of_thread or setting.is_always)
TRAVELLING = tuple(setting for setting in OF_THE_PROCESS if setting.travels)


def taken(settings: Iterable[ProcessSetting] = SETTINGS) -> dict[str, Any]:
    """The current states of these settings, by name."""
    return {setting.name: setting.take() for setting in settings}


def give_back(states: dict[str, Any]) -> None:
    """Restore taken states in this process, each setting separately and only if it may differ.

    Raises ExceptionGroup: some settings could not be restored (a working directory that was removed); the others were.
    """
    errors = []
    for setting in SETTINGS:
        try:
            if setting.name in states and (setting.is_always or setting.take() != states[setting.name]):
                setting.give_back(states[setting.name])
        except Exception as error:
            error.add_note(f"while giving back {setting.name}")
            errors.append(error)
    if errors:
        raise ExceptionGroup("some settings of the process could not be given back", errors)


__all__ = ["AROUND_A_RUN", "OF_THE_PROCESS", "SETTINGS", "TRAVELLING", "ProcessSetting", "give_back", "taken"]
