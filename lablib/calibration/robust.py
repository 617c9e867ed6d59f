"""Robust fits: medians, and lines of least absolute relative error.

On a machine with other load, some measurements are far too long, but never too short. Least squares would follow the
outliers; the median and the least absolute error follow the majority. Times span five decades, so errors are relative:
an error of 10% counts the same for a microsecond and for a second.

    minimize over x >= 0:   sum_i | a_i . x - t_i | / t_i

by iteratively reweighted least squares: the weight of a row is 1 / |its residual|.

Source: E. J. Schlossmacher, "An iterative technique for absolute deviations curve fitting", JASA 68 (1973).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from statistics import median

import numpy as np

_ITERATIONS = 60
_SMALLEST_RESIDUAL = 1e-6  # relative; keeps the weights finite


@dataclass(frozen=True, slots=True)
class Residual:
    """Error of one part of a fit, as |predicted / measured - 1|: median and worst over its measurements."""

    part: str
    median: float
    worst: float
    worst_case: str
    count: int

    def __str__(self) -> str:
        return f"median {self.median:.0%}, worst {self.worst:.0%} ({self.worst_case}), {self.count} measurements"


def residual(part: str, names: Sequence[str], predicted_s: Sequence[float], measured_s: Sequence[float]) -> Residual:
    """The residual of one part."""
    errors = [abs(p / m - 1) for p, m in zip(predicted_s, measured_s, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    return Residual(part, median(errors), errors[worst], names[worst], len(errors))


def log_error(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """Mean |log(predicted / measured)|: twice and half are equally wrong."""
    return float(np.mean(np.abs(np.log(np.asarray(predicted_s) / np.asarray(measured_s)))))


def log_median(values: Sequence[float]) -> float:
    """The median of positive values on a logarithmic scale."""
    return exp(median(log(value) for value in values))


def least_relative_error(rows: np.ndarray, times_s: np.ndarray) -> np.ndarray:
    """The x >= 0 of the module's docstring.

    Args:
        rows: a_i, one row per measurement, one column per unknown.
        times_s: t_i, positive.

    Tries every subset of the unknowns with the others at zero, since there are few.
    """
    scaled = rows / times_s[:, None]
    best, best_loss = np.zeros(rows.shape[1]), float("inf")
    for count in range(1, rows.shape[1] + 1):
        for columns in combinations(range(rows.shape[1]), count):
            x = np.zeros(rows.shape[1])
            x[list(columns)] = _reweighted(scaled[:, columns])
            loss = float(np.abs(scaled @ x - 1).sum())
            if (x >= 0).all() and loss < best_loss - 1e-12:
                best, best_loss = x, loss
    return best


def _reweighted(scaled: np.ndarray) -> np.ndarray:
    """Least absolute error of `scaled @ x = 1`."""
    weights = np.ones(len(scaled))
    size = np.abs(scaled).max(axis=0)  # columns of seconds and of bytes differ by ten decades
    size[size == 0] = 1.0
    x = np.zeros(scaled.shape[1])
    for _ in range(_ITERATIONS):
        root = np.sqrt(weights)
        x = np.linalg.lstsq(scaled / size * root[:, None], root, rcond=None)[0]
        weights = 1 / np.maximum(np.abs(scaled / size @ x - 1), _SMALLEST_RESIDUAL)
    return x / size
