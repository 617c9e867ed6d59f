"""Names that a cell binds and names that it uses, read from its source without running it."""

import ast
import symtable
from collections.abc import Iterable, Iterator
from functools import lru_cache


@lru_cache(maxsize=512)  # a proof asks for the same cells for each of its answers
def names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """The global names a cell binds, and those it uses, functions in it included.

    >>> names("import math\\ndef area(r):\\n    return math.pi * scale(r)") == ({"math", "area"}, {"math", "scale"})
    True
    """

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        for child in table.get_children():
            yield from used(child)

    table = symtable.symtable(source, "<cell>", "exec")
    nodes = list(ast.walk(ast.parse(source)))
    in_place = {  # `x += 1` also uses x, which a symbol table does not report
        node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    # A comprehension has a scope for its variables. Python 3.12 and 3.13 list them with the cell's.
    inside = [name for node in nodes if isinstance(node, ast.comprehension) for name in _stored(ast.walk(node.target))]
    everywhere = _stored(nodes)
    own = {name for name in inside if inside.count(name) == everywhere.count(name)}
    bound = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_imported() or symbol.is_namespace() or (symbol.is_assigned() and symbol.get_name() not in own)
    }
    return frozenset(bound), frozenset(used(table)) | in_place


def _stored(nodes: Iterable[ast.AST]) -> list[str]:
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


@lru_cache(maxsize=512)
def bound_at_once(source: str) -> frozenset[str]:
    """Names that every run of a cell binds before it uses them: it needs no earlier cell for these.

    >>> sorted(bound_at_once("for x in y:\\n    y = z = 1\\nif x:\\n    a = x\\nb = b + 1"))
    ['x']
    """
    reader = _FirstUse()
    for statement in ast.parse(source).body:
        reader.visit(statement)
    return frozenset(reader.bound)


class _FirstUse(ast.NodeVisitor):
    """Visits a cell in execution order. Code that may not run, or runs later, binds nothing."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self._used: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        elif node.id not in self.bound:
            self._used.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._in_order(node.value, *node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._in_order(*([node.value, node.target] if node.value else []))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._maybe(node)

    def visit_For(self, node: ast.For) -> None:
        # Loops of a notebook run at least once: the loop variable counts as bound, names bound in the body do not.
        self._in_order(node.iter, node.target)
        self._maybe(*node.body, *node.orelse)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.split(".")[0])

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._maybe(node)
        self._bind(node.name)

    visit_ClassDef = visit_FunctionDef

    def generic_visit(self, node: ast.AST) -> None:
        parts = ast.With | ast.withitem | ast.Assert | ast.Tuple | ast.List | ast.Starred | ast.Call | ast.keyword
        parts |= ast.Expr | ast.Attribute | ast.Subscript | ast.BinOp | ast.JoinedStr | ast.FormattedValue
        if isinstance(node, parts):
            super().generic_visit(node)
        else:
            self._maybe(node)

    def _bind(self, name: str) -> None:
        if name not in self._used:
            self.bound.add(name)

    def _in_order(self, *nodes: ast.AST) -> None:
        for node in nodes:
            self.visit(node)

    def _maybe(self, *nodes: ast.AST) -> None:
        """Names in these nodes may come from earlier cells: they do not count as bound."""
        inner = [one for node in nodes for one in ast.walk(node)]
        in_place = [one.target for one in inner if isinstance(one, ast.AugAssign)]
        read = [one for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
        self._used |= {one.id for one in [*read, *in_place] if isinstance(one, ast.Name)} - self.bound
