"""What was put right in the examples on their way into a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass
class Repairs:
    """Counts, under the names that report.json of a run has for them."""

    sequences: int = 0
    """that were looked at"""
    missing_values_interpolated: int = 0
    series_with_missing_values: int = 0
    channels_without_values: int = 0
    """pairs of a series and a channel of which it says nothing"""
    constant_channels: list[int] = dataclasses.field(default_factory=list)
    """of training data, counted from 1: the same number everywhere, or none; standardising brings them to 0"""
    sequences_cut: int = 0
    """longer than the model takes"""

    def add_missing(self, series: np.ndarray) -> None:
        """Counts NaN in one series (time, channels)."""
        missing = np.isnan(series)
        count = int(missing.sum())
        self.missing_values_interpolated += count
        self.series_with_missing_values += count > 0
        self.channels_without_values += int(missing.all(axis=0).sum())

    def sentence(self) -> str:
        """All of it in one sentence; empty where nothing was put right."""
        parts = []
        if self.missing_values_interpolated:
            parts.append(f"{counted(self.missing_values_interpolated, 'missing value')} in "
                         f"{self.series_with_missing_values:,} of {self.sequences:,} series interpolated")
        if self.channels_without_values:
            parts.append(f"channels of a series without any value: {self.channels_without_values:,}")
        if self.constant_channels:
            channels = ", ".join(map(str, self.constant_channels))
            parts.append(f"constant channels (counted from 1), which standardising brings to 0: {channels}")
        if self.sequences_cut:
            parts.append(f"{self.sequences_cut:,} of {counted(self.sequences, 'sequence')} cut: longer than the model "
                         "takes")
        return "; ".join(parts)


def counted(count: int, name: str) -> str:
    """"1 sequence", "1,200 sequences"."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def repairs_of(series: Sequence[np.ndarray]) -> Repairs:
    """What is missing in series (time, channels)."""
    repairs = Repairs(sequences=len(series))
    for one in series:
        repairs.add_missing(one)
    return repairs
