# pyright: reportFunctionMemberAccess=false, reportOptionalMemberAccess=false
"""An answer that reaches the library's own solution is found out however it is wrapped; what is allowed passes."""

import functools
import importlib
import inspect
import pickle
import pkgutil
import sys
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


def by_a_store_imported(x):
    from torch.distributed import TCPStore as Shelf  # pyright: ignore[reportPrivateImportUsage]

    Shelf("localhost", 1)


def by_modules_imported(x):
    from sys import modules

    return modules


def by_inspect_imported(x):
    from inspect import getmodule as g

    g(parallel.exchange)


def by_another_name(x):
    p = parallel
    p.ring_all_reduce(x)


def by_import_as(x):
    import lablib.parallel as p

    p.ring_all_reduce(x)


def by_import(x):
    import lablib.parallel

    lablib.parallel.ring_all_reduce(x)


def by_import_of_a_module(x):
    from lablib import parallel as p

    return [p.ring_all_reduce for _ in x]


def by_import_of_a_file(x):
    from lablib.parallel.collectives.ring import ring_all_reduce as ring

    ring(x)


def in_a_nested_function(x):
    p = parallel
    return lambda: p.ring_all_reduce(x)


def in_a_default_module(x, p=parallel):
    p.ring_all_reduce(x)


NAMES = {"ring": "lablib.parallel"}


def by_pydoc(x):
    from pydoc import locate

    locate(x)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda x: getattr(torch, "sys").modules["lab" + x], "the text 'sys'"),  # noqa: B009
        (lambda x: vars(torch)["sys"].modules[x], "the text 'sys'"),
        (lambda x: getattr(print, "__globals__")[x], "the text '__globals__'"),  # noqa: B009
        (lambda x: f"lablib.{x}", "the text 'lablib.'"),
        (lambda x: NAMES["ring"], "the text 'lablib.parallel'"),
        (lambda x: pkgutil.resolve_name(x), "pkgutil"),
        (by_pydoc, "pydoc"),
        (lambda x: pickle.loads(x), "_pickle"),
        (lambda x: dist.distributed_c10d._get_default_store().set("x", "1"), "torch's store"),
        (by_a_store_imported, "torch's store"),
        (lambda x: dist.distributed_c10d._world.pg_map, "torch's store"),
        (lambda x: sys.modules["lablib.parallel"].ring_all_reduce(x), "sys.modules"),
        (lambda x: getattr(sys, "mod" + "ules"), "sys"),
        (by_modules_imported, "sys.modules"),
        (lambda x: parallel.exchange.__globals__["ring_all_reduce"](x), "__globals__"),
        (lambda x: inspect.getmodule(parallel.exchange).ring_all_reduce(x), "inspect"),
        (by_inspect_imported, "inspect"),
        (lambda x: importlib.import_module("lab" + "lib"), "importlib"),
        (lambda x: globals()["parallel"].ring_all_reduce(x), "globals"),
        (lambda x: exec("parallel.ring_all_reduce(x)"), "exec"),
        (lambda x: sys._getframe(1), "sys._getframe"),
        (lambda x: x.gi_frame.f_back, "f_back"),
        (by_another_name, "parallel.ring_all_reduce"),
        (by_import_as, "parallel.ring_all_reduce"),
        (by_import, "parallel.ring_all_reduce"),
        (lambda x: __import__("lablib.parallel"), "__import__"),
        (lambda x: [by_another_name(each) for each in x], "parallel.ring_all_reduce"),
        (lambda x: getattr(parallel, "ring_all_reduce")(x), "lablib.parallel as a whole"),  # noqa: B009
        (by_import_of_a_module, "parallel.ring_all_reduce"),
        (by_import_of_a_file, "parallel.ring_all_reduce"),
        (lambda x: [parallel][0], "lablib.parallel as a whole"),
        (in_a_nested_function, "parallel.ring_all_reduce"),
        (in_a_default_module, "parallel.ring_all_reduce"),
    ],
)
def test_ways_round_the_rule_are_refused_by_name(answer: Callable, named: str):
    with pytest.raises(RuleBroken) as raised:
        not_from_lablib(answer, allowed=["exchange"])
    assert raised.value.saw.startswith(f"it uses {named}")


def imports_it(x):
    from lablib.parallel import exchange

    exchange(x, 1, x, 1)


def imports_it_as(x):
    import lablib.parallel as p
    from lablib.parallel import exchange as e
    from lablib.parallel import ring_reduce_scatter

    p.exchange(x, 1, x, 1)
    e(x, 1, x, 1)
    ring_reduce_scatter(x, range(2))


def imports_all(x):
    import torch.distributed as d

    import lablib.parallel

    lablib.parallel.exchange(x, d.get_rank(), x, 1)


def another_name(x):
    p = parallel
    return [p.exchange(each, 1, each, 1) for each in x], lambda: p.exchange(x, 1, x, 1)


def a_default(x, p=parallel):
    p.exchange(x, 1, x, 1)


def names_its_phase(x):
    with phase("up"):
        parallel.exchange(x, 1, x, 1)
    with lablib.phase("down"):
        print(x, file=sys.stderr)


def names_it_in_its_docstring(x):
    """As lablib.parallel does."""


def modules_of_torch(x):
    return [list(layer.parameters()) for layer in torch.nn.Linear(2, 2).modules()], type(x), isinstance(x, int), len(x)


def imports_another_library(x):
    import sys  # noqa: F401


@pytest.mark.parametrize(
    "answer",
    [
        imports_it,
        imports_it_as,
        imports_all,
        another_name,
        a_default,
        names_its_phase,
        names_it_in_its_docstring,
        modules_of_torch,
        imports_another_library,
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


def imports_a_part(x):
    from lablib import parallel  # noqa: F401


def imports_it_under_another_name(x):
    import lablib.parallel as p  # noqa: F401


def imports_all_in_a_helper(x):
    def helper():
        import lablib  # noqa: F401


@pytest.mark.parametrize("answer", [imports_a_part, imports_it_under_another_name, imports_all_in_a_helper])
def test_an_import_that_is_not_used_is_refused_too(answer):
    with pytest.raises(RuleBroken, match="lablib.* as a whole"):
        not_from_lablib(answer)


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
