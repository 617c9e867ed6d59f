"""Fit the figures of a `Device` to measured operations.

Each measurement's prediction comes from `op_cost` under a trial device, and the figures are chosen so that predictions
match measurements. In this order, each part with the results of those before it:

    dispatch   one small operation in a loop: the overhead of every other measured loop
    memory     rate = bytes / (time - overhead), its median below and above a size C; C (the cache) is where two rates
               explain the times best, and no cache if one rate explains them as well
    matmul     for each tile and half depth, the peak of each dtype is the median of the peaks that its products imply;
               tile and half depth are those with the least error. A product limited by memory implies no peak.
    elementwise   for each function, the median of the seconds per element beyond the time of its bytes: `element_s`; no
               figure if the bytes explain the time. Attention's are beyond the time of its products.
    program    the median over small programs of (time - time of the operations) / number of launches:
               `kernel_overhead_s`. It exceeds dispatch by the program's other work: views, autograd, Python, and the
               profiler.

On a GPU all times except of programs are kernel times; times of programs are host times of their launches,
without a profiler (kernel_times.py). So dispatch is the time of the smallest kernel, programs give `launch_s`, and
`kernel_overhead_s` is their sum. In a program with kernels shorter than their launches the GPU waits for the host; in
others the launches hide behind the kernels.

Only peak times efficiency can be measured, so `matmul_efficiency` and `memory_efficiency` are 1 and the peak is the
rate of large products. Errors are relative, medians throughout (robust.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite, sqrt
from statistics import median

from lablib.calibration.cases import BenchmarkCase, PricedOp, precision_of, predicted_s, priced_ops
from lablib.calibration.robust import Residual, log_error, log_median, residual
from lablib.hardware.device import FREE, Device
from lablib.operators.op import function_name, has_arithmetic

TILES = ((1, 1), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (128, 128), (128, 256))
_HALF_DEPTHS = (0.0, *(2.0**k for k in range(11)))
_BETTER = 0.97  # a model with one more figure must have at most this share of the simpler model's error
_FASTER = 1.25  # a smaller speedup over memory is no cache
_VISIBLE = 0.2  # share of the time beyond the overhead from which a measurement determines a rate
_FIRST_PEAK, _MAX_TURNS, _SETTLED = 1e9, 20, 1e-4
_FEWEST = {"dispatch": 1, "program": 1, "memory": 4, "matmul": 4}


@dataclass(frozen=True, slots=True)
class Timing:
    """A measured case: the median seconds of one call."""

    case: BenchmarkCase
    time_s: float


@dataclass(frozen=True)
class DeviceFit:
    """A device, and its residuals for each measured part."""

    device: Device
    residuals: tuple[Residual, ...]


@dataclass(frozen=True)
class _Measured:
    """A timing with its priced operators."""

    case: BenchmarkCase
    ops: list[PricedOp]
    time_s: float

    def predicted_s(self, device: Device) -> float:
        with precision_of(self.case):  # selects the row of peaks for float32 products
            return predicted_s(self.ops, device)

    @cached_property
    def launches(self) -> float:
        """Number of overheads that the model charges: its seconds on a device where only the overhead takes time."""
        return self.predicted_s(replace(FREE, kernel_overhead_s=1.0))

    @cached_property
    def size_bytes(self) -> float:
        """Bytes that the model counts: its seconds on a device where only bytes take time, 1 s each."""
        return self.predicted_s(replace(FREE, memory_bandwidth_bytes_per_s=1.0))

    def beyond_s(self, device: Device) -> float:
        return self.time_s - self.launches * device.kernel_overhead_s


def fit_device(timings: Iterable[Timing], base: Device, of_kernels: bool = False) -> DeviceFit:
    """The figures of a device from measured operations.

    Args:
        timings: at least one case of dispatch, one program, four memory operations and four products.
        base: the figures known without measurement: name, memory, number of cores.
        of_kernels: all but programs are kernel times, without their launch; programs are host times.

    Raises ValueError: times that are not positive numbers, too few of one part, or times that do not grow with size.
    """
    parts = _parts(timings)
    device = replace(base, matmul_efficiency=1.0, memory_efficiency=1.0, matmul_tile=(1, 1), matmul_half_depth=0.0)
    device = replace(device, launch_s=0.0, kernel_overhead_s=_overhead_s(parts["dispatch"]))
    device = _with_memory(device, parts["memory"])
    device = _with_matmul(device, parts["matmul"])
    device = _with_functions(device, parts["elementwise"])
    # A GPU runs kernels while the host launches the next: there nothing is subtracted.
    overhead_s = _overhead_s(parts["program"], FREE if of_kernels else device)
    if of_kernels:
        whole = replace(device, kernel_overhead_s=device.kernel_overhead_s + overhead_s, launch_s=overhead_s)
        of_program = replace(FREE, kernel_overhead_s=overhead_s)  # only the host, which does not wait for kernels
    else:
        whole = of_program = replace(device, kernel_overhead_s=overhead_s)
    residuals = []
    for part, measured in _by_dtype(parts).items():
        predictions = [m.predicted_s(of_program if part == "program" else device) for m in measured]
        cases, times_s = [str(m.case) for m in measured], [m.time_s for m in measured]
        residuals += [residual(part, cases, predictions, times_s)] if measured else []
    return DeviceFit(whole, tuple(residuals))


def _by_dtype(parts: Mapping[str, Sequence[_Measured]]) -> dict[str, list[_Measured]]:
    """The parts, with products separated by dtype: each has its own peak, which may be wrong independently."""
    found = {part: list(measured) for part, measured in parts.items() if part != "matmul"}
    for m in parts["matmul"]:
        found.setdefault(f"matmul_{m.case.dtype}", []).append(m)
    return found


def _parts(timings: Iterable[Timing]) -> dict[str, list[_Measured]]:
    parts: dict[str, list[_Measured]] = {"dispatch": [], "program": [], "memory": [], "matmul": [], "elementwise": []}
    for timing in timings:
        if not (isfinite(timing.time_s) and timing.time_s > 0):
            raise ValueError(f"a measured time must be positive seconds: got {timing.time_s} for {timing.case}")
        parts[timing.case.part].append(_Measured(timing.case, priced_ops(timing.case), timing.time_s))
    for part, fewest in _FEWEST.items():
        if len({m.case for m in parts[part]}) < fewest:
            raise ValueError(f"a fit needs {fewest} or more {part} cases: got {len(parts[part])}; measure more sizes")
    return parts


def program_overhead_s(timings: Iterable[Timing], device: Device = FREE) -> float:
    """`kernel_overhead_s` from programs alone, without the profiler. `device`: as fitted."""
    programs = [timing for timing in timings if timing.case.part == "program"]
    return _overhead_s([_Measured(one.case, priced_ops(one.case), one.time_s) for one in programs], device)


def _overhead_s(measured: Sequence[_Measured], device: Device = FREE) -> float:
    """The median time left per launch, for operations on `device`; at least a tenth of their time."""
    bare = replace(device, kernel_overhead_s=0.0, launch_s=0.0)
    return log_median([max(m.time_s - m.predicted_s(bare), 0.1 * m.time_s) / m.launches for m in measured])


def _with_memory(device: Device, measured: Sequence[_Measured]) -> Device:
    """The device with bandwidth of memory and, if visible, size and bandwidth of a cache."""
    sized = [m for m in measured if m.beyond_s(device) > _VISIBLE * m.time_s]
    if len(sized) < 2:
        raise ValueError("no memory operation takes longer than starting it: measure larger sizes")
    without = replace(device, cache_bytes=0.0, memory_bandwidth_bytes_per_s=_rate(sized, device))
    best, best_error = without, _BETTER * _error(measured, without)
    sizes = sorted({m.size_bytes for m in sized})
    for small, large in zip(sizes[1:], sizes[2:], strict=False):
        cache_bytes = sqrt(small * large)
        inside = _rate([m for m in sized if m.size_bytes <= cache_bytes], device)
        outside = _rate([m for m in sized if m.size_bytes > cache_bytes], device)
        if inside > _FASTER * outside:
            cache = {"cache_bytes": cache_bytes, "cache_bandwidth_bytes_per_s": inside}
            trial = replace(device, memory_bandwidth_bytes_per_s=outside, **cache)
            if (error := _error(measured, trial)) < best_error:
                best, best_error = trial, error
    return best


def _rate(measured: Sequence[_Measured], device: Device) -> float:
    return log_median([m.size_bytes / m.beyond_s(device) for m in measured])


def _with_matmul(device: Device, measured: Sequence[_Measured]) -> Device:
    """The device with the peak of each dtype, tile and half depth."""
    best, best_error = device, inf
    for tile in TILES:
        tiled = replace(device, matmul_tile=tile)
        trial, error = _best_depth(tiled, measured)
        if error < _BETTER * best_error:
            best, best_error = trial, error
    return best


def _best_depth(device: Device, measured: Sequence[_Measured]) -> tuple[Device, float]:
    """The best half depth for one tile: the best of a grid, then of finer and finer grids around it."""

    def at(half_depth: float) -> tuple[Device, float]:
        trial = _with_peaks(replace(device, matmul_half_depth=half_depth), measured)
        return trial, _error(measured, trial)

    found, factor = {half_depth: at(half_depth) for half_depth in _HALF_DEPTHS}, 2.0
    while factor > 1.02:
        center = min((d for d in found if d), key=lambda d: found[d][1])
        factor = sqrt(factor)
        for depth in (center / factor, center * factor):
            found.setdefault(depth, at(depth))
    deep = min((pair for depth, pair in found.items() if depth), key=lambda pair: pair[1])
    return deep if deep[1] < _BETTER * found[0.0][1] else found[0.0]


def _with_peaks(device: Device, measured: Sequence[_Measured]) -> Device:
    """The device with the peak of each measured dtype: each is scaled by the median of predicted / measured.

    Repeated, since the start time of a tile is counted in steps of the fastest dtype.
    """
    dtypes = dict.fromkeys(["float32", *(m.case.dtype for m in measured)])
    endless = replace(device, peak_flops_per_s=dict.fromkeys(dtypes, inf))
    computing = [m for m in measured if m.predicted_s(endless) < (1 - _VISIBLE) * m.time_s]
    peaks = dict.fromkeys(dtypes, _FIRST_PEAK)
    for _ in range(_MAX_TURNS):
        trial = replace(device, peak_flops_per_s=peaks)
        ratios: dict[str, list[float]] = {}
        for m in computing:
            compute_s = m.predicted_s(trial) - m.launches * device.kernel_overhead_s
            ratios.setdefault(m.case.dtype, []).append(compute_s / m.beyond_s(device))
        if "float32" not in ratios:
            raise ValueError("no float32 product is limited by computing: measure larger ones")
        scales = {dtype: log_median(ratio) for dtype, ratio in ratios.items()}
        peaks = {dtype: peaks[dtype] * scale for dtype, scale in scales.items()}
        if all(abs(scale - 1) < _SETTLED for scale in scales.values()):
            break
    return replace(device, peak_flops_per_s=peaks)


def _with_functions(device: Device, measured: Sequence[_Measured]) -> Device:
    """The device with the seconds per element of the functions that take longer than their bytes."""
    found: dict[str, list[float]] = {}
    for m in measured:
        op, args, kwargs, out = m.ops[-1]
        name = function_name(op, args, kwargs)
        in_turn = m.predicted_s(replace(FREE, element_s={name: 1.0}))  # the number of elements that the model counts
        rest_s = m.beyond_s(device)
        if has_arithmetic(op):
            rest_s -= m.predicted_s(device) - m.launches * device.kernel_overhead_s
        is_explained = m.predicted_s(device) > (1 - _VISIBLE) * m.time_s
        found.setdefault(name, []).append(0.0 if is_explained else max(0.0, rest_s) / in_turn)
    return replace(device, element_s={name: median(each) for name, each in found.items() if median(each)})


def _error(measured: Sequence[_Measured], device: Device) -> float:
    return log_error([m.predicted_s(device) for m in measured], [m.time_s for m in measured])
