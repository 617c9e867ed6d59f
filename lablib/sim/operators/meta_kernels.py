"""Cached meta kernels: an op on meta tensors takes one dictionary look-up.

The output of an op depends on the shapes and dtypes of its inputs alone. So torch's own meta kernel runs once for each
signature and its result is cached: a Python meta kernel takes up to a millisecond, an empty meta tensor 2 us. All ranks
of a run share the cache.

A real tensor in an op with meta tensors is treated as its shape; a real output argument stays unchanged.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lablib.errors import ValueNeededError
from lablib.operators.op import OpCost, tensors_in
from lablib.sim.operators.op_traits import OpTraits
from lablib.sim.source import program_line
from lablib.torch_compat import DispatchKey, read_number, run_kernel_of, schema, storage_id

META = torch.device("meta")


class MetaKernels:
    """Runs ops on meta tensors. `known`: cached results by signature; one dictionary for all ranks of a run."""

    def __init__(self, known: "dict[tuple, Answer]"):
        self._known = known

    def run(self, traits: OpTraits, args: tuple, kwargs: dict) -> "tuple[Any, Answer | None]":
        """Run the op. Returns its result, and the cached `Answer` if the result follows from the arguments' shapes."""
        func = traits.op
        if traits.is_view:
            return traits.run(*args, **kwargs), None
        signature: list[Any] = [id(func)]  # hashing an operator runs Python code
        kinds = _describe(args, signature)
        if kwargs:
            signature += kwargs
            kinds |= _describe(kwargs.values(), signature)
        key = tuple(signature) if kinds == _SOME_META and traits.is_told_by_shapes else None
        answer = self._known.get(key) if key else None
        if answer is not None and not answer.is_view:
            return answer.give(args), answer
        if not kinds & _SOME_META:
            return func(*args, **kwargs), None
        if func is read_number:
            raise needs_value("a value")
        if kinds & _SOME_REAL:
            return _on_meta(func, args, kwargs), None
        out = _run(func, args, kwargs)
        if key and answer is None:
            answer = self._known[key] = Answer.of(traits, args, out)
        return out, answer


_SOME_META, _SOME_REAL = 1, 2


def _describe(values: Iterable[Any], signature: list[Any]) -> int:
    """Append the values that determine the op's result to `signature`. Returns the kinds of tensors found."""
    kinds = 0
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is not int and isinstance(value, Tensor):
            signature += (value.shape, value.stride(), value.dtype)
            kinds |= _SOME_META if value.is_meta else _SOME_REAL
        elif kind is list or kind is tuple:
            signature.append(len(value))
            kinds |= _describe(value, signature)
        else:
            signature.append(value if kind is not bool and kind is not float else (kind, value))
    return kinds


class Answer:
    """The result of an op for one signature: empty tensors of these shapes, or one of its arguments.

    Attributes:
        is_view: whether it shares memory with an argument, which only the op itself can make: `_unsafe_view` does,
            though its schema does not say so.
        cost: the op's cost, once computed, if it follows from the signature too.
    """

    __slots__ = ("_is_first_argument", "_outputs", "cost", "is_view")

    def __init__(self, outputs: Any, is_first_argument: bool, is_view: bool):
        self.cost: OpCost | None = None
        self._outputs = outputs
        self._is_first_argument = is_first_argument
        self.is_view = is_view

    @staticmethod
    def of(traits: OpTraits, args: tuple, out: Any) -> "Answer":
        if traits.writes_first:
            return Answer(None, out is not None, False)
        given = {storage_id(tensor.untyped_storage()) for tensor in tensors_in(args)}
        is_view = any(storage_id(tensor.untyped_storage()) in given for tensor in tensors_in((out,)))
        return Answer(_specification(out), False, is_view)

    def give(self, args: tuple) -> Any:
        return args[0] if self._is_first_argument else _made(self._outputs)


def _specification(out: Any) -> Any:
    if isinstance(out, Tensor):
        like = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device=META)
        # A clone takes half the time of a new tensor, but closes gaps.
        return like.clone if like.clone().stride() == out.stride() else (out.shape, out.stride(), out.dtype)
    if isinstance(out, (list, tuple)):
        return [_specification(item) for item in out]
    return out


def _made(specification: Any) -> Any:
    if callable(specification):
        return specification()
    if isinstance(specification, tuple):
        shape, stride, dtype = specification
        return torch.empty_strided(shape, stride, dtype=dtype, device=META)
    if isinstance(specification, list):
        return tuple(_made(item) for item in specification)
    return specification


def _on_meta(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run an op with the real tensors replaced by their shapes; one that is written is returned unchanged."""
    originals: dict[int, Tensor] = {}
    args = tuple(_shape_of(value, originals) for value in args)
    out = _run(func, args, {key: _shape_of(value, originals) for key, value in kwargs.items()})
    return originals.get(id(out), out)


def _shape_of(value: Any, originals: dict[int, Tensor]) -> Any:
    """Replace each real tensor by a meta tensor; `originals` maps the id of the meta tensor to the original.

    Not a nested function: a recursive closure is a reference cycle, which would hold the tensors until it is collected.
    """
    if isinstance(value, Tensor) and not value.is_meta and value.dim():
        stand_in = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
        originals[id(stand_in)] = value
        return stand_in
    if isinstance(value, (list, tuple)):
        return type(value)(_shape_of(item, originals) for item in value)
    return value


def _run(func: Any, args: tuple, kwargs: dict) -> Any:
    if kwargs.get("generator") is not None:
        kwargs = {**kwargs, "generator": None}
    if "device" in kwargs and kwargs["device"] is not None:
        kwargs = {**kwargs, "device": META}
    if func.namespace == "_c10d_functional":
        # torch's meta kernel would only infer the output shape; this is the kernel that communicates.
        return run_kernel_of(func, DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    try:
        return func(*args, **kwargs)
    except NotImplementedError as error:
        if "meta" in str(error).lower():
            name = str(schema(func).name).removeprefix("aten::")
            raise needs_value(f"{name}, with a result that depends on values") from error
        raise


def needs_value(what: str) -> ValueNeededError:
    """The error for a program that needs a value of a tensor without values."""
    line = program_line()
    return ValueNeededError(
        f'the program asks for {what} of a tensor that has none: under fidelity="shapes" tensors have shapes only'
        f'{f" ({line})" if str(line) else ""}. Leave the value out, or use fidelity="values".'
    )
