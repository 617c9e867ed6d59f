"""What torch's compilers make of small functions: breaks, recompiles, kernels. No time is asserted."""

import linecache
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib.kernels import torch_compiler
from lablib.kernels.compilers import WAYS, compare, count_kernels
from lablib.kernels.elementwise_chain import ONE_OPERAND
from lablib.kernels.graph_breaks import find_graph_breaks
from lablib.kernels.recompiles import find_recompiles
from lablib.kernels.torch_compiler import NoCppCompiler, eager_operators, find_cpp_compiler


def has_cpp_compiler() -> bool:
    try:
        return bool(find_cpp_compiler())
    except NoCppCompiler:
        return False


@pytest.fixture
def cpp_compiler() -> None:
    if not has_cpp_compiler():
        pytest.skip("inductor needs a C++ compiler")


def broken(x: Tensor) -> Tensor:
    y = x.sin()
    print("between")
    if y.sum() > 0:
        y = y + 1
    return y * 2


def mended(x: Tensor) -> Tensor:
    y = x.sin()
    y = torch.where(y.sum() > 0, y + 1, y)
    return y * 2


def reads_a_value(x: Tensor) -> Tensor:
    return x / x.max().item()


def stays_a_tensor(x: Tensor) -> Tensor:
    return x / x.max()


def chain(x: Tensor) -> Tensor:
    return (x.sin() * 2 + 1).relu()


