"""Traits of an operator for clock and memory tracker, derived once from its schema."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lablib.operators.op import is_free
from lablib.torch_compat import read_number, schema

_PART = ("index", "indices", "mask", "condition")
_ONLY_SHAPE = ("new_", "resize", "set_")  # these read only the shape and dtype of an argument, as names in _like do
# Half of a training step's operators: a method runs the same kernel in 2 us less than the operator's own call.
_METHODS = {
    "aten::detach": Tensor.detach,
    "aten::view": Tensor.view,
    "aten::t": Tensor.t,
    "aten::transpose.int": Tensor.transpose,
    "aten::permute": Tensor.permute,
}


class OpTraits(NamedTuple):
    """The traits of one operator."""

    op: Any
    run: Callable[..., Any]
    name: str  # "aten.mm"
    first_name: str  # label of an allocation that this operator is the first to read; "": it existed before
    is_block: bool  # whether it opens or closes a `record_function` block
    is_free: bool  # takes no time (lablib/cost)
    is_view: bool  # a view of its only tensor: no kernel runs
    is_told_by_shapes: bool  # whether shapes of arguments give its result: no views, no resizing, no `out=`
    writes_first: bool  # in-place operators such as `add_` return their first argument; `_foreach_add_` writes a list
    waits: bool  # whether it waits for a communication that fills one of its arguments
    allocates: bool  # whether its result may be new memory
    takes_lists: bool  # whether it has lists of tensors among its arguments
    # place and name of the arguments of which it reads every element, and writes to none
    reads: tuple[tuple[int, str], ...]
    writes: tuple[tuple[int, str], ...]  # place and name of the arguments that it may write to
    # whether it writes to all elements of these; otherwise to those at indices or in a mask, or to none
    writes_all: bool
    resizes: bool  # whether it may change the size of a storage
    is_collective: bool  # whether it is a communication
    gives_gradient: bool  # whether autograd uses it to put a gradient into `.grad`


@cache
def traits_of(op: Any) -> OpTraits:
    signature = schema(op)
    plain = signature.name.split("::")[-1]
    tensors = [(place, a) for place, a in enumerate(signature.arguments) if "Tensor" in str(a.type)]  # or lists of them
    arguments = [(place, a, a.alias_info is not None and a.alias_info.is_write) for place, a in tensors]
    # A view does not access the bytes of the memory.
    touches = not is_free(op) or op is read_number
    is_partial = any(a.name in _PART for a in signature.arguments)
    asks_shape = plain.startswith(_ONLY_SHAPE) or plain.endswith("_like")
    return OpTraits(
        op=op,
        run=_METHODS.get(".".join(filter(None, (signature.name, signature.overload_name))), op),
        name=signature.name.replace("::", "."),
        # torch.tensor() fills memory outside of all modes; this op is the first to see the result.
        first_name="aten.lift_fresh" if plain == "lift_fresh" else "",
        is_block=op.namespace == "profiler",
        is_free=is_free(op),
        is_view=_is_view(op),
        is_told_by_shapes=_is_told_by_shapes(op),
        writes_first=_writes_first(op),
        waits=touches,  # a stream waits only before bytes are read or written
        allocates=any(r.alias_info is None and "Tensor" in str(r.type) for r in signature.returns),
        takes_lists=any("Tensor" in str(a.type) and "List" in str(a.type) for a in signature.arguments),
        reads=tuple((place, a.name) for place, a, is_written in arguments if not is_written)
        if touches and not is_partial and not asks_shape
        else (),
        # `t_()` and similar operators change only shape and strides.
        writes=tuple((place, a.name) for place, a, is_written in arguments if is_written)
        if torch.Tag.inplace_view not in op.tags
        else (),
        writes_all=not plain.startswith("_fused") and not is_partial,
        resizes=plain.startswith(("resize", "set_")) or any(a.is_out for a in signature.arguments),
        is_collective="c10d" in op.namespace,
        gives_gradient=plain in ("detach", "clone", "new_empty_strided"),
    )


def _is_view(op: Any) -> bool:
    taken, returned = schema(op).arguments, schema(op).returns
    num_tensors = sum("Tensor" in str(argument.type) for argument in taken)
    is_view = bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
    return is_view and num_tensors == 1 and op.namespace == "aten" and all(a.name != "device" for a in taken)


def _writes_first(op: Any) -> bool:
    first = schema(op).arguments[0] if schema(op).arguments else None
    return bool(first and first.is_write and len(schema(op).returns) <= 1)


def _is_told_by_shapes(op: Any) -> bool:
    signature = schema(op)
    if op.namespace != "aten" or torch.Tag.inplace_view in op.tags or "resize" in signature.name:
        return False
    written = [argument for argument in signature.arguments if argument.is_write]
    if written:
        return _writes_first(op) and len(written) == 1
    if any(r.alias_info is not None for r in signature.returns):
        return False
    return all(str(r.type) in ("Tensor", "List[Tensor]") for r in signature.returns)
