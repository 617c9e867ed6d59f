"""Stand-ins for modules on a rank of a check: assignments to a module stay on that rank.

Simulated ranks are threads and share the library's modules. An answer could store a tensor in one (`torch.shelf = {}`),
or in an object of one (`torch.Tensor.shelf = {}`), and read it on another rank: right values, with any traffic. So the
copies of an answer (own_copy.py) hold stand-ins for modules:

    read        the module's attribute; for a submodule its stand-in; for a container a copy for this rank
    written     kept in the stand-in: no other rank sees it
    imported    inside a function, too (`__import__` of the copies' builtins)

Classes and functions of a library are shared. An attribute that the answer sets on one, under a name that occurs in its
code, is found when another rank's code runs next, or at its end, and refused.
Simplified: objects that a library keeps inside its own are shared; a name that is composed at run time is not found.
"""

import builtins
import copy
import sys
from collections import deque
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from lablib.course.checks.expect import RuleBroken
from lablib.process.whose_code import is_users

_CONTAINERS = (dict, list, set, deque, bytearray, SimpleNamespace, np.ndarray, torch.Tensor)
_RULE = "every rank tells the others by communication"
_SHARED = (type, BuiltinFunctionType)  # of builtins, nearly all
_KEPT = ("__name__", "__doc__", "__package__", "__spec__", "__file__", "__path__")


class SharedObjects:
    """The library's classes and functions that an answer reaches, and whether it sets attributes of them.

    `names` are those in the answer's code; `rank` ran last.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.rank = -1
        self._found: dict[int, tuple[Any, dict[str, Any]]] = {}
        for kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Module, torch.autograd.Function):
            self.meet(kind)  # of arguments, without a name

    def meet(self, value: Any) -> None:
        """Register a value that the answer reaches."""
        if id(value) not in self._found and isinstance(value, type | FunctionType):
            self._found[id(value)] = value, {name: vars(value).get(name) for name in self.names}

    def meet_code(self, code: CodeType) -> None:
        """Register code of the answer."""
        new = {*code.co_names, *(text for text in code.co_consts if isinstance(text, str))} - self.names
        self.names |= new
        for value, before in self._found.values():
            before.update({name: vars(value).get(name) for name in new})
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.meet_code(constant)

    def look(self, rank: int | None = None) -> None:
        """Refuse attributes that were set: at the end or (`rank`) when another rank's code runs."""
        if rank is not None and rank == self.rank:
            return
        self.rank = -1 if rank is None else rank
        for value, before in self._found.values():
            held = vars(value)
            for name, was in before.items():
                now = held.get(name)
                # A library sets functions itself: an optimizer wraps its class's `step` when it is first made.
                is_librarys = isinstance(now, FunctionType) and not is_users(now.__code__.co_filename)
                if now is not was and not is_librarys:
                    if was is None:
                        delattr(value, name)
                    else:
                        setattr(value, name, was)
                    home = f"{value.__module__}.{value.__qualname__}"
                    raise RuleBroken(_RULE, f"{home}.{name}, which all simulated ranks share", "communication alone")


class OwnModules:
    """The stand-ins of one rank; `shared` are the objects shared by all ranks."""

    def __init__(self, rank: int, shared: SharedObjects):
        self._rank, self._shared = rank, shared
        self._modules: dict[int, OwnModule] = {}
        self.builtins = {
            name: value if type(value) in _SHARED else _own(value) for name, value in vars(builtins).items()
        } | {"__import__": self._import}

    def of(self, module: ModuleType) -> ModuleType:
        """The stand-in of a module: the same one each time."""
        if isinstance(module, OwnModule):
            return module
        if id(module) not in self._modules:
            self._modules[id(module)] = OwnModule(module, self)
        return self._modules[id(module)]

    def taken(self, value: Any) -> Any:
        """The value that the rank gets when it reads an attribute of a module."""
        self._shared.look(self._rank)
        if isinstance(value, ModuleType):
            return self.of(value)
        self._shared.meet(value)
        return _own(value)

    def _import(self, name: str, *args: Any, **options: Any) -> ModuleType:
        return self.of(builtins.__import__(name, *args, **options))


class OwnModule(ModuleType):
    """The stand-in of a module on one rank."""

    def __init__(self, module: ModuleType, own: OwnModules):
        super().__init__(module.__name__)
        kept = {name: vars(module)[name] for name in _KEPT if name in vars(module)}
        self.__dict__.update(kept | {"_lablib_module": module, "_lablib_own": own})

    def __getattr__(self, name: str) -> Any:
        module, own = self.__dict__["_lablib_module"], self.__dict__["_lablib_own"]
        value = getattr(module, name)
        taken = own.taken(value)
        if taken is not value:
            self.__dict__[name] = taken  # this rank's copy from now on
        return taken

    def __setattr__(self, name: str, value: Any) -> None:
        module = self.__dict__["_lablib_module"]
        if hasattr(getattr(type(module), name, None), "__set__"):
            setattr(module, name, value)  # a setting of torch, such as torch.backends.cudnn.benchmark
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.__dict__["_lablib_module"]), *self.__dict__} - {"_lablib_module", "_lablib_own"})


def _own(value: Any) -> Any:
    """A copy of a value in which an answer could store data; any other value itself."""
    home = type(value).__module__
    is_of_a_notebook = home == "__main__" or home not in sys.modules
    if not isinstance(value, _CONTAINERS) and not is_of_a_notebook:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # a library may keep any object there
        return copy.copy(value)
