"""Assertions on the numbers of a run or a plan: `--assert "step_s < 0.2 and peak_bytes < 80e9"`.

An expression of names, numbers, + - * /, comparisons, and, or, not and brackets, in Python's syntax. It is parsed and
its names are checked before anything runs; afterwards each comparison is printed with its values. A comparison with a
number that is not known is broken.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from math import inf, isnan, nan
from typing import Any

from lablib.errors import unknown_name

_COMPARED: Mapping[type, tuple[str, Callable[[float, float], bool]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_COMPUTED: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else nan if a == 0 or isnan(a) else inf if a > 0 else -inf,
}
NUMBERS_OF_A_RUN = (  # lablib/cli/sim.py describes them
    *("step_s", "num_steps", "makespan_s", "peak_bytes", "sent_bytes", "num_communications"),
    *("busy_share", "exposed_share", "waiting_share", "idle_share", "mfu"),
)
_EXAMPLE = "step_s < 0.2 and peak_bytes < 80e9"
_MAX_LENGTH = 1000  # characters: deeper nesting than Python's parser takes


class Assertion:
    """An expression, checked on numbers with these names.

    Raises ValueError: not such an expression, or an unknown name; the message lists the names.
    """

    def __init__(self, text: str, names: Sequence[str]):
        self._source, self._names, self._lines = text.strip(), names, list[str]()
        try:
            if len(text) > _MAX_LENGTH:
                raise SyntaxError(f"it is longer than {_MAX_LENGTH} characters")
            self._tree = ast.parse(self._source, mode="eval").body
            self._truth(self._tree, dict.fromkeys(names, nan))
        except (SyntaxError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
            raise ValueError(
                f"--assert must be comparisons of numbers and of {', '.join(names)}: got {text!r} ({reason}); "
                f"try --assert '{_EXAMPLE}'"
            ) from None

    def check(self, values: Mapping[str, float]) -> tuple[bool, list[str]]:
        """Whether it holds, and lines: one for each comparison. `values`: NaN for a number that is not known."""
        self._lines = []
        holds = self._truth(self._tree, values)
        return holds, [f"assertion {'holds' if holds else 'BROKEN'}: {self._source}", *self._lines]

    def _truth(self, node: ast.expr, values: Mapping[str, float]) -> bool:
        if isinstance(node, ast.BoolOp):
            each = [self._truth(part, values) for part in node.values]  # all of them, for their lines
            return all(each) if isinstance(node.op, ast.And) else any(each)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._truth(node.operand, values)
        if not isinstance(node, ast.Compare):
            raise SyntaxError(f"{self._text(node)} is no comparison")
        sides, is_true = [node.left, *node.comparators], True
        for left, kind, right in zip(sides, node.ops, sides[1:], strict=False):
            if type(kind) not in _COMPARED:
                raise SyntaxError(f"{self._text(node)} is no comparison of numbers")
            sign, compare = _COMPARED[type(kind)]
            a, b = self._number(left, values), self._number(right, values)
            holds = not (isnan(a) or isnan(b)) and compare(a, b)
            values_of = [(side, "not known" if isnan(v) else f"{v:.6g}") for side, v in ((left, a), (right, b))]
            told = [f", {self._text(side)} is {value}" for side, value in values_of if not _is_constant(side)]
            text = f"{self._text(left)} {sign} {self._text(right)}"
            self._lines.append(f"  {text}: {'true' if holds else 'FALSE'}{''.join(told)}")
            is_true &= holds
        return is_true

    def _text(self, node: ast.expr) -> str:
        return ast.get_source_segment(self._source, node) or ast.unparse(node)

    def _number(self, node: ast.expr, values: Mapping[str, float]) -> float:
        if _is_constant(node):
            return float(ast.literal_eval(node))
        if isinstance(node, ast.Name):
            if node.id not in values:
                raise unknown_name("name in --assert", node.id, list(self._names))
            return float(values[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
            return _COMPUTED[type(node.op)](self._number(node.left, values), self._number(node.right, values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand, values)
        raise SyntaxError(f"{self._text(node)} is no number")


def _is_constant(node: Any) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
