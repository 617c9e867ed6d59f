"""Checks of the arguments of collectives: on one rank alone, and over all ranks once the last has joined."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lablib.engine.communication import Joined
from lablib.errors import CollectiveMismatchError, Wait
from lablib.text.units import plural
from lablib.torch_compat import ensure_same_dtype

# ---- one rank ----


def check_one_per_rank(name: str, tensors: Sequence[Tensor | list[Tensor]], size: int) -> None:
    if len(tensors) != size:
        message = f"{name}: the list must hold one tensor a rank: got {len(tensors)} for {plural(size, 'ranks')}"
        raise ValueError(message)


def ensure_one_dtype(*tensors: Any) -> None:
    """torch's check that the tensors, and lists of tensors, of one call have one dtype, with a clearer message."""
    try:
        ensure_same_dtype(*tensors)
    except ValueError:
        flat = [one for some in tensors for one in ([some] if isinstance(some, Tensor) else some)]
        found = " and ".join(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in flat))
        raise ValueError(
            f"the tensors of one call must have one type: got {found}; "
            "make them the same, such as torch.zeros(1, dtype=x.dtype) for x."
        ) from None


def check_parts(name: str, large: str, whole: Tensor, small: str, part: Tensor, size: int) -> None:
    if whole.numel() != part.numel() * size:
        raise ValueError(
            f"{name}: the {large} must hold {size} times the elements of the {small} (one part a rank): "
            f"got {whole.numel()} and {part.numel()}"
        )
    ensure_one_dtype(whole, part)


def check_own_part(name: str, what: str, given: Tensor, part: Tensor) -> None:
    """Check this rank's entry in a list of parts."""
    if given.shape != part.shape:
        raise ValueError(
            f"{name}: the {what} shape must equal the shape of this rank's shard: got {tuple(given.shape)} and "
            f"{tuple(part.shape)}"
        )


def split(what: str, tensor: Tensor, sizes: Sequence[int] | None, size: int) -> list[Tensor]:
    """The parts of a tensor of `all_to_all_single` along dim 0: of equal size, or of the given sizes."""
    if sizes:
        if len(sizes) != size or sum(sizes) != tensor.shape[0]:
            raise ValueError(
                f"all_to_all_single: {what}_split_sizes must hold one size a rank and add up to dim 0: "
                f"got {list(sizes)} for {plural(size, 'ranks')} and {plural(tensor.shape[0], 'rows')}"
            )
        return list(tensor.split(list(sizes)))
    if tensor.shape[0] % size:
        raise ValueError(
            f"all_to_all_single: without split sizes, dim 0 of the {what} must be a multiple of the ranks: "
            f"got {plural(tensor.shape[0], 'rows')} for {plural(size, 'ranks')}; give {what}_split_sizes"
        )
    return list(tensor.split([tensor.shape[0] // size] * size))


# ---- all ranks ----


def root_mismatch(
    name: str, root: int, root_verb: str, verb: str, joined: Mapping[int, Joined]
) -> CollectiveMismatchError | None:
    """The error for a part of the root that differs from the tensor of its rank; None if all match."""
    if root not in joined:  # a phantom
        return None
    root_sends = verb == "receives"
    parts = joined[root].tensors.sent if root_sends else joined[root].tensors.received
    for place, other in joined.items():
        part = parts[place]
        given = (other.tensors.received if root_sends else other.tensors.sent)[0]
        if part.shape != given.shape or part.dtype != given.dtype:
            return _mismatch(
                f"{name}: the root, rank {joined[root].rank}, {root_verb} {_describe(part)} for rank {other.rank}, "
                f"which {verb} {_describe(given)}; make them the same.",
                *([joined[root]] if other is joined[root] else [joined[root], other]),
            )
    return None


def split_mismatch(name: str, joined: Mapping[int, Joined]) -> CollectiveMismatchError | None:
    """The error for a part of an all-to-all that its receiver expects with another size; None if all match."""
    for i, receiver in joined.items():
        for r, sender in joined.items():
            given, wanted = sender.tensors.sent[i].numel(), receiver.tensors.received[r].numel()
            if given != wanted:
                return _mismatch(
                    f"{name}: rank {sender.rank} sends {plural(given, 'elements')} to rank {receiver.rank}, which "
                    f"expects {wanted}; make input split {i} of rank {sender.rank} equal output split {r} of rank "
                    f"{receiver.rank}.",
                    sender,
                    receiver,
                )
    return None


def _mismatch(headline: str, *calls: Joined) -> CollectiveMismatchError:
    return CollectiveMismatchError(headline, [Wait(j.rank, j.text(), str(j.source)) for j in calls])


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
