"""Learning curves: what a run logged, over its updates."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Union

from .look import COLOURS, axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Path = Union[str, "os.PathLike[str]"]
_LINES = {"train": {"linewidth": 1, "alpha": 0.55}, "validation": {"linewidth": 1.6, "marker": "o", "markersize": 4}}


def read_metrics(run: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl, in order: dictionaries with step, part, epoch, loss, accuracy and others.

    `run` is the run's folder or the file itself. A last line that a crash cut short is left out.
    """
    path = pathlib.Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"dba.figures.read_metrics: run must be the folder of a run or its metrics.jsonl, got "
                                f"{os.fspath(run)!r}; `dba train --run FOLDER` writes one")
    entries = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            entry["step"], entry["part"]
        except (ValueError, KeyError, TypeError) as reason:
            if number == len(lines):
                break
            raise ValueError(
                f"dba.figures.read_metrics: {path}:{number}: not a line of metrics: {line[:60]!r}") from reason
        entries.append(entry)
    return entries


def learning_curves(runs: Path | Iterable[Path], metric: str = "accuracy",
                    parts: Sequence[str] = ("train", "validation"), ax: Axes | None = None) -> Axes:
    """Draws a metric over the updates of one run or several.

    runs: a run's folder (or its metrics.jsonl), or several of them; each has one colour.
    metric: accuracy, loss, macro_f1 (validation only), lr (training only): any key of the file.
    parts: train is drawn thin, validation with a marker at every evaluation.
    """
    runs = [runs] if isinstance(runs, (str, os.PathLike)) else list(runs)
    ax = axes_or_new(ax)
    known: set[str] = set()
    drawn = 0
    for index, run in enumerate(runs):
        entries = read_metrics(run)
        known.update(key for entry in entries for key, value in entry.items() if isinstance(value, (int, float)))
        path = pathlib.Path(run)
        name = (path if path.is_dir() else path.parent).resolve().name
        for part in parts:
            points = [(entry["step"], entry[metric]) for entry in entries if entry["part"] == part and metric in entry]
            if points:
                ax.plot(*zip(*points), color=COLOURS[index % len(COLOURS)], label=f"{name}, {part}",
                        **_LINES.get(part, {}))
                drawn += 1
    if drawn == 0:
        raise ValueError(f"dba.figures.learning_curves: metric {metric!r} stands in no line of parts {tuple(parts)!r} "
                         f"of the {len(runs)} runs given; they hold {sorted(known - {'step', 'epoch'})}")
    ax.set_xlabel("update")
    ax.set_ylabel(metric.replace("_", " "))
    ax.grid(True, alpha=0.3)
    ax.legend(fontsize="small")
    return ax
