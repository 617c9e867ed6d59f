"""What an answer puts into a library is its rank's alone, or refused; and a library is used as ever."""

import io
import math
import types

import pytest
import torch
import torch.distributed as dist

from lablib import RankError
from lablib.course.checks.expect import Expect, RuleBroken

# Where a shelf may stand; `shelf(x)` is the dict (or another object with items) that ranks would share.
IN_MODULES = {
    "an attribute of torch": "if not hasattr(torch, 'shelf'): torch.shelf = {}\n    return torch.shelf",
    "another name": "t = torch\n    if not hasattr(t, 'shelf'): t.shelf = {}\n    return t.shelf",
    "in a list": "m = [torch][0]\n    if not hasattr(m, 'shelf'): m.shelf = {}\n    return m.shelf",
    "setattr": "if not hasattr(torch, 'shelf'): setattr(torch, 'she' + 'lf', {})\n    return torch.shelf",
    "vars": "return vars(torch).setdefault('shelf', {})",
    "__dict__": "return torch.__dict__.setdefault('shelf', {})",
    "a module in a module": "f = torch.nn.functional\n    if not hasattr(f, 'shelf'): f.shelf = {}\n    return f.shelf",
    "import inside": "import math as m\n    if not hasattr(m, 'shelf'): m.shelf = {}\n    return m.shelf",
    "from ... import": "from torch import nn\n    if not hasattr(nn, 'shelf'): nn.shelf = {}\n    return nn.shelf",
    "in a lambda": "return (lambda: vars(__import__('math')).setdefault('shelf', {}))()",
    "a cell of the notebook": "return math.in_a_cell",
    "a namespace in a cell": "return vars(math.namespace)",
    "a list of the library": "return Items(torch.__all__)",
    "builtins": "import builtins as b\n    if not hasattr(b, 'shelf'): b.shelf = {}\n    return b.shelf",
    "a file in memory": "return InMemory()",
    "a default argument": "if not hasattr(module, 'shelf'): module.shelf = {}\n    return module.shelf",
}
IN_OBJECTS = {
    "a class": "if not hasattr(torch.Tensor, 'shelf'): torch.Tensor.shelf = {}\n    return torch.Tensor.shelf",
    "the argument's class": "T = type(x)\n    if not hasattr(T, 'shelf'): T.shelf = {}\n    return x.shelf",
    "__class__": "if not hasattr(x, 'shelf'): x.__class__.shelf = {}\n    return x.shelf",
    "a function": "f = dist.all_reduce\n    if not hasattr(f, 'shelf'): f.shelf = {}\n    return f.shelf",
    "a class by its own name": "if not hasattr(Tensor, 'shelf'): Tensor.shelf = {}\n    return Tensor.shelf",
    "an attribute that is there": "M = Module\n    M.dump_patches = M.dump_patches or {}\n    return M.dump_patches",
}
CELLS = """
math.in_a_cell, math.namespace, memory = {}, types.SimpleNamespace(), io.BytesIO()

class Items:
    def __init__(self, items): self.items = items
    def __setitem__(self, key, value): self.items.append((key, value))
    def __len__(self): return sum(isinstance(item, tuple) for item in self.items)

class InMemory:
    def __setitem__(self, key, value): memory.write(key.encode())
    def __len__(self): return len(memory.getvalue())

def shelf_of(x, module=math):
    WHERE

def answer(x):
    shelf_of(x)[str(dist.get_rank())] = x.clone()
    dist.all_reduce(torch.zeros(1))
    found = len(shelf_of(x))
    dist.all_reduce(torch.zeros(1))
    if hasattr(torch.Tensor, "shelf"):
        del torch.Tensor.shelf
    return found
"""


def seen_by_ranks(where: str) -> list[int]:
    cells: dict = {"__name__": "__main__", "torch": torch, "dist": dist, "math": math, "types": types}
    cells |= {"Tensor": torch.Tensor, "Module": torch.nn.Module, "io": io}
    exec(CELLS.replace("WHERE", where), cells)
    answer = cells["answer"]
    try:
        return Expect(answers=[answer]).launch(lambda x: answer(x), torch.ones(1), ranks=3).values
    finally:
        del math.in_a_cell, math.namespace  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", IN_MODULES)
def test_what_a_rank_puts_into_a_module_no_other_finds(name):
    before = {id(module): set(vars(module)) for module in (torch, math, dist, torch.nn, torch.nn.functional)}
    assert seen_by_ranks(IN_MODULES[name]) == [1, 1, 1]
    after = {id(module): set(vars(module)) for module in (torch, math, dist, torch.nn, torch.nn.functional)}
    assert before == after


@pytest.mark.parametrize("name", IN_OBJECTS)
def test_what_a_rank_puts_into_a_class_or_function_of_the_library_is_refused(name):
    with pytest.raises(RankError) as caught:
        seen_by_ranks(IN_OBJECTS[name])
    assert isinstance(caught.value.__cause__, RuleBroken)
    assert "which all simulated ranks share" in str(caught.value.__cause__)
    assert not hasattr(torch.Tensor, "shelf") and not hasattr(dist.all_reduce, "shelf")
    assert torch.nn.Module.dump_patches is False


USUAL = """
def answer(x):
    import torch.nn.functional as F
    from torch.distributed import ReduceOp
    layer = torch.nn.Linear(4, 4, dtype=x.dtype)
    layer.extra = 3

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return 2 * x
        @staticmethod
        def backward(ctx, grad): return 2 * grad

    y = F.gelu(Twice.apply(layer(x))).sum()
    y.backward()
    torch.optim.Rprop(layer.parameters()).step()  # wraps its class's step when the first is made
    grads = torch.cat([p.grad.flatten() for p in layer.parameters()])
    dist.all_reduce(grads, op=ReduceOp.SUM)
    kinds = isinstance(torch, types.ModuleType), isinstance(x, torch.Tensor), math.pi, torch.__name__
    assert "Linear" in dir(torch.nn) and getattr(torch, "float" + "64") is x.dtype and torch.nn is torch.nn
    assert not torch.backends.cudnn.benchmark
    with torch.no_grad():
        return grads, kinds
"""


def test_a_library_is_used_as_ever():
    cells: dict = {"__name__": "__main__", "torch": torch, "dist": dist, "math": math, "types": types}
    exec(USUAL, cells)
    answer, x = cells["answer"], torch.randn(3, 4, dtype=torch.float64)
    run = Expect(answers=[answer]).launch(lambda x: answer(x), x, ranks=2)
    for grads, kinds in run.values:
        assert torch.equal(grads, run.values[0][0]) and grads.abs().sum() > 0
        assert kinds == (True, True, math.pi, "torch")
