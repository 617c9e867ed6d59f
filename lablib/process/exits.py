"""Exit codes of a program: `sys.exit()` and `sys.exit(0)` are a success, any other is a failure."""


def ends_well(code: object) -> bool:
    """Whether this argument of `sys.exit` means success. Calls no method of the object."""
    return code is None or (issubclass(type(code), int) and int.__eq__(code, 0))  # pyright: ignore[reportArgumentType]
