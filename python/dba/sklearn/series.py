"""From what users hand over to plain series: one float32 array (time, channels) per case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from ..models.encoding import fill_missing

Series = list[numpy.ndarray]


def as_series(function: str, x: Any) -> Series:
    """A list of arrays (time, channels), float32, NaN where a value is missing.

    x: an array (cases, channels, time) or (cases, time), or a list (or an array of objects) of (time, channels) or
    (time). A pandas data frame is an array (cases, time).
    """
    if hasattr(x, "to_numpy"):
        x = x.to_numpy()
    if hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    one_array = isinstance(x, numpy.ndarray) and x.dtype != object
    if one_array:
        if x.ndim not in (2, 3):
            raise ValueError(f"{function}: X must be of shape (cases, channels, time) or (cases, time), or a list of "
                             f"(time, channels), got an array of shape {x.shape}. Reshape your data: one series alone "
                             "is X[numpy.newaxis]")
        cases: Sequence[Any] = x.transpose(0, 2, 1) if x.ndim == 3 else x[:, :, numpy.newaxis]
    elif isinstance(x, (list, tuple)) or (isinstance(x, numpy.ndarray) and x.ndim == 1):
        cases = x
    else:
        raise ValueError(f"{function}: X must be an array (cases, channels, time) or a list of (time, channels), got "
                         f"{type(x).__name__}")
    if len(cases) == 0:
        raise ValueError(f"{function}: X must hold at least one series, got 0 sample(s)")
    series = [_one(function, index, case) for index, case in enumerate(cases)]
    channels = series[0].shape[1]
    for index, one in enumerate(series):
        if one.shape[1] != channels:
            raise ValueError(f"{function}: all series of X must have as many channels as the first, {channels}, got "
                             f"{one.shape[1]} in series {index}; in a list, each stands as (time, channels): transpose "
                             "those that stand as (channels, time)")
    return series


def _one(function: str, index: int, case: Any) -> numpy.ndarray:
    try:
        one = numpy.asarray(case, dtype=numpy.float32)
    except (TypeError, ValueError) as reason:
        raise ValueError(f"{function}: series {index} of X must hold numbers, got {type(case).__name__}: "
                         f"{reason}") from reason
    one = one[:, numpy.newaxis] if one.ndim == 1 else one
    if one.ndim != 2 or 0 in one.shape:
        raise ValueError(f"{function}: series {index} of X must be of shape (time, channels) with at least one time "
                         f"step and one channel, got shape {one.shape}; leave empty series out")
    if numpy.isinf(one).any():
        raise ValueError(f"{function}: series {index} of X holds infinity, or a number too large for float32; put a "
                         "number in its place, or NaN, which stands for a missing value and is interpolated")
    return one


class Standardiser:
    """Brings every channel to mean 0 and deviation 1 (n - 1 in the denominator), as measured over all time steps of the
    training series after missing values have been filled. The rules are those of `dba train`: a channel that a series
    says nothing of counts as 0 there, and one that is constant over the training data becomes 0."""

    def __init__(self, series: Series) -> None:
        rows = numpy.concatenate([_complete(one) for one in series])
        constant = (rows == rows[0]).all(axis=0)
        # The sums would give a constant channel a mean beside its value, and with it a deviation above 0.
        self.mean = numpy.where(constant, rows[0], rows.mean(axis=0))
        squares = ((rows - self.mean) ** 2).sum(axis=0)
        self.deviation = numpy.where(constant, 1.0, numpy.sqrt(squares / max(len(rows) - 1, 1)))

    def __call__(self, series: Series) -> Series:
        """(time, channels) float32 each, without NaN."""
        return [((_complete(one) - self.mean) / self.deviation).astype(numpy.float32) for one in series]


def _complete(one: numpy.ndarray) -> numpy.ndarray:
    """(time, channels) float64 without NaN."""
    filled = fill_missing(one)
    return numpy.where(numpy.isnan(filled), 0.0, filled.astype(numpy.float64))
