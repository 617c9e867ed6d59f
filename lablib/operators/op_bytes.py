"""Bytes that an operator moves: the bytes touched, which can differ from its shapes.

Nearly everything in a training step but products and attention is limited by memory: element-wise operations,
normalization, softmax, embedding, the loss, the optimizer. Each operand counts once, as read or as written; one that
is updated in place counts twice:

    an expanded tensor (stride 0)              once, for any number of repetitions
    embedding, gather, index, index_select     the rows gathered, not the whole table
    index_add_, index_put_, scatter_           the rows that are changed, read and written
    nll_loss                                   one number per row forward; the gradient, mostly zeros, backward
    copy_, fill_, zeros_like, empty_like       no read of an operand that is overwritten or gives only its shape
    FSDP2's all_gather_copy_in                 its shards, read and written; not the gathered buffer
    fused optimizers                           parameter and moments read and written, the gradient read

Source: reads and writes of torch's operators. Simplified: one pass over each operand, also in a sort.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lablib.torch_compat import schema, sparse_parts


def num_bytes(t: torch.Tensor) -> int:
    """Bytes of a tensor's elements; of a sparse one, bytes of its stored elements and indices."""
    if t.layout == torch.strided:
        return t.nbytes
    if t.layout == torch.sparse_coo:
        return sum(part.nbytes for part in sparse_parts(t))
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return t.crow_indices().nbytes + t.col_indices().nbytes + t.values().nbytes
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return t.ccol_indices().nbytes + t.row_indices().nbytes + t.values().nbytes
    return t.numel() * t.element_size()


def moved_bytes(t: torch.Tensor) -> int:
    """Bytes that a pass over a tensor moves: elements at distinct addresses (stride 0 repeats one)."""
    if t.layout != torch.strided or t.is_contiguous():
        return num_bytes(t)
    count = t.element_size()
    for extent, stride in zip(t.shape, t.stride(), strict=True):
        count *= extent if stride or not extent else 1
    return count


def tensors_in(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _total(values: Iterable[Any]) -> int:
    return sum(moved_bytes(t) for t in tensors_in(values))


# These write their first argument without reading it. (`zeros_like` and `new_zeros` only read its shape.)
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"})


@dataclass(frozen=True, slots=True)
class _Roles:
    """Arguments that are not simply read."""

    first_is_unread: bool  # the first argument is overwritten (`copy_`), or gives only its shape (`zeros_like`)
    unread: frozenset[str]  # keyword arguments that are overwritten: `out=`
    # position and name of arguments that are written but not returned (`_foreach_add_` returns nothing)
    unreturned: tuple[tuple[int, str], ...]


@cache
def _roles(op: Any) -> _Roles:
    signature = schema(op)
    name = signature.name.split("::")[-1]
    returned = {alias for r in signature.returns if r.alias_info for alias in r.alias_info.before_set}
    return _Roles(
        first_is_unread=name in _OVERWRITES or name.startswith("new_") or name.endswith("_like"),
        unread=frozenset(argument.name for argument in signature.arguments if argument.is_out),
        unreturned=tuple(
            (position, argument.name)
            for position, argument in enumerate(signature.arguments)
            if argument.is_write and not returned.intersection(argument.alias_info.before_set)
        ),
    )


def _streamed(op: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """Every operand once, one that is updated in place twice: the default rule."""
    roles = _roles(op)
    size_bytes = _total(args[1:] if roles.first_is_unread else args)
    size_bytes += _total(kwargs[name] for name in kwargs if name not in roles.unread)
    size_bytes += _total((out,))
    for position, name in roles.unreturned:
        size_bytes += _total((args[position] if position < len(args) else kwargs.get(name),))
    return size_bytes


def _gathered(op: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """As many bytes of the source as of the output, the indices, and the output."""
    return 2 * _total((out,)) + _total((*args[1:], *kwargs.values()))


def _scattered(op: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """Bytes written to places of the target: read there, added, written; with the indices and the values."""
    given = dict(zip((argument.name for argument in schema(op).arguments), args, strict=False)) | kwargs
    indices = list(tensors_in(given[name] for name in ("index", "indices") if name in given))
    values = _total(given[name] for name in ("source", "src", "values") if name in given)
    rows = values or max((index.numel() for index in indices), default=0) * args[0].element_size()
    copied = 0 if schema(op).name.endswith("_") else _total((args[0], out))
    return _total(indices) + values + 2 * rows + copied


def _picked(op: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """nll_loss: one number of each row, at its target."""
    scores, *others = args
    targets = args[1]
    return targets.numel() * scores.element_size() + _total((*others, out))


def _updated(op: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """A fused optimizer step: gradients are read, and written only if they are unscaled in it."""
    written = 0 if kwargs.get("grad_scale") is not None else _total((args[1],))
    return _streamed(op, args, kwargs, out) - written


_Rule = Callable[[Any, tuple, dict, Any], int]

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("embedding", "gather", "index", "index_select", "take", "_unsafe_index"), _gathered),
    **dict.fromkeys(
        (
            *("index_add", "index_add_", "index_copy", "index_copy_", "index_put", "index_put_"),
            *("_index_put_impl_", "_unsafe_index_put", "scatter", "scatter_", "scatter_add", "scatter_add_"),
        ),
        _scattered,
    ),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _picked),
    **dict.fromkeys(  # the scores are not read again; their gradient is zero except for one number per row
        ("nll_loss_backward", "nll_loss2d_backward"), lambda op, args, kwargs, out: _total((args[0], *args[2:], out))
    ),
    # FSDP2's own shards, read and written to their place in the buffer for the gather
    "all_gather_copy_in": lambda op, args, kwargs, out: 2 * _total(args[:1]),
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"), _updated),
}


@cache
def _rule(op: Any) -> _Rule:
    return _RULES.get(schema(op).name.split("::")[-1], _streamed)


def op_bytes(op: Any, args: tuple, kwargs: dict, out: Any) -> float:
    """Bytes that one operator reads and writes. Arguments as in `lablib.operators.op_cost`."""
    return float(_rule(op)(op, args, kwargs, out))
