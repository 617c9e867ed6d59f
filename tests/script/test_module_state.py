"""A record of modules runs no code of the objects in them, and finds the entries that changed."""

import enum
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.process.whose_code import module_file
from lablib.script.module_state import changes, record_modules

_METHODS = """
__getattribute__ __getattr__ __eq__ __ne__ __lt__ __hash__ __bool__ __len__ __iter__ __getitem__ __contains__ __repr__
__str__ __format__ __int__ __index__ __float__ __complex__ __bytes__ __call__ __instancecheck__ __subclasscheck__
__fspath__ __reversed__ __dir__ __enter__ __exit__ items keys values get copy startswith
""".split()
calls: list[str] = []
is_recorded = False


def _hostile(name: str) -> Any:
    def method(*args: Any, **kwargs: Any) -> Any:
        if is_recorded:
            calls.append(name)
            raise ValueError(name)
        if name == "__hash__":
            return 1
        if name == "__getattribute__":
            return object.__getattribute__(*args)
        return name == "__eq__"

    return method


def _class(base: type, methods: list[str]) -> type:
    """A subclass with methods that raise, and with properties that raise as attributes."""
    body: dict[str, Any] = {name: _hostile(name) for name in [*methods, "__hash__"]}
    if issubclass(base, torch.Tensor):
        body["__torch_function__"] = classmethod(_hostile("__torch_function__"))
    else:
        body |= {name: property(_hostile(name)) for name in ("__class__", "__dict__", "value")}
    return type("Hostile", (base,), body)


BASES: dict[type, tuple] = {
    object: (),
    dict: ({"a": 1},),
    list: ([1, 2],),
    tuple: ((1, 2),),
    set: ({1, 2},),
    frozenset: ({1, 2},),
    str: ("a",),
    bytes: (b"a",),
    int: (3,),
    float: (0.5,),
    complex: (1j,),
    Exception: ("x",),
    ModuleType: ("lazy",),
    type: ("Made", (), {}),
}


@st.composite
def hostile_objects(draw: Any) -> Any:
    base = draw(st.sampled_from(list(BASES)))
    methods = draw(st.lists(st.sampled_from(_METHODS), unique=True))
    return _class(base, methods)(*BASES[base])


def _tensors() -> st.SearchStrategy:
    return st.builds(lambda: torch.zeros(2).as_subclass(_class(torch.Tensor, [])))


values = st.recursive(
    st.one_of(hostile_objects(), _tensors(), st.none(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner),
        st.builds(lambda one: {one: 1}, hostile_objects()),
        st.builds(lambda one: {one}, hostile_objects()),
    ),
    max_leaves=6,
)


def _record(module: Any) -> dict[str, Any]:
    """The record of one entry of `sys.modules`, while every hostile method raises."""
    global is_recorded
    sys.modules["hostile"] = module
    calls.clear()
    is_recorded = True
    try:
        return record_modules(lambda name, file: name == "hostile")
    finally:
        is_recorded = False
        del sys.modules["hostile"]


@given(st.dictionaries(st.sampled_from("abcd"), values, max_size=4))
def test_a_record_runs_no_code_of_what_it_reads(attributes: dict[str, Any]):
    module = ModuleType("hostile")
    vars(module).update(attributes, Own=type("Own", (), {**attributes, "__module__": "hostile"}))
    first, second = _record(module), _record(module)
    assert calls == []
    assert set(first) >= {f"hostile.{name}" for name, one in attributes.items() if not callable(one)} - _stateless(
        module
    )
    global is_recorded
    is_recorded = True  # comparing two records runs none either
    try:
        assert not [change for name in first for change in changes(first[name], second[name])]
    finally:
        is_recorded = False


def _stateless(module: ModuleType) -> set[str]:
    return {f"hostile.{name}" for name, one in vars(module).items() if issubclass(type(one), (type, ModuleType))}


def test_a_lazy_module_stays_unloaded():
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(f"loads {name}")

    assert _record(Lazy("hostile")) == {} and module_file(Lazy("hostile")) is None
    assert module_file(sys) is None and module_file(enum) == enum.__file__


@pytest.mark.parametrize(
    "kind", [object, int, type(None), type("Proxy", (), {"__getattr__": lambda self, name: 1 / 0})]
)
def test_an_entry_of_sys_modules_may_be_anything(kind: type):
    entry = kind()
    assert _record(entry) == {} and module_file(entry) is None


@given(st.dictionaries(st.text(max_size=3), st.integers(), max_size=5), st.text(max_size=3), st.integers())
def test_changes_name_the_entry(before: dict[str, int], key: str, value: int):
    module = ModuleType("hostile")
    vars(module)["table"] = {"inner": dict(before)}
    first = _record(module)["hostile.table"]
    vars(module)["table"]["inner"][key] = value
    found = [where for where, _, _ in changes(first, _record(module)["hostile.table"])]
    assert found == ([] if before.get(key) == value else [("inner", key)])