def product_and_softmax(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(F.gelu(x @ w) + 1, -1)


# ---- graph breaks ----


def test_breaks_are_found_with_line_and_reason(capsys):
    found = find_graph_breaks(broken, torch.ones(3))
    assert found.graphs == 3 and len(found.breaks) == 2
    first, second = found.breaks
    assert first.text == 'print("between")' and "print" in first.reason and first.hint
    assert second.text.startswith("if y.sum() > 0") and second.line == first.line + 1
    assert first.file.endswith("test_compilers.py")
    assert "between" in capsys.readouterr().out  # the call is made


@pytest.mark.parametrize(("bad", "good"), [(broken, mended), (reads_a_value, stays_a_tensor)])
def test_mended_functions_are_one_graph_and_the_same(bad, good):
    x = torch.tensor([1.0, 2.0, 0.5])
    assert find_graph_breaks(bad, x).breaks
    found = find_graph_breaks(good, x)
    assert (found.graphs, found.breaks) == (1, ())
    torch._dynamo.reset()
    for one in (x, -x):
        assert torch.equal(bad(one), good(one))
        assert torch.equal(torch.compile(good, backend="eager", fullgraph=True)(one), good(one))
    torch._dynamo.reset()


def test_a_function_of_a_cell_has_its_lines():
    """A notebook's functions are compiled from text; their file is a name that linecache knows."""
    source: str = "def cell(x):\n    y = x + 1\n    print('here')\n    return y * 2\n"
    name = "/tmp/ipykernel_1/2.py"
    lines: list[str] = [*source.splitlines(keepends=True)]
    linecache.cache[name] = (len(source), None, lines, name)
    scope: dict = {}
    exec(compile(source, name, "exec"), scope)
    found = find_graph_breaks(scope["cell"], torch.ones(2))
    assert [(one.file, one.line, one.text) for one in found.breaks] == [(name, 3, "print('here')")]


def in_try(x: Tensor) -> Tensor:
    try:
        return x + x.sum().item()
    except ValueError:
        return x


def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x.sin()
        print("in a loop")
    return x


def calls_another(x: Tensor) -> Tensor:
    return in_try(x.sin()).cos()


@pytest.mark.parametrize(
    ("fn", "text", "reason"),
    [
        (in_try, "return x + x.sum().item()", "item"),
        (in_a_loop, 'print("in a loop")', "print"),
        (calls_another, "return x + x.sum().item()", "item"),
    ],
)
def test_a_function_without_a_graph_is_named_with_the_line(fn, text, reason):
    found = find_graph_breaks(fn, torch.ones(3))
    (given_up,) = found.given_up
    assert given_up.text == text and reason in given_up.reason
    assert found.operators == 0 if fn is not calls_another else found.graphs == 2
    assert not find_graph_breaks(chain, torch.ones(3)).given_up


# ---- recompiles ----


def reasons(found):
    return [(one.call, one.reason) for one in found]


@pytest.mark.parametrize(("dynamic", "calls"), [(None, [0, 1]), (False, [0, 1, 2, 3]), (True, [0])])
def test_sizes_are_compiled_as_dynamic_says(dynamic, calls):
    found = find_recompiles(chain, [(torch.ones(n),) for n in (3, 4, 5, 6)], dynamic)
    assert [one.call for one in found] == calls
    assert all("size mismatch at index 0" in one.reason for one in found[1:]) and not found[0].reason
    assert all(one.guards > 0 and one.function == "chain" for one in found)


def test_a_guard_that_fails_is_named():
    x = torch.ones(3)
    found = find_recompiles(chain, [(x,), (x.double(),), (x,), (x.clone().requires_grad_(),)])
    assert [one.call for one in found] == [0, 1, 3]
    assert "dtype mismatch" in found[1].reason and "requires_grad" in found[2].reason


def test_a_python_number_is_a_guard_and_a_tensor_is_not():
    def scaled(x: Tensor, rate) -> Tensor:
        return x * rate

    numbers = [(torch.ones(2), flag) for flag in (True, False)]
    tensors = [(torch.ones(2), torch.tensor(rate)) for rate in (0.1, 0.2, 0.3)]
    assert len(find_recompiles(scaled, numbers)) == 2
    assert len(find_recompiles(scaled, tensors)) == 1


@settings(max_examples=5, deadline=None)
@given(sizes=st.lists(st.integers(2, 30), min_size=1, max_size=6))
def test_fixed_sizes_are_compiled_once_each(sizes):
    found = find_recompiles(chain, [(torch.ones(n),) for n in sizes], dynamic=False)
    assert len(found) == len(set(sizes))


@pytest.mark.parametrize("sizes", [8, 9, 13])
def test_the_end_of_recompiling_is_said_once(sizes):
    found = find_recompiles(chain, [(torch.ones(n),) for n in range(2, 2 + sizes)], dynamic=False)
    compiled = [one for one in found if not one.given_up]
    assert [one.call for one in compiled] == list(range(8))
    assert [(one.call, "recompile limit" in one.given_up) for one in found[8:]] == [(8, True)][: sizes - 8]


def test_nothing_is_left_behind():
    from torch._dynamo.utils import get_compilation_metrics

    find_recompiles(chain, [(torch.ones(3),)])
    find_graph_breaks(broken, torch.ones(3))
    assert not get_compilation_metrics()


# ---- kernels ----


def test_eager_operators_are_those_written():
    assert eager_operators(chain, torch.ones(3)) == ["sin", "mul", "add", "relu"]
    assert eager_operators(lambda x: x.view(-1).t(), torch.ones(3)) == []


def test_inductor_makes_one_kernel_of_a_chain(cpp_compiler):
    eager, fused = count_kernels(chain, torch.ones(8, 8))
    assert len(eager) == 4 and len(fused) == 1 and fused[0].startswith("cpp_fused")


def test_a_product_stays_a_librarys(cpp_compiler):
    eager, fused = count_kernels(product_and_softmax, torch.ones(64, 64), torch.ones(64, 64))
    assert len(eager) == 4 and len(fused) == 2 and fused[0] == "extern_kernels.mm"


def stays_out(x: Tensor) -> Tensor:
    return F.linear(x, x).exp().t() + x


OUTSIDE = torch.compiler.disable(stays_out)


@pytest.mark.parametrize(
    ("fn", "between"),
    [
        (broken, []),
        (lambda x: OUTSIDE(x.sin() * 2).cos() * 3, ["mm", "exp", "add"]),
        (in_try, ["sum", "add"]),
        (in_a_loop, ["sin"] * 3),
    ],
)
def test_operators_between_graphs_are_counted(fn, between, cpp_compiler):
    eager, compiled = count_kernels(fn, torch.rand(8, 8))
    assert [name for name in compiled if not name.startswith("cpp_fused")] == between
    assert len(compiled) == len(between) + {broken: 3, in_try: 0, in_a_loop: 0}.get(fn, 2)
    assert len(compiled) <= len(eager)


def test_every_operator_of_the_chains_is_fused(cpp_compiler):
    names = list(ONE_OPERAND)

    def all_of_them(x: Tensor) -> Tensor:
        for name in names:
            x = ONE_OPERAND[name](x)
        return x

    eager, fused = count_kernels(all_of_them, torch.ones(40))
    assert len(eager) == len(names) and len(fused) == 1


# ---- all of them ----


def test_every_way_gives_the_same_or_says_why_not():
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    found = compare(product_and_softmax, x, w, repeats=1)
    assert [one.way for one in found] == list(WAYS)
    for one in found:
        if one.skipped:
            assert one.way == "jax" or (one.way == "inductor" and "C++ compiler" in one.skipped), one
        else:
            torch.testing.assert_close(one.value, product_and_softmax(x, w), rtol=1e-5, atol=1e-6)
            assert one.first_call_s > 0 and one.call_s > 0
    kernels = {one.way: one.kernels for one in found}
    assert kernels["eager"] == kernels["torchscript"] == kernels["aot_eager"] == 4


def test_what_torchscript_cannot_read_is_skipped_with_its_words():
    (found,) = compare(lambda *x: x[0], torch.ones(2), ways=["torchscript"], repeats=1)
    assert "TorchScript cannot read it" in found.skipped


def test_jax_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    (found,) = compare(chain, torch.ones(2), ways=["jax"])
    assert found.skipped == "jax is not installed; `pip install jax` adds its row"


def test_a_missing_cpp_compiler_is_one_clear_error(monkeypatch, tmp_path):
    import torch._inductor.config as inductor
    from torch._inductor import cpp_builder

    def cleared() -> None:
        for name in ("cpp_compiler_search", "get_cpp_compiler"):
            getattr(getattr(cpp_builder, name), "cache_clear", lambda: None)()

    cleared()
    with inductor.patch({"cpp.cxx": (None, "/nowhere/g++")}):
        with pytest.raises(NoCppCompiler, match="install g") as caught:
            find_cpp_compiler()
        (found,) = compare(chain, torch.ones(3), ways=["inductor"], repeats=1)
    cleared()
    assert found.skipped == str(caught.value) and "aot_eager" in found.skipped
    if has_cpp_compiler():
        assert not compare(chain, torch.ones(3), ways=["inductor"], repeats=1)[0].skipped


def test_private_names_of_the_compiler_stand_in_one_file():
    from pathlib import Path

    here = Path(torch_compiler.__file__)
    for path in here.parent.glob("*.py"):
        code = "\n".join(line for line in path.read_text().splitlines() if "import" in line or "= torch._" in line)
        assert path == here or not any(name in code for name in ("torch._dynamo", "torch._inductor")), path
