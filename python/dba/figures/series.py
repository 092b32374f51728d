"""A trained classifier of time series in one picture: mean series per class, confusion matrix, and where the
compression weights look."""

from __future__ import annotations

import json
import os
import pathlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy

from .confusion import confusion_matrix
from .look import COLOURS, pyplot
from .series_files import Path, read_series
from .weights import compression

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# With more classes the legend stands below the picture, where it hides no lines.
_MOST_NAMED = 10
_STYLES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nothing is known of a step, or of a whole channel
        apart = numpy.nanmean(numpy.nanvar(stack, axis=0), axis=0)
        spread = numpy.nanvar(stack, axis=(0, 1))
    order = numpy.argsort(-apart / numpy.where(spread > 0, spread, 1.0), kind="stable")
    return [int(channel) for channel in order[:count]]


def series_picture(run: Path, input: Path | None = None, channels: list[int] | None = None, examples: int = 3,
                   layer: int = 0) -> Figure:
    """Draws a run of `dba train` on time series.

    input: a file of labelled series (`.ts`, JSON lines or long CSV); default: the run's test file. Of any other file
        the confusion matrix is that of the model's predictions here. Series without a label are left out.
    channels: whose mean series are drawn, counted from 1; default: the two that tell the classes apart best.
    examples: the first series of so many classes; for each the compression matrix of layer `layer` (mean over heads),
        which is computed from the series itself. Models without DBA have none, and the picture has one row.
    """
    from ..models import load

    model = load(run)
    series, labels, file, title = _labelled_series(model, run, input)
    means = mean_series(series, labels)
    width = series[0].shape[1]
    if channels and not all(1 <= channel <= width for channel in channels):
        raise ValueError(f"dba.figures.series_picture: channels must lie in [1, {width}], got {channels}; they are "
                         "counted from 1")
    if examples < 0:
        raise ValueError(f"dba.figures.series_picture: examples must be at least 0, got {examples}")
    shown = [channel - 1 for channel in channels] if channels else telling_channels(means, min(2, width))
    chosen = _one_per_class(labels, examples) if _has_slots(model) else []
    columns = max(len(shown) + 1, len(chosen))
    figure = pyplot().figure(figsize=(4.6 * columns, 3.9 * (2 if chosen else 1)), layout="constrained")
    grid = figure.add_gridspec(2 if chosen else 1, columns)
    drawn = [figure.add_subplot(grid[0, place]) for place in range(len(shown))]
    for ax, channel in zip(drawn, shown):
        _draw_means(ax, means, channel)
    _name_classes(drawn[0], list(means), 4.6 * columns)
    report = _report(run)
    matrix = figure.add_subplot(grid[0, columns - 1])
    if _is_of_report(report, model, file, labels):
        confusion_matrix(report, ax=matrix)
    else:
        strange = sorted(set(labels) - set(model.labels))
        confusion_matrix(labels, model.predict(series), [*model.labels, *strange], ax=matrix)
    if chosen:
        from .of_model import layer_weights

        for place, index in enumerate(chosen):
            factors = layer_weights(model, [series[index]], layer)
            ax = compression(factors, "w_r", ax=figure.add_subplot(grid[1, place]))
            ax.set_title(f"compression, layer {layer}, a series of class {labels[index]}", fontsize="medium")
            ax.set_xlabel("time step")
    protocol = f", protocol {report['protocol']}" if "protocol" in report else ""
    figure.suptitle(f"{title}: {model.config.method}{protocol}")
    return figure


def _labelled_series(model: Any, run: Path, input: Path | None) -> tuple[list[numpy.ndarray], list[str], str, str]:
    """Series and labels of those that have one, the file, and what the picture calls it."""
    encoding = model.known_encoding()
    if encoding.kind != "series":
        raise ValueError(f"dba.figures.series_picture: the picture is of time series, and {os.fspath(run)} is a model "
                         f"of {encoding.kind}; dba plot confusion and dba plot weights draw such runs")
    data = (model.settings or {}).get("data", {})
    file = os.fspath(input) if input is not None else data.get("test", "")
    if not file:
        raise ValueError(f"dba.figures.series_picture: {os.fspath(run)} names no test file; give labelled series with "
                         "input (--input)")
    everything, all_labels = read_series(file, data)
    labelled = [place for place, label in enumerate(all_labels) if label]
    if not labelled:
        raise ValueError(f"dba.figures.series_picture: {file} has no labels, and mean series and confusion matrix are "
                         "those of classes; give labelled series with input (--input), or draw one series with dba "
                         "plot weights")
    if everything[0].shape[1] != encoding.channels:
        raise ValueError(f"dba.figures.series_picture: the series of {file} have {everything[0].shape[1]} channels, "
                         f"those of the model {encoding.channels}; give series of the same kind with input (--input)")
    left_out = len(all_labels) - len(labelled)
    title = pathlib.Path(file).stem + (f" ({left_out:,} of {len(all_labels):,} series, which have no label, left out)"
                                       if left_out else "")
    return [everything[place] for place in labelled], [all_labels[place] for place in labelled], file, title


def _report(run: Path) -> dict[str, Any]:
    """What the run says of itself; empty for the file of a model."""
    file = pathlib.Path(run) / "report.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def _is_of_report(report: dict[str, Any], model: Any, file: str, labels: list[str]) -> bool:
    """Whether the report's confusion matrix is that of the file: it is the run's test file, and still has as many
    series of every class."""
    counts = report.get("test", {}).get("confusion")
    test = (model.settings or {}).get("data", {}).get("test", "")
    if counts is None or not test or os.path.realpath(file) != os.path.realpath(test):
        return False
    return [sum(row) for row in counts] == [labels.count(name) for name in report.get("classes", [])]


def _has_slots(model: Any) -> bool:
    from ..layer import DBALayer

    attention = model.backbone.encoder.layers[0].attention
    return isinstance(attention, DBALayer) and attention.compress_length


def _one_per_class(labels: list[str], count: int) -> list[int]:
    names = sorted(set(labels), key=lambda label: (len(label), label))
    return [labels.index(name) for name in names[:count]]


def _draw_means(ax: Axes, means: dict[str, numpy.ndarray], channel: int) -> None:
    for place, (name, mean) in enumerate(means.items()):
        ax.plot(mean[:, channel], label=name, linewidth=1.2, color=COLOURS[place % len(COLOURS)],
                linestyle=_STYLES[place // len(COLOURS) % len(_STYLES)])
    ax.set_xlabel("time step")
    ax.set_title(f"mean series per class, channel {channel + 1}", fontsize="medium")
    ax.grid(True, alpha=0.3)


def _name_classes(ax: Axes, names: list[str], width: float) -> None:
    """The key to the lines: inside the axes, or, for many classes, below a picture of `width` inches."""
    if len(names) <= _MOST_NAMED:
        ax.legend(fontsize="x-small", ncols=2, title="class", title_fontsize="x-small")
        return
    columns = max(1, min(len(names), int(width / (0.6 + 0.07 * max(map(len, names))))))
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize="x-small",
                     handlelength=3, title="class of the mean series", title_fontsize="x-small")
