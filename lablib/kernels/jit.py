"""A kernel written once: compiled for CUDA tensors, interpreted for CPU tensors, in one process.

    @jit
    def double(x_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n)
        tl.store(x_ptr + at, 2 * x, mask=at < n)

    double[(cdiv(n, 128),)](x, n, BLOCK=128)

It is Triton's language and launch; the device of the tensors decides between compiler and interpreter. Without Triton
(it has no wheels for macOS) this module can be imported, and a launch raises an error with the remedy.

A launch checks its arguments: parameters named BLOCK... are powers of two, all tensors are on one device, and
floating-point tensors have a dtype that the kernel was written for. A kernel over rows checks that they are contiguous
with `check_inputs`. A launch is not a torch operator: ranks of the simulator may launch, but it takes no virtual time.
Source: Tillet, Kung, Cox, "Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations", 2019
(MAPL), https://doi.org/10.1145/3315508.3329973.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from lablib.kernels.accesses import Launch, recording
from lablib.kernels.launch_checks import FLOATS, check_dtypes, check_memory, check_options, checked_grid
from lablib.signature import PowerOfTwo, check_type

if TYPE_CHECKING:
    from triton import JITFunction, knobs
    from triton import language as tl
    from triton.runtime.errors import OutOfResources

    from lablib.kernels import interpreter
else:
    try:
        from triton import JITFunction, knobs
        from triton import language as tl
        from triton.runtime.errors import OutOfResources

        from lablib.kernels import interpreter
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("triton"):
            raise
        tl, JITFunction = None, object

TileSize = Annotated[int, PowerOfTwo()]  # Triton's tensors have no other sizes
SMALLEST_DOT = 16  # rows and columns of a tile that `tl.dot` takes on a GPU


def jit(function: Callable | None = None, *, dtypes: Sequence[torch.dtype] = FLOATS) -> Any:
    """Decorator: a kernel for floats of `dtypes`, launched as `kernel[grid](...)`, or called inside another kernel."""
    if function is None:
        return partial(jit, dtypes=dtypes)
    if isinstance(function, Kernel):
        return function
    return Kernel(inspect.unwrap(function), tuple(dtypes))


class Kernel(JITFunction):
    """A kernel that is launched on a grid of programs: `kernel[grid](*arguments)`.

    Launches are checked once per kind: constants, and dtypes, devices, layouts and classes of tensors. Sizes are not
    part of a kind, so a program with changing shapes is also checked only once.
    """

    def __init__(self, function: Callable, dtypes: tuple[torch.dtype, ...] = FLOATS) -> None:
        if tl is not None:
            super().__init__(function)
        self.fn, self.dtypes = function, dtypes
        self._bind = inspect.signature(function)
        self._constants = {
            name: place
            for place, (name, one) in enumerate(self._bind.parameters.items())
            if "constexpr" in str(one.annotation)
        }
        self._constant_places = frozenset(self._constants.values())
        self._devices: dict[Any, torch.device] = {}  # of the kinds of launches that passed the checks

    def __getitem__(self, grid: Sequence[int] | Callable) -> Callable[..., None]:
        return partial(self.run, grid=grid)

    def run(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Launch: one program for every place of the grid.

        Raises:
            RuntimeError: there is no Triton here.
            ValueError: a grid, option, tile, dtype or device that the kernel cannot have.
        """
        try:
            kind = self._kind(args, kwargs)
            device = self._devices.get(kind)
        except TypeError:  # a constant without a hash
            kind = device = None
        if device is None:
            device = self._checked(args, kwargs)
            if kind is not None:
                self._devices[kind] = device
        programs = checked_grid(self.fn.__name__, grid(self._arguments(args, kwargs)) if callable(grid) else grid)
        launches = recording()
        if device.type == "cpu":
            arguments = self._arguments(args, kwargs)
            launch = Launch(self.fn.__name__, programs, interpreter.operands(_tensors(arguments)))
            interpreter.interpret(self.fn, arguments, set(self._constants), launch, keep=launches is not None)
            if launches is not None:
                launches.append(launch)
            return None
        if launches is not None:
            raise ValueError(
                f"{self.fn.__name__}: accesses are recorded in the interpreter only: got CUDA tensors; give CPU ones."
            )
        with interpreter.LOCK, torch.cuda.device(device):  # not while another thread has exchanged the language
            try:
                return super().run(*args, grid=programs, warmup=False, **kwargs)
            except OutOfResources as error:
                raise ValueError(
                    f"{self.fn.__name__}: a program must fit a GPU's {error.name}, {error.limit:,} here: "
                    f"got tiles that need {error.required:,}; take smaller ones."
                ) from None

    def _kind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Everything that the checks of a launch depend on, except the grid."""
        constant = self._constant_places
        kind: list[Any] = []
        for place, one in enumerate(args):
            kind.append(type(one))
            if isinstance(one, Tensor):
                kind += one.dtype, one.device, one.layout
            elif place in constant:
                kind.append(one)
        for name, one in kwargs.items():
            kind += name, type(one)
            if isinstance(one, Tensor):
                kind += one.dtype, one.device, one.layout
            elif name in self._constants:
                kind.append(one)
        return tuple(kind)

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Value of each parameter, without the compiler's options."""
        parameters = self._bind.parameters
        bound = self._bind.bind(*args, **{name: one for name, one in kwargs.items() if name in parameters})
        bound.apply_defaults()
        return bound.arguments

    def _checked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
        """The device of a launch, after a check of its options, tiles, dtypes, memory and devices."""
        name = self.fn.__name__
        if tl is None:
            raise RuntimeError(
                f"{name}: a Triton kernel needs the package triton: got none; install it (Linux: pip install triton), "
                "or call the tiled reference next to the kernel."
            )
        check_options(name, kwargs, self._bind.parameters)
        arguments = self._arguments(args, kwargs)
        tensors = _tensors(arguments)
        for constant in self._constants:
            if constant.startswith("BLOCK"):
                size = arguments[constant]
                check_type(f"{name}: {constant}", size, TileSize)
                if not isinstance(size, int):  # numpy's are no constants of a compiled kernel
                    raise ValueError(f"{name}: {constant} must be a Python int: got {size!r}; try {constant}={size}.")
        numbers = {key: one for key, one in tensors.items() if one.is_floating_point() or one.is_complex()}
        check_dtypes(name, self.dtypes, **numbers)
        check_memory(name, tensors)
        device = _device(name, tensors)
        if device.type == "cuda" and knobs.runtime.interpret:
            raise ValueError(f"{name}: TRITON_INTERPRET must not be set for CUDA tensors: unset it and start again.")
        return device


