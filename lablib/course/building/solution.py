"""Replace the solution of an exercise by a stub.

A master holds the solution between two markers. The learner's notebook has a stub instead:

    def mean(x):                                 def mean(x):
        ### BEGIN SOLUTION                           raise NotImplementedError("your turn")
        return x.sum() / len(x)
        ### END SOLUTION

Outside a function a `raise` would stop the whole notebook, so there a solution may only assign names, and the stub
assigns `...` to the same names:

    ### BEGIN SOLUTION                           bucket_bytes = ...  # your turn
    bucket_bytes = 25 * 2**20
    ### END SOLUTION

The markers are nbgrader's, which makes its own stubs from them.
"""

import ast
import re

from lablib.course.errors import CourseError

YOUR_TURN = "your turn"
_STUB = f'raise NotImplementedError("{YOUR_TURN}")'
_MARKER = re.compile(r"^(?P<indent>\s*)#+\s*(?P<which>BEGIN|END) SOLUTION\s*$")


def has_solution(source: str) -> bool:
    return any(_MARKER.match(line) for line in source.splitlines())


def without_markers(source: str) -> str:
    """`source` with its solutions, without the marker lines."""
    return "\n".join(line for line in source.splitlines() if not _MARKER.match(line))


def to_stub(source: str) -> str:
    """`source` with each solution replaced by its stub.

    Raises:
        CourseError: markers that do not pair up, or a solution that is neither inside a function nor only assignments.
    """
    lines: list[str] = []
    solution: list[str] | None = None
    indent = ""
    for number, line in enumerate(source.splitlines(), 1):
        marker = _MARKER.match(line)
        if marker is None:
            (lines if solution is None else solution).append(line)
        elif marker["which"] == "BEGIN":
            if solution is not None:
                message = f"solutions cannot nest: line {number} of the cell is a second BEGIN SOLUTION; end the first."
                raise CourseError(message)
            solution, indent = [], marker["indent"]
        else:
            if solution is None:
                raise CourseError(f"END SOLUTION without BEGIN SOLUTION in line {number} of the cell; add the BEGIN.")
            lines += [indent + _STUB] if indent else _ellipses("\n".join(solution))
            solution = None
    if solution is not None:
        raise CourseError("BEGIN SOLUTION without END SOLUTION: add `### END SOLUTION` after the solution.")
    stub = "\n".join(lines)
    if _raises_outside_functions(stub):
        message = "an indented solution must be inside a function: its stub would stop the notebook; wrap it in a def."
        raise CourseError(message)
    return stub


def _ellipses(solution: str) -> list[str]:
    """`name = ...` for each name that a top-level solution assigns."""
    names: list[str] = []
    for statement in ast.parse(solution).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if not targets or not all(isinstance(target, ast.Name) for target in targets):
            raise CourseError(
                "a solution outside a function may only assign names: "
                f"got {ast.unparse(statement).splitlines()[0]!r}; put the markers inside a function."
            )
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [f"{name} = ...  # {YOUR_TURN}" for name in dict.fromkeys(names)]


def _raises_outside_functions(source: str) -> bool:
    """Does running this source reach a stub's `raise` outside a function?"""

    def reaches(node: ast.AST) -> bool:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        if isinstance(node, ast.Raise):
            return ast.unparse(node) == ast.unparse(ast.parse(_STUB))
        return any(reaches(child) for child in ast.iter_child_nodes(node))

    return reaches(ast.parse(source))
