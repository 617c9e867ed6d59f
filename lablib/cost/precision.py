"""Bytes per number of a dtype, by the name of its row in a device's table of peaks."""

_BYTES = {"float64": 8, "float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1, "float4": 0.5}


def bytes_per_number(name: str) -> float:
    """Bytes of one number of a dtype, by the name of its row, without the scales that a block of float4 shares.

    ValueError: an unknown name.
    """
    if name not in _BYTES:
        raise ValueError(f"unknown dtype {name!r}: choose from {', '.join(_BYTES)}")
    return _BYTES[name]
