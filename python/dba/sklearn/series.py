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
    says nothing of counts for nothing and becomes 0, the mean; one that is constant over the training data becomes
    0."""

    def __init__(self, series: Series) -> None:
        rows = numpy.concatenate([_filled(one) for one in series])
        known = ~numpy.isnan(rows)
        values = known.sum(axis=0)
        least = numpy.where(known, rows, numpy.inf).min(axis=0)
        constant = (values == 0) | (least == numpy.where(known, rows, -numpy.inf).max(axis=0))
        # The sums would give a constant channel a mean beside its value, and with it a deviation above 0.
        mean = numpy.where(known, rows, 0.0).sum(axis=0) / numpy.maximum(values, 1)
        self.mean = numpy.where(constant, numpy.where(values > 0, least, 0.0), mean)
        squares = numpy.where(known, rows - self.mean, 0.0) ** 2
        self.deviation = numpy.where(constant, 1.0, numpy.sqrt(squares.sum(axis=0) / numpy.maximum(values - 1, 1)))

    def __call__(self, series: Series) -> Series:
        """(time, channels) float32 each, without NaN."""
        standardised = [((_filled(one) - self.mean) / self.deviation).astype(numpy.float32) for one in series]
        return [numpy.where(numpy.isnan(one), numpy.float32(0), one) for one in standardised]


def _filled(one: numpy.ndarray) -> numpy.ndarray:
    """(time, channels) float64, NaN only in channels without any value."""
    return fill_missing(one).astype(numpy.float64)
