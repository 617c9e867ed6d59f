"""Parameters of a lab: the cell tagged `parameters`, and checks of the values that override it.

    backend: str = "sim"  # sim | gloo | nccl
    ranks: int = 8  # number of ranks
    quick: bool = True  # small sizes, a few seconds

papermill replaces these values without a check, so a typing error would fail minutes later in some cell. Here every
value is checked before the run: its name, its type, the choices that the help lists (`a | b | c`), and the minimum
that the help names (`2 or more`).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from lablib.course.errors import CourseError

REQUIRED = ("interactive", "quick")
Literal = str | int | float | bool
_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
_LINE = re.compile(r"^(?P<name>\w+)\s*:\s*(?P<kind>\w+)\s*=\s*(?P<value>.+?)\s+#\s*(?P<help>.+)$")
_CHOICES = re.compile(r"^[\w.+-]+(?: \| [\w.+-]+)+")
_MINIMUM = re.compile(r"(?<![\w.-])(-?\d+) or more\b")
_BOOLS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
_FLAGS = ("backend", "ranks", "cluster")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: `kind` is "str", "int", "float" or "bool". Empty `choices` and `minimum` None allow any value."""

    name: str
    kind: str
    default: Literal
    help: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None

    @property
    def example(self) -> str:
        """How to set it on the command line."""
        if self.kind == "bool":
            return f"--{self.name} or --no-{self.name}" if self.name == "quick" else f"-p {self.name} true"
        value = self.choices[0] if self.choices else {"int": 4, "float": 0.5}.get(self.kind, self.default)
        if self.minimum is not None and not isinstance(value, str):
            value = max(value, self.minimum)
        return f"--{self.name} {value}" if self.name in _FLAGS else f"-p {self.name} {value}"


def read_parameters(source: str) -> list[Parameter]:
    """The parameters of a cell. Raises CourseError: a line that is not `name: type = literal  # help`."""
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
    return [_read_line(line) for line in lines]


def check_values(parameters: Sequence[Parameter], values: Mapping[str, str | Literal]) -> dict[str, Literal]:
    """The values a user asked for, in the types that the lab declares; text is converted.

    Raises CourseError: an unknown name, a wrong type, a value that is not one of the choices.
    """
    known = {parameter.name: parameter for parameter in parameters}
    for name in values:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f" did you mean {nearest[0]!r}?" if nearest else ""
            raise CourseError(f"unknown parameter {name!r}:{hint} This lab has: {', '.join(known)}.")
    return {name: _convert(known[name], value) for name, value in values.items()}


def _read_line(line: str) -> Parameter:
    match = _LINE.match(line)
    form = "name: type = literal  # help, as in `ranks: int = 8  # number of ranks`"
    if match is None:
        raise CourseError(f"a parameter must be {form}: got {line!r}.")
    name, kind, text, help = match["name"], match["kind"], match["value"], match["help"].strip()
    if kind not in _TYPES:
        raise CourseError(f"a parameter must be {', '.join(_TYPES)}: got {kind!r} in {line!r}.")
    if "=" in text + help:  # papermill cannot parse a line with two of them
        raise CourseError(f"a parameter line must have one `=`: got {line!r}; reword its help.")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise CourseError(f"a parameter must be a literal (papermill replaces it): got {text!r} for {name}.") from None
    if type(value) is not _TYPES[kind]:
        raise CourseError(f"{name} says {kind} and holds a {type(value).__name__}: {line!r}; make them agree.")
    choices = _CHOICES.match(help) if kind == "str" else None
    least = _MINIMUM.search(help) if kind in ("int", "float") else None
    minimum = int(least[1]) if least else 1 if name == "ranks" and kind == "int" else None
    if minimum is not None and not isinstance(value, str) and not value >= minimum:
        raise CourseError(f"{name} must be at least {minimum}, as its help says: got {value}; make them agree.")
    return Parameter(name, kind, value, help, tuple(choices[0].split(" | ")) if choices else (), minimum)


def _convert(parameter: Parameter, value: str | Literal) -> Literal:
    name, kind = parameter.name, parameter.kind
    wrong = CourseError(
        f"{name} must be {'an' if kind == 'int' else 'a'} {kind}: got {value!r}; try {parameter.example}"
    )
    if isinstance(value, str) and kind == "bool":
        if value.lower() not in _BOOLS:
            raise wrong
        value = _BOOLS[value.lower()]
    elif isinstance(value, str) and kind != "str":
        try:
            value = _TYPES[kind](value)
        except ValueError:
            raise wrong from None
    elif kind == "float" and type(value) is int:
        value = float(value)
    if type(value) is not _TYPES[kind]:
        raise wrong
    if parameter.minimum is not None and not isinstance(value, str) and not value >= parameter.minimum:
        raise CourseError(f"{name} must be at least {parameter.minimum}: got {value}; try {parameter.example}")
    if parameter.choices and value not in parameter.choices:
        nearest = get_close_matches(str(value), parameter.choices, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"try {parameter.example}"
        raise CourseError(f"{name} must be one of {', '.join(parameter.choices)}: got {value!r}; {hint}")
    return value
