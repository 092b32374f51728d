"""A trained classifier of time series in one picture: mean series per class, confusion matrix, and where the
compression weights look."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any, Union

import numpy

from .confusion import confusion_matrix
from .look import COLOURS, pyplot
from .weights import compression

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Path = Union[str, "os.PathLike[str]"]
# With more classes the legend would hide the lines.
_MOST_NAMED = 10


def read_ts(path: Path) -> tuple[list[numpy.ndarray], list[str]]:
    """The series of a `.ts` file of the UEA archive, each (time, channels) float32 with NaN for a missing value, and
    their labels; empty labels where the file has none. For pictures: `dba train` has a reader that checks more."""
    file = pathlib.Path(path)
    series: list[numpy.ndarray] = []
    labels: list[str] = []
    labelled, data = False, False
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "%")):
            continue
        if not data:
            words = line.lower().split()
            labelled = words[1:2] == ["true"] if words[0] == "@classlabel" else labelled
            data = words[0] == "@data"
            continue
        *channels, label = line.split(":") if labelled else [*line.split(":"), ""]
        try:
            values = [[float("nan") if value.strip() in ("?", "NaN") else float(value) for value in channel.split(",")]
                      for channel in channels]
            series.append(numpy.asarray(values, dtype=numpy.float32).T)
        except ValueError as reason:
            raise ValueError(f"{file}:{number}: not a series of the UEA archive ({reason}); `dba data check {file}` "
                             "says what is wrong") from reason
        labels.append(label.strip())
    if not series:
        raise ValueError(f"{file}: no series behind @data; is it a .ts file of the UEA archive?")
    return series, labels


def mean_series(series: list[numpy.ndarray], labels: list[str]) -> dict[str, numpy.ndarray]:
    """Class → (time, channels): the mean over the series of the class that reach the step, missing values left out;
    NaN where nothing is known."""
    means = {}
    for name in sorted(set(labels), key=lambda label: (len(label), label)):
        members = [one for one, label in zip(series, labels) if label == name]
        stack = numpy.full((len(members), max(map(len, members)), members[0].shape[1]), numpy.nan)
        for row, one in zip(stack, members):
            row[: len(one)] = one
        known = ~numpy.isnan(stack)
        counts = known.sum(axis=0)
        sums = numpy.where(known, stack, 0.0).sum(axis=0)
        means[name] = numpy.where(counts > 0, sums / numpy.maximum(counts, 1), numpy.nan)
    return means


def telling_channels(means: dict[str, numpy.ndarray], count: int) -> list[int]:
    """The channels in which the classes' means lie farthest apart, measured against the channel's own spread."""
    steps = min(map(len, means.values()))
    stack = numpy.stack([mean[:steps] for mean in means.values()])
    apart = numpy.nanmean(numpy.nanvar(stack, axis=0), axis=0)
    spread = numpy.nanvar(stack, axis=(0, 1))
    order = numpy.argsort(-apart / numpy.where(spread > 0, spread, 1.0), kind="stable")
    return [int(channel) for channel in order[:count]]


def series_picture(run: Path, input: Path | None = None, channels: list[int] | None = None, examples: int = 3,
                   layer: int = 0) -> Figure:
    """Draws a run of `dba train` on time series.

    input: a `.ts` file with labels; default: the run's test file.
    channels: whose mean series are drawn, counted from 0; default: the two that tell the classes apart best.
    examples: the first series of so many classes; for each the compression matrix of layer `layer` (mean over heads),
        which is computed from the series itself. Models without DBA have none, and the picture has one row.
    """
    import json

    from ..models import load

    model = load(run)
    file = input if input is not None else (model.settings or {}).get("data", {}).get("test", "")
    if not file:
        raise ValueError(f"dba.figures.series_picture: {os.fspath(run)} names no test file; give one with input")
    series, labels = read_ts(file)
    if not any(labels):
        raise ValueError(f"dba.figures.series_picture: {os.fspath(file)} has no labels, and means are drawn by class")
    means = mean_series(series, labels)
    width = series[0].shape[1]
    if channels and not all(0 <= channel < width for channel in channels):
        raise ValueError(f"dba.figures.series_picture: channels must lie in [0, {width}), got {channels}")
    shown = channels or telling_channels(means, min(2, width))
    chosen = _one_per_class(labels, examples) if _has_slots(model) else []
    columns = max(len(shown) + 1, len(chosen))
    figure = pyplot().figure(figsize=(4.6 * columns, 3.9 * (2 if chosen else 1)), layout="constrained")
    grid = figure.add_gridspec(2 if chosen else 1, columns)
    for place, channel in enumerate(shown):
        _draw_means(figure.add_subplot(grid[0, place]), means, channel, legend=place == 0)
    report = json.loads((pathlib.Path(run) / "report.json").read_text())
    confusion_matrix(report, ax=figure.add_subplot(grid[0, columns - 1]))
    if chosen:
        from .of_model import layer_weights

        for place, index in enumerate(chosen):
            factors = layer_weights(model, [series[index]], layer)
            ax = compression(factors, "w_r", ax=figure.add_subplot(grid[1, place]))
            ax.set_title(f"compression, layer {layer}, a series of class {labels[index]}", fontsize="medium")
            ax.set_xlabel("time step")
    figure.suptitle(f"{pathlib.Path(file).stem}: {report.get('method', 'model')}, protocol {report.get('protocol')}")
    return figure


def _has_slots(model: Any) -> bool:
    from ..layer import DBALayer

    attention = model.backbone.encoder.layers[0].attention
    return isinstance(attention, DBALayer) and attention.compress_length


def _one_per_class(labels: list[str], count: int) -> list[int]:
    names = sorted(set(labels), key=lambda label: (len(label), label))
    return [labels.index(name) for name in names[:count]]


def _draw_means(ax: Axes, means: dict[str, numpy.ndarray], channel: int, legend: bool) -> None:
    few = len(means) <= len(COLOURS)
    colour = pyplot().get_cmap("viridis")
    for place, (name, mean) in enumerate(means.items()):
        ax.plot(mean[:, channel], label=name, linewidth=1.2,
                color=COLOURS[place] if few else colour(place / (len(means) - 1)))
    ax.set_xlabel("time step")
    ax.set_title(f"mean series per class, channel {channel}", fontsize="medium")
    ax.grid(True, alpha=0.3)
    if legend and len(means) <= _MOST_NAMED:
        ax.legend(fontsize="x-small", ncols=2, title="class", title_fontsize="x-small")
