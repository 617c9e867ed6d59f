"""How many bytes the numbers of a dtype have, by its row of a device's table of peaks."""

_BYTES = {"float64": 8, "float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1, "float4": 0.5}


def bytes_per_number(name: str) -> float:
    """Bytes of one number of a dtype, by its row's name, without the scales that a block of float4 shares.

    Raises:
        ValueError: a name nobody knows.
    """
    if name not in _BYTES:
        raise ValueError(f"unknown dtype {name!r}: choose from {', '.join(_BYTES)}")
    return _BYTES[name]
