# pyright: reportFunctionMemberAccess=false, reportOptionalMemberAccess=false
"""An answer that reaches the library's own solution is found out however it is wrapped; what is allowed passes."""

import functools
import importlib
import inspect
import pickle
import pkgutil
import sys
import textwrap
import weakref
from collections.abc import Callable
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import lablib
from lablib import parallel, phase
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.own_code import not_from_lablib
from lablib.kernels.jit import Kernel, jit


class Holder:
    def __init__(self, held: Any):
        self.held = held

    def __call__(self, x: Any) -> Any:
        return self.held

    def method(self, x: Any) -> Any:
        return self.held


def in_keyword_default(held: Any) -> Callable:
    def answer(x: Any, *, f: Any = held) -> Any:
        return f

    return answer


def in_default(held: Any) -> Callable:
    def answer(x: Any, f: Any = held) -> Any:
        return f

    return answer


def in_wrapper(held: Any) -> Callable:
    def inner(x: Any) -> Any:
        return held

    return torch.no_grad()(functools.wraps(inner)(lambda x: inner(x)))


def under_a_name_that_is_allowed(held: Any) -> Callable:
    return functools.wraps(parallel.ring_all_gather)(lambda x: held)


def as_global(held: Any) -> Callable:
    namespace = {"TOOLS": held, "__name__": "a_notebook"}
    exec("def answer(x):\n    return [TOOLS for _ in x]", namespace)
    return namespace["answer"]


HOLDERS: list[Callable[[Any], Any]] = [
    lambda held: [1, (held,)],
    lambda held: {"f": held},
    lambda held: SimpleNamespace(f=held),
    lambda held: functools.partial(print, held),
    lambda held: functools.partial(held) if callable(held) else [held],
    lambda held: functools.cache(lambda x: held),
    lambda held: type("Made", (), {"f": staticmethod(held) if callable(held) else held}),
    Holder,
    lambda held: Holder(held).method,
    in_keyword_default,
    in_default,
    in_wrapper,
    under_a_name_that_is_allowed,
    as_global,
]


@given(solution=st.sampled_from(["ring_all_reduce", "exchange"]), around=st.lists(st.sampled_from(HOLDERS), max_size=4))
def test_a_function_of_lablib_is_found_in_whatever_holds_it(solution: str, around: list[Callable[[Any], Any]]):
    held: Any = getattr(parallel, solution)
    for holder in around:
        held = holder(held)
    not_from_lablib(held, allowed=[solution, "ring_all_gather"])
    with pytest.raises(RuleBroken) as raised:
        not_from_lablib(held, allowed=["ring_all_gather"])
    assert raised.value.saw == f"it uses parallel.{solution}"
    assert (
        raised.value.expected == "your own lines: no ready solution, and nothing of lablib but parallel.ring_all_gather"
    )


def function(body: str, parameters: str = "x") -> Callable:
    """One with these lines."""
    namespace = {"lablib": lablib, "parallel": parallel, "phase": phase, "sys": sys, "torch": torch}
    exec(f"def answer({parameters}):\n" + textwrap.indent(body, "    "), namespace)
    return namespace["answer"]


NAMES = {"ring": "lablib.parallel"}
by_another_name = function("p = parallel; p.ring_all_reduce(x)")


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda x: getattr(torch, "sys").modules["lab" + x], "the text 'sys'"),  # noqa: B009
        (lambda x: vars(torch)["sys"].modules[x], "the text 'sys'"),
        (lambda x: getattr(print, "__globals__")[x], "the text '__globals__'"),  # noqa: B009
        (lambda x: f"lablib.{x}", "the text 'lablib.'"),
        (lambda x: NAMES["ring"], "the text 'lablib.parallel'"),
        (lambda x: pkgutil.resolve_name(x), "pkgutil"),
        (function("from pydoc import locate; locate(x)"), "pydoc"),
        (lambda x: pickle.loads(x), "_pickle"),
        (lambda x: dist.distributed_c10d._get_default_store().set("x", "1"), "torch's store"),
        (function("from torch.distributed import TCPStore as Shelf; Shelf('localhost', 1)"), "torch's store"),
        (lambda x: dist.distributed_c10d._world.pg_map, "torch's store"),
        (lambda x: sys.modules["lablib.parallel"].ring_all_reduce(x), "sys.modules"),
        (lambda x: getattr(sys, "mod" + "ules"), "sys"),
        (function("from sys import modules; return modules"), "sys.modules"),
        (lambda x: parallel.exchange.__globals__["ring_all_reduce"](x), "__globals__"),
        (lambda x: inspect.getmodule(parallel.exchange).ring_all_reduce(x), "inspect"),
        (function("from inspect import getmodule as g; g(parallel.exchange)"), "inspect"),
        (lambda x: importlib.import_module("lab" + "lib"), "importlib"),
        (lambda x: globals()["parallel"].ring_all_reduce(x), "globals"),
        (lambda x: exec("parallel.ring_all_reduce(x)"), "exec"),
        (lambda x: sys._getframe(1), "sys._getframe"),
        (lambda x: x.gi_frame.f_back, "f_back"),
        (by_another_name, "parallel.ring_all_reduce"),
        (function("import lablib.parallel as p; p.ring_all_reduce(x)"), "parallel.ring_all_reduce"),
        (function("import lablib.parallel; lablib.parallel.ring_all_reduce(x)"), "parallel.ring_all_reduce"),
        (lambda x: __import__("lablib.parallel"), "__import__"),
        (lambda x: [by_another_name(each) for each in x], "parallel.ring_all_reduce"),
        (lambda x: getattr(parallel, "ring_all_reduce")(x), "lablib.parallel as a whole"),  # noqa: B009
        (function("from lablib import parallel as p; p.ring_all_reduce(x)"), "parallel.ring_all_reduce"),
        (function("from lablib.parallel.collectives.ring import ring_all_reduce as r"), "parallel.ring_all_reduce"),
        (lambda x: [parallel][0], "lablib.parallel as a whole"),
        (function("p = parallel; return lambda: p.ring_all_reduce(x)"), "parallel.ring_all_reduce"),
        (function("p.ring_all_reduce(x)", "x, p=parallel"), "parallel.ring_all_reduce"),
    ],
)
def test_ways_round_the_rule_are_refused_by_name(answer: Callable, named: str):
    with pytest.raises(RuleBroken) as raised:
        not_from_lablib(answer, allowed=["exchange"])
    assert raised.value.saw.startswith(f"it uses {named}")


