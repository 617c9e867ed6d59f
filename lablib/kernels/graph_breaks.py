"""Graph breaks: lines where torch.compile cannot trace a function, and cuts it into several graphs.

torch.compile reads a function's bytecode and writes its operators into a graph. At an operation that cannot be in a
graph it ends the graph, lets Python run the operation, and begins the next graph:

    def f(x):                                    the same in one graph
        y = x.sin()              graph 1             y = x.sin()
        print(y.shape)           Python              y = torch.where(y.sum() > 0, y + 1, y)
        if y.sum() > 0:          Python: a value decides
            y = y + 1            graph 2             return y * 2
        return y * 2             graph 2

Operators are fused within a graph, so a break prevents fusion, and a value that Python needs (`if`, `.item()`) makes
the host wait for the device.

    cause                                        remedy
    a branch on a value                          torch.where
    .item(), float(x), .tolist()                 keep tensors of one number
    print, logging                               leave it out, or after the step
    a library that is not torch                  torch's own operator, or keep it out of the step
    any of these in a loop, in `try`             take it out: here torch cannot cut, and the whole function stays eager
    any of these, as an error                    torch.compile(fn, fullgraph=True) raises at the first

Cost: one call of the function and its compilation by a backend that changes nothing.
Source: Ansel et al., "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
Compilation", 2024 (ASPLOS), https://doi.org/10.1145/3620665.3640366, section 3; torch's documentation, "torch.compile
Programming Model".
Simplified: one call; other arguments may take other branches and break elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any

from lablib.kernels.torch_compiler import compilations, fresh
from lablib.signature import checked

_PARTS = ("Explanation: ", "Hint: ")


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """One place where a graph ended."""

    file: str  # file, line, text: of the program
    line: int
    text: str
    reason: str  # the cause, as given by torch
    hint: str  # torch's remedy, or ""


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs of a compiled function."""

    graphs: int  # graphs, operators: numbers of graphs, and of operators in them
    operators: int
    breaks: tuple[GraphBreak, ...]  # between two graphs
    # the line for which a whole function, `fn` or one that it calls, has no graph and runs operator by operator. torch
    # cuts no loop and no `try` in two.
    given_up: tuple[GraphBreak, ...]


@checked
def find_graph_breaks(fn: Callable[..., Any], *args: Any) -> Graphs:
    """Graphs and breaks of `fn(*args)`, which is run once. Drops earlier compilations (torch._dynamo.reset)."""
    from lablib.torch_compat import dynamo_explain

    with fresh():
        found = dynamo_explain(fn)(*args)
        failed = [one for one in compilations() if one.given_up]
    breaks = [
        _graph_break(one.reason, one.user_stack[-1] if one.user_stack else None)
        for one in found.break_reasons
        if one.graph_break
    ]
    given_up = [_graph_break(one.given_up, FrameSummary(one.file, one.line, one.function)) for one in failed]
    return Graphs(found.graph_count, found.op_count, tuple(breaks), tuple(given_up))


def _graph_break(words: str, where: FrameSummary | None) -> GraphBreak:
    reason, explanation, hint = _parts(words)
    place = (where.filename, where.lineno or 0, where.line or "") if where else ("", 0, "")
    return GraphBreak(*place, f"{reason}: {explanation}" if explanation else reason, hint)


def _parts(words: str) -> tuple[str, str, str]:
    """Of torch's paragraph: its first line, its explanation, its first hint. A branch has no paragraph, but a code."""
    if words.startswith("generic_jump"):
        return "a branch on the value of a tensor", "Python must know it, so the graph ends", "torch.where"
    lines = [line.strip() for line in words.splitlines()]
    after = [next((line.removeprefix(part) for line in lines if line.startswith(part)), "") for part in _PARTS]
    return lines[0] if lines else "", after[0], after[1]
