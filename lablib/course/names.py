"""Which names a cell binds and which it uses, read from its source without running it."""

import ast
import symtable
from collections.abc import Iterator


def names(source: str) -> tuple[set[str], set[str]]:
    """The global names a cell binds, and those it uses (inside its functions too).

    >>> names("import math\\ndef area(r):\\n    return math.pi * scale(r)") == ({"math", "area"}, {"math", "scale"})
    True
    """

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        for child in table.get_children():
            yield from used(child)

    table = symtable.symtable(source, "<cell>", "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    in_place = {  # `x += 1` uses x too, which a symbol table does not say
        node.target.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return bound, set(used(table)) | in_place
