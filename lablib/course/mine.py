"""The learner's package `work/mine`: each answer that passed its check, in a separate file.

    from mine import ring_all_reduce                        in a notebook or a script in work/
    from mine.lab04_accumulate import accumulate            a name that two labs have; `from mine` gives the later lab's

    work/mine/lab08_ring_all_reduce.py                      the answer, with the imports and the helpers that it uses

A check that passes writes the file in one step. A check that fails changes nothing: the file has the last answer that
passed. Without progress (`LAB_PROGRESS=off`, `lab run --instructor`, nbgrader) no file is written.
Simplified: of the notebook's names an answer may use imports, functions, classes and literals; an answer that needs
another value, such as a tensor, is not saved, and a note says so.
"""

import ast
import importlib
import inspect
import linecache
import symtable
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from lablib.course.checks.exercise import Exercise
from lablib.course.checks.formatting import short_repr
from lablib.course.places import Lab
from lablib.text.files import parse_python, read_text, write_text

_INDEX = '''"""Answers that passed their checks, written by the checks: `from mine import ring_all_reduce`."""

from importlib import import_module
from pathlib import Path


def __getattr__(name):
    found = sorted(Path(__file__).parent.glob(f"lab??_{name}.py"))
    if not found:
        raise AttributeError(f"mine has no {name}: it has {', '.join(__dir__()) or 'no answers'}")
    return getattr(import_module(f"{__name__}.{found[-1].stem}"), name)  # the later lab's


def __dir__():
    return sorted({path.stem[6:] for path in Path(__file__).parent.glob("lab??_*.py")})


__all__ = __dir__()
'''
_HEAD = '''"""{title}: the answer of lab {number} that passed on {today:%Y-%m-%d}.

Written by check.{name}, and again whenever an answer passes.
"""
'''


def saved_path(lab: Lab, name: str) -> Path:
    """The file of an exercise's answer. It need not exist."""
    return lab.work.parent / "mine" / f"lab{lab.number}_{name}.py"


def saved_answer(lab: Lab, name: str) -> Any:
    """Run the file and return its answer, or None if it defines no such name. The learner's errors are raised."""
    path = saved_path(lab, name)
    names: dict[str, Any] = {"__name__": "__main__"}  # as in the notebook: ranks get copies of its functions
    exec(compile(read_text(path), str(path), "exec"), names)
    return names.get(name)


def save_answer(lab: Lab, exercise: Exercise, status: str, answer: tuple[Any, ...]) -> list[str]:
    """Save an answer with status "passed". Returns a note for the learner, also after "failed" if one is saved.

    Functions that are not defined in the notebook are not saved.
    """
    path = saved_path(lab, exercise.name)
    if status == "failed" and path.is_file():
        return [f"mine/{path.name} keeps your last answer that passed"]
    if status != "passed" or not all(_is_own(one) for one in answer if callable(one)):
        return []
    try:
        text = _HEAD.format(title=exercise.title, number=lab.number, today=datetime.now(), name=exercise.name)
        text += _Source(exercise.name, answer).text()
        write_text(path.with_name("__init__.py"), _INDEX)
        write_text(path, text)
    except Exception as error:  # of any object of the notebook, too
        return [f"this answer is not saved in {path.parent}: {error}"]
    importlib.invalidate_caches()
    sys.modules.pop(f"mine.{path.stem}", None)  # this kernel may have imported the answer before
    return [f"saved: `from mine import {exercise.name}` in {path.parents[1].name}/"]


class _Source:
    """A module that defines an answer: imports, then the notebook's names, each after those that it uses."""

    def __init__(self, name: str, answer: tuple[Any, ...]):
        self._imports, self._parts, self._values = set[str](), list[str](), dict[str, Any]()
        own = [self._expression(value) for value in answer]
        if own != [name]:
            self._parts.append(f"{name} = {', '.join(own)}")

    def text(self) -> str:
        imports = sorted(self._imports, key=lambda line: (line.startswith("from"), line))
        return "\n".join([*(["", *imports] if imports else []), "", "", "\n\n\n".join(self._parts), ""])

    def _expression(self, value: Any) -> str:
        """An answer as a literal, or as a name, which is added."""
        if not callable(value) and (literal := _literal(value)):
            return literal
        names = getattr(_function(value), "__globals__", {})
        name = next((each for each in [getattr(value, "__name__", ""), *names] if names.get(each) is value), "")
        self._add(name, names if name else {"": value})
        return name

    def _add(self, name: str, namespace: Mapping[str, Any]) -> None:
        value = namespace[name]
        if name in self._values:
            if self._values[name] is not value:
                raise ValueError(f"it uses two different values of the name {name}; rename one")
            return
        self._values[name] = value
        if literal := _literal(value):
            self._parts.append(f"{name} = {literal}")
        elif line := _import(name, value):
            self._imports.add(line)
        elif source := _definition(name, value):
            own = getattr(_function(value), "__globals__", namespace)
            for used in sorted(_free_names(source) & own.keys()):
                self._add(used, own)
            self._parts.append(source)
        else:
            raise ValueError(
                f"it may use imports, functions, classes and literals of the notebook: got {name or 'an answer'}, "
                f"{short_repr(value)}; make it inside the function"
            )


def _literal(value: Any) -> str:
    """The value as Python's text; "" if it has none."""
    try:
        return repr(value) if ast.literal_eval(parse_python(repr(value), "eval")) == value else ""
    except Exception:  # of any object's repr and comparison
        return ""


def _is_own(value: Any) -> bool:
    """Whether it is defined in a notebook or script, or comes from the package."""
    return str(getattr(value, "__module__", "")).split(".")[0] in ("__main__", "mine")


def _import(name: str, value: Any) -> str:
    """The import of a value of another module; "" if there is none."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" + f" as {name}" * (value.__name__ != name)
    of, homes = getattr(value, "__name__", name), sorted(sys.modules, key=lambda each: (each.count("."), each))
    for home in () if _is_own(value) else (str(getattr(value, "__module__", "")), *homes):
        if home != "__main__" and getattr(sys.modules.get(home), "__dict__", {}).get(of) is value:
            return f"from {home} import {of}" + f" as {name}" * (of != name)
    return ""


def _function(value: Any) -> FunctionType | None:
    """The function itself, or the first method of a class."""
    held = vars(value).values() if isinstance(value, type) else [inspect.unwrap(value) if callable(value) else None]
    return next((each for each in held if isinstance(each, FunctionType)), None)


def _definition(name: str, value: Any) -> str:
    """The statement that defines a function or a class in its cell; "" if it is not found."""
    function, own_name = _function(value), getattr(value, "__name__", name)
    file = function.__code__.co_filename if function else ""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    for node in reversed(parse_python("".join(lines)).body):
        targets = [each.id for each in getattr(node, "targets", []) if isinstance(each, ast.Name)]
        if getattr(node, "name", "") == own_name or name in targets:
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            source = "".join(lines[first - 1 : node.end_lineno]).rstrip()
            return source if name in (own_name, *targets) else f"{source}\n\n\n{name} = {own_name}"
    return ""


def _free_names(source: str) -> set[str]:
    """Names that the source takes from its module or from Python."""
    tables = [top := symtable.symtable(source, "answer", "exec")]
    for table in tables:
        tables += table.get_children()
    symbols = [(table, symbol) for table in tables for symbol in table.get_symbols()]
    return {one.get_name() for table, one in symbols if one.is_global() or (table is top and one.is_referenced())}