def _tensors(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key.removesuffix("_ptr"): one for key, one in arguments.items() if isinstance(one, Tensor)}


def cdiv(size: int, tile: int) -> int:
    """The number of tiles that cover the size, the last perhaps partly."""
    return -(-size // tile)


def next_power_of_2(size: int) -> int:
    """The smallest power of two that is at least the size, and at least 1.

    >>> [next_power_of_2(n) for n in (1, 2, 3, 8, 9)]
    [1, 2, 4, 8, 16]
    """
    return 1 << max(size - 1, 0).bit_length()


def accumulator(dtype: torch.dtype) -> Any:
    """Triton's type for a kernel's computation: float64 for float64, otherwise float32."""
    if tl is None:
        return None
    return tl.float64 if dtype == torch.float64 else tl.float32


def check_dot_tiles(function: str, device: torch.device, **sizes: int) -> None:
    """Raise ValueError if a tile is too small for `tl.dot` on a GPU. The interpreter accepts any size."""
    for name, size in sizes.items():
        if device.type == "cuda" and size < SMALLEST_DOT:
            raise ValueError(
                f"{function}: a GPU's matrix units need tiles of at least {SMALLEST_DOT}: got {name}={size}; "
                f"try {SMALLEST_DOT}, or CPU tensors."
            )


def _device(kernel: str, tensors: Mapping[str, Tensor]) -> torch.device:
    devices = {one.device for one in tensors.values()}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        got = ", ".join(f"{name} on {one.device}" for name, one in tensors.items()) or "no tensor"
        raise ValueError(f"{kernel}: all tensors must be on one device, the CPU or a CUDA GPU: got {got}.")
    return devices.pop()
