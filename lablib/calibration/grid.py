"""Sizes of the benchmarks: enough to separate the figures, in three minutes (`quick`: half a minute).

dispatch,     a few elements: the time of an operation without work
program
memory        a factor of four from one size to the next, from 16 kB to far beyond any cache
matmul        squares for the peak; one shape in growing depth K for `matmul_half_depth`; thin ones for the tile
network       a factor of 16 from one size to the next, for each collective and for messages
"""

from lablib.calibration.cases import BenchmarkCase

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

FUNCTIONS = (
    *("exp", "tanh", "gelu", "gelu backward", "gelu tanh", "gelu tanh backward", "softmax", "log_softmax"),
    *("layer_norm", "layer_norm backward", "sum"),
)  # functions that a CPU may compute more slowly than it reads: then they get an `element_s`


def device_cases(dtypes: tuple[str, ...], on_gpu: bool, quick: bool) -> list[BenchmarkCase]:
    """All benchmarks of one device, in the order of the fit. `dtypes`: those that it can multiply."""
    return [*program_cases(on_gpu), *memory_cases(on_gpu, quick), *matmul_cases(dtypes, on_gpu, quick)]


def program_cases(on_gpu: bool = False) -> list[BenchmarkCase]:
    """Operations of a few elements: one alone, and programs of them. On a CPU these share caches with the host."""
    programs: dict[str, tuple[int, ...]] = {"cold layer": (4, 4), "cold model": (4, 4, 4)}
    if on_gpu:
        programs = {"chain": (8,), "backward": (4, 4), "layer": (4, 4)}
    cases = [BenchmarkCase("program", kind, shape) for kind, shape in programs.items()]
    return [BenchmarkCase("dispatch", "add", (8,)), *cases]


def memory_cases(on_gpu: bool, quick: bool) -> list[BenchmarkCase]:
    """Streaming operations over sizes, then other operations that the model prices by bytes."""
    largest = 28 if on_gpu else 23  # elements, as powers of two: 1 GB, 32 MB a tensor
    exponents = range(13, largest + 1, 3 if quick else 2)
    cases = [BenchmarkCase("memory", kind, (2**k,)) for k in exponents for kind in ("copy", "add in place", "add")]
    if on_gpu:
        kinds, sizes = ("exp", "softmax") if quick else ("exp", "gelu", "softmax", "layer_norm", "sum"), (128, 2048)
        return cases + [BenchmarkCase("elementwise", kind, (2**12, columns)) for kind in kinds for columns in sizes]
    sizes = (512,) if quick else (128, 512, 2048)
    cases += [BenchmarkCase("elementwise", kind, (2**8, columns)) for kind in FUNCTIONS for columns in sizes]
    lengths = (64,) if quick else (32, 64, 128)
    attention = ("attention", "attention backward")
    return cases + [BenchmarkCase("elementwise", kind, (4, 4, length, 64)) for kind in attention for length in lengths]


def matmul_cases(dtypes: tuple[str, ...], on_gpu: bool, quick: bool) -> list[BenchmarkCase]:
    """All shapes in float32, and a few in the other dtypes that determine their peak."""
    scale = 8 if on_gpu else 1  # a GPU needs larger products to be busy
    squares = [side * scale for side in ((128, 512) if quick else (64, 128, 256, 512, 768))]
    side = 256 * scale
    depths = [depth * scale for depth in ((16, 1024) if quick else (8, 16, 32, 64, 128, 1024, 2048))]
    main: list[tuple[int, ...]] = [(n, n, n) for n in squares] + [(side, depth, side) for depth in depths]
    few: list[tuple[int, ...]] = [(n, n, n) for n in squares[-2:]] + [(side, depth, side) for depth in depths[::3]]
    wide, long = 512 * scale, 4096 * scale
    thin = [(rows, wide, wide) for rows in ((1, 16) if quick else (1, 4, 16, 48))]
    tall = [(long, 64, 64), (64, 64, long), (64, long, 64)]
    batched = [(8, 64, 64, 64), (8, 128, 32, 128)]
    shapes: dict[str, list[tuple[int, ...]]] = {dtype: list(main if dtype == "float32" else few) for dtype in dtypes}
    shapes["float32"] += thin + ([] if quick else tall) + batched
    return [BenchmarkCase("matmul", "matmul", shape, dtype) for dtype, group in shapes.items() for shape in group]


def message_sizes(quick: bool, on_gpu: bool) -> list[int]:
    """Bytes of a message or of a collective's whole tensor."""
    largest = 28 if on_gpu else 23
    return [2**k for k in range(7, largest + 1, 8 if quick else 4)]
