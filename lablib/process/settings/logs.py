"""Settings of logging: level, handlers and filters of the root and of each named logger, and `logging.disable`.

There are a hundred loggers once torch is imported, and reading all takes 20 us, so `setters` names the functions that
change them. A direct assignment to a logger's `propagate` or `disabled` is noticed at the end of a run only.
"""

import logging
from operator import attrgetter
from typing import Any

from lablib.process.settings.setting import ProcessSetting

_STATE = attrgetter("level", "propagate", "disabled", "handlers", "filters")
_NEW = (logging.NOTSET, True, False, [], [])  # state of a logger made by `getLogger`


def logging_state(root: Any = None, manager: Any = None) -> tuple:
    """The current state, or the state of a root logger and its manager that are not installed yet."""
    root, manager = root or logging.root, manager or logging.Logger.manager
    made = _loggers(root, manager)
    states = zip(made, map(_STATE, made), strict=True)  # no call per logger: each launch reads all of them three times
    loggers = {logger: (*now[:3], [*now[3]], [*now[4]]) for logger, now in states if now != _NEW}
    handlers = {handler: (handler.level, handler.formatter) for *_, some, _ in loggers.values() for handler in some}
    return root, manager, manager.disable, logging.raiseExceptions, logging.lastResort, loggers, handlers


def _give_back(state: tuple) -> None:
    root, manager, disable, raises, last_resort, loggers, handlers = state
    logging.root = logging.Logger.root = root
    logging.Logger.manager = manager
    logging.raiseExceptions, logging.lastResort = raises, last_resort
    for logger in _loggers(root, manager):
        if _STATE(logger) != (before := loggers.get(logger, _NEW)):
            logger.level, logger.propagate, logger.disabled = before[:3]
            logger.handlers[:], logger.filters[:] = before[3:]
    for handler, (level, formatter) in handlers.items():
        handler.level, handler.formatter = level, formatter
    manager.disable = disable
    manager._clear_cache()  # cached levels of loggers


def _loggers(root: Any, manager: logging.Manager) -> list[logging.Logger]:
    named: list[Any] = list(manager.loggerDict.values())
    return [root, *[one for one in named if one.__class__ is not logging.PlaceHolder]]


SETTINGS = (
    ProcessSetting(
        "logging",
        logging_state,
        _give_back,
        setters=(
            (logging.Manager, "_clear_cache"),  # a level was set, or `logging.disable` called
            (logging.Logger, "addHandler"),
            (logging.Logger, "removeHandler"),
            (logging.Filterer, "addFilter"),
            (logging.Filterer, "removeFilter"),
            (logging.Handler, "setLevel"),
            (logging.Handler, "setFormatter"),
        ),
    ),
)