@pytest.mark.parametrize(
    "answer",
    [
        function("from lablib.parallel import exchange; exchange(x, 1, x, 1)"),
        function("import lablib.parallel as p; p.exchange(x, 1, x, 1)"),
        function("from lablib.parallel import exchange as e; e(x, 1, x, 1)"),
        function("from lablib.parallel import ring_reduce_scatter; ring_reduce_scatter(x, range(2))"),
        function("import torch.distributed as d; import lablib.parallel; lablib.parallel.exchange(x, d.get_rank())"),
        function("p = parallel; return [p.exchange(y, 1) for y in x], lambda: p.exchange(x, 1)"),
        function("p.exchange(x, 1, x, 1)", "x, p=parallel"),
        function("with phase('up'):\n    parallel.exchange(x, 1, x, 1)"),
        function("with lablib.phase('down'):\n    print(x, file=sys.stderr)"),
        function("'As lablib.parallel does.'"),
        function("return list(torch.nn.Linear(2, 2).modules()), type(x), isinstance(x, int), len(x)"),
        function("import sys"),
    ],
)
def test_what_is_allowed_may_be_named_in_any_way(answer: Callable):
    not_from_lablib(answer, allowed=["exchange", "ring_reduce_scatter"])


def test_what_is_allowed_is_listed_as_a_notebook_writes_it():
    with pytest.raises(RuleBroken) as raised:
        not_from_lablib(parallel.ring_all_gather, allowed=["exchange", "launch"])
    assert raised.value.saw == "it uses parallel.ring_all_gather"
    assert raised.value.expected.endswith("nothing of lablib but parallel.exchange and lablib.launch")


def test_objects_of_a_refused_class_are_refused():
    box, held = parallel.Mesh(data=2), parallel.Combination

    def by_its_type():
        return type(box)(data=3).groups("data")

    def another():
        return len(str(held))

    with pytest.raises(RuleBroken, match=r"lablib\.parallel\.mesh\.mesh\.Mesh"):
        not_from_lablib(by_its_type, refused=[parallel.Mesh])
    not_from_lablib(by_its_type)
    not_from_lablib(another, allowed=["Combination"], refused=[parallel.Mesh])


@pytest.mark.parametrize(
    "lines", ["from lablib import parallel", "import lablib.parallel as p", "def helper():\n    import lablib"]
)
def test_an_import_that_is_not_used_is_refused_too(lines: str):
    with pytest.raises(RuleBroken, match="lablib.* as a whole"):
        not_from_lablib(function(lines))


@pytest.mark.parametrize(
    "held", [weakref.ref(by_another_name), np.array([by_another_name]), pd.Series([len, by_another_name])]
)
def test_a_reference_and_an_array_of_functions_are_looked_into(held):
    with pytest.raises(RuleBroken, match="ring_all_reduce"):
        not_from_lablib(lambda x: held)


def test_a_function_of_another_library_is_refused_under_any_name():
    not_from_lablib(lambda xs: accumulate(xs), refused=[np.cumsum])
    total = np.cumsum
    with pytest.raises(RuleBroken, match="it uses numpy.cumsum"):
        not_from_lablib(lambda xs: total(xs), refused=[np.cumsum])
    with pytest.raises(RuleBroken, match="it uses numpy.cumsum"):
        not_from_lablib(lambda xs: np.cumsum(xs), refused=[np.cumsum])


def test_a_module_may_be_refused_as_a_whole_and_its_parts_not():
    by_name = "cum" + "sum"
    not_from_lablib(lambda xs: np.linalg.norm(xs), refused=[np, np.linalg])
    with pytest.raises(RuleBroken, match="it uses numpy as a whole"):
        not_from_lablib(lambda xs: getattr(np, by_name)(xs), refused=[np])
    with pytest.raises(RuleBroken, match=r"it uses numpy\.linalg as a whole"):
        not_from_lablib(lambda xs: getattr(np.linalg, by_name)(xs), refused=[np.linalg])


def test_an_attribute_of_the_same_name_and_a_number_are_no_use_of_lablib():
    not_from_lablib(lambda x: x.launch + x.helper)
    not_from_lablib(5)


def test_a_kernel_of_lablib_is_refused_and_a_kernel_of_ones_own_passes():
    ready = importlib.import_module("lablib.kernels.softmax").softmax_kernel
    assert isinstance(ready, Kernel)

    def calls_it(x_ptr, y_ptr, M):
        ready(x_ptr, y_ptr, M)

    def own(x_ptr, y_ptr, M):
        return M

    for answer in (calls_it, jit(calls_it), functools.partial(jit(calls_it)), ready):
        with pytest.raises(RuleBroken) as caught:
            not_from_lablib(answer)
        assert "softmax_kernel" in caught.value.saw
    kernel = jit(own)
    assert jit(kernel) is kernel
    not_from_lablib(kernel)
