"""How a program ends itself: `sys.exit()` and `sys.exit(0)` are a normal end, anything else is a failure."""


def ends_well(code: object) -> bool:
    """Whether this argument of `sys.exit` means success. Asks nothing of the object itself."""
    return code is None or (issubclass(type(code), int) and int.__eq__(code, 0))  # pyright: ignore[reportArgumentType]
