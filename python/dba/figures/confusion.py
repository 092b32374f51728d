"""The confusion matrix of a run or of predictions."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from .look import as_array, axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NUMBERS = 20  # classes; beyond that the cells are too small for text


def confusion_matrix(source: Any, predicted: Any = None, classes: Sequence[Any] | None = None, part: str = "test",
                     share: bool = True, ax: Axes | None = None) -> Axes:
    """Draws how often each true class (row) was taken for each class (column).

    source: a run's folder or its report.json; the output of `dba evaluate --json` as a file or a dictionary; a matrix
        of counts (classes, classes); or, with `predicted`, the true labels (cases).
    predicted: the predicted labels (cases).
    classes: their names, in the order of the matrix; with labels, which ones are shown and in which order.
    part: "test" or "validation", where source is a run.
    share: colours by the share of a row, not by the count, so that rare classes can be read too. Numbers are counts.
    """
    if predicted is not None:
        counts, classes = _count(source, predicted, classes)
    else:
        counts, found = _read(source, part)
        classes = list(classes) if classes is not None else found
    counts = as_array(counts)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.shape[0] == 0:
        raise ValueError("dba.figures.confusion_matrix: source must hold counts of shape (classes, classes), got "
                         f"shape {counts.shape}; true labels need the predicted ones beside them")
    names = [str(name) for name in (classes if classes is not None else range(len(counts)))]
    if len(names) != len(counts):
        raise ValueError(f"dba.figures.confusion_matrix: classes must name {len(counts)} classes, got {len(names)}")
    side = min(12.0, 2.4 + 0.42 * len(names))
    ax = axes_or_new(ax, (side + 0.6, side))
    shares = counts / numpy.maximum(counts.sum(axis=1, keepdims=True), 1)
    shown = shares if share else counts
    image = ax.imshow(shown, cmap="Blues", vmin=0, vmax=1 if share else None)
    if len(names) <= _MOST_NUMBERS:
        middle = image.norm.vmax / 2
        for row, column in numpy.ndindex(*counts.shape):
            if counts[row, column]:
                ax.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize="small",
                        color="white" if shown[row, column] > middle else "black")
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, names)) > 3 else {}
    ax.set_xticks(range(len(names)), names, **turned)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("predicted class")
    ax.set_ylabel("true class")
    ax.set_title(f"accuracy {numpy.trace(counts) / max(counts.sum(), 1):.1%} of {counts.sum():,}", fontsize="medium")
    ax.figure.colorbar(image, ax=ax, label="share of the true class" if share else "cases")
    return ax


def _count(true: Any, predicted: Any, classes: Sequence[Any] | None) -> tuple[numpy.ndarray, list[Any]]:
    true, predicted = as_array(true), as_array(predicted)
    if true.ndim != 1 or true.shape != predicted.shape:
        raise ValueError("dba.figures.confusion_matrix: true and predicted labels must be of one shape (cases), got "
                         f"{true.shape} and {predicted.shape}")
    names = list(classes) if classes is not None else numpy.unique(numpy.concatenate([true, predicted])).tolist()
    place = {name: index for index, name in enumerate(names)}
    counts = numpy.zeros((len(names), len(names)), dtype=int)
    for row, column in zip(true.tolist(), predicted.tolist()):
        if row in place and column in place:
            counts[place[row], place[column]] += 1
    return counts, names


def _read(source: Any, part: str) -> tuple[Any, list[str] | None]:
    name = "source"
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        path = pathlib.Path(source)
        path = path / "report.json" if path.is_dir() else path
        try:
            source = json.loads(path.read_text())
        except (OSError, ValueError) as reason:
            raise ValueError(f"dba.figures.confusion_matrix: {name}: no report of a run: {reason}; `dba train` writes "
                             "report.json at its end, `dba evaluate RUN --json` prints one") from reason
    if not isinstance(source, dict):
        return source, None
    section = source.get("model", source.get(part))
    if not isinstance(section, dict) or "confusion" not in section:
        held = [key for key, value in source.items() if isinstance(value, dict) and "confusion" in value]
        raise ValueError(f"dba.figures.confusion_matrix: {name} has no confusion matrix of part {part!r}; it has "
                         f"{held or 'none at all'}")
    return section["confusion"], source.get("classes")
