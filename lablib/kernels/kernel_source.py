"""Rewrite a kernel's source so that Python runs it as Triton's compiler reads it.

In compiled code `n = 4` makes a tensor, which has an `n.to`; in Python it makes an int. So each assigned value is
passed through a function of the interpreter's. The rest stays: lines, defaults, and names of the module or of the
function around the kernel, which are looked up when a program runs.
Simplified: `n: T = 4`, `n += 4` and `(n := 4)` are not rewritten.
"""

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from functools import cache
from typing import Any

from lablib.text.files import parse_python


@cache
def rewritten(function: Callable, to_tensor: Callable) -> Callable:
    """The function with every assigned value made a tensor, so that `n = 4` has an `n.to`, as in compiled code.

    Built inside another function, so that no name is put into the module or the notebook of the kernel.
    """
    lines, first = inspect.getsourcelines(function)
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))
    tree = _Assigned().visit(parse_python(textwrap.dedent("".join(lines[start:]))))
    tree.body[0].args.defaults, tree.body[0].args.kw_defaults = [], [None] * len(tree.body[0].args.kwonlyargs)
    ast.increment_lineno(tree, first + start - 1)  # an error shows the line of the file
    free = function.__code__.co_freevars
    outer: Any = parse_python(f"def outer({', '.join(['_to_tensor', *free])}):\n    pass").body[0]
    outer.body = [*tree.body, ast.Return(ast.Name(function.__name__, ast.Load()))]
    module = ast.fix_missing_locations(ast.Module([outer], []))
    found: dict[str, Any] = {}
    exec(compile(module, inspect.getsourcefile(function) or "kernel", "exec"), function.__globals__, found)
    made: Any = found["outer"](to_tensor, *free)
    # Names of the function around the kernel: its own cells, for their values at the time when a program runs.
    cells: dict[str, Any] = dict(zip(made.__code__.co_freevars, made.__closure__ or (), strict=True))
    cells |= zip(free, function.__closure__ or (), strict=True)
    closure = tuple(cells[name] for name in made.__code__.co_freevars)
    return types.FunctionType(made.__code__, made.__globals__, made.__name__, function.__defaults__, closure)


class _Assigned(ast.NodeTransformer):
    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = ast.Call(ast.Name("_to_tensor", ast.Load()), [node.value], [])
        return node
