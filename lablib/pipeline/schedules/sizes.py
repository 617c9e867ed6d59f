"""Checks of the sizes of a schedule, and the placement of the model's pieces on ranks."""

from math import prod

from lablib.signature import shown, whole_number

MAX_ACTIONS = 20_000_000  # of one kind; some gigabytes


def check_sizes(name: str, **sizes: int) -> None:
    """Raise ValueError unless every size is a whole number from 1: `check_sizes("gpipe", num_stages=4)`.

    Also if the plan is too large for memory.
    """
    for size, value in sizes.items():
        whole_number(f"{name}: {size}", value)
    if prod(sizes.values()) > MAX_ACTIONS:
        got = " * ".join(map(shown, sizes.values()))
        raise ValueError(
            f"{name}: {' * '.join(sizes)} must be {MAX_ACTIONS:,} or less: got {got}; "
            "try a hundredth of it, or steady_state for very many micro-batches"
        )


def loop(num_stages: int, num_chunks: int = 1) -> tuple[int, ...]:
    """`rank_of` of pieces dealt around in turn: 0 1 2 0 1 2."""
    return tuple(range(num_stages)) * num_chunks


def vee(num_stages: int) -> tuple[int, ...]:
    """`rank_of` of two pieces per rank in the shape of a V, 0 1 2 2 1 0: rank i holds pieces i and 2p-1-i."""
    return (*range(num_stages), *reversed(range(num_stages)))
