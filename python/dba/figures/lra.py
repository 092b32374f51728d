"""Training curves of the Long-Range Arena, from the results of `dba reproduce lra`."""

from __future__ import annotations

import json
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

import numpy

from .look import COLOURS, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Path = Union[str, "os.PathLike[str]"]
TITLES = {"listops": "ListOps", "text": "Text", "retrieval": "Retrieval", "image": "Image", "pathfinder": "Pathfinder"}
_NEEDED = ("task", "method", "variant", "seed", "curves")


def read_results(folder: Path) -> list[dict]:
    """The results of a folder, `dba reproduce`'s files *.json, in the order of their names."""
    path = pathlib.Path(folder)
    files = sorted(path.glob("*.json")) if path.is_dir() else []
    if not files:
        raise FileNotFoundError(f"dba.figures.read_results: folder must hold results as *.json, got "
                                f"{os.fspath(folder)!r}; `dba reproduce lra` writes them to results/lra")
    results = []
    for file in files:
        try:
            result = json.loads(file.read_text())
            missing = [key for key in _NEEDED if key not in result]
        except (ValueError, TypeError) as reason:
            raise ValueError(f"dba.figures.read_results: {file}: not JSON ({reason}); delete it and run it again") \
                from reason
        if missing:
            raise ValueError(f"dba.figures.read_results: {file}: no {', '.join(missing)} in it; it is no result of "
                             "dba reproduce")
        results.append(result)
    return results


def _curve(result: dict, part: str, what: str) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Updates and values, (points) each; both empty where the run has no such part."""
    curve = result["curves"].get(part, {})
    steps, values = curve.get("step", []), curve.get(what, [])
    return numpy.asarray(steps, dtype=float), numpy.asarray(values, dtype=float)


def _draw_one(panels: Sequence[Axes], result: dict, colour: str, label: str | None) -> None:
    look = {"color": colour, "label": label}
    steps, loss = _curve(result, "train", "loss")
    panels[0].plot(steps, loss, linewidth=1, **look)
    evaluated, accuracy = _curve(result, "validation", "accuracy")
    panels[1].plot(evaluated, 100 * accuracy, linewidth=1.2, **look)
    # The loss is a mean over some updates; at an evaluation it is read off the line between two of them.
    if len(steps):
        panels[2].plot(numpy.interp(evaluated, steps, loss), 100 * accuracy, linewidth=0, marker="o", markersize=3,
                       alpha=0.7, **look)


def _warn_of_other_data(task: str, results: Sequence[dict]) -> None:
    for part in ("training", "validation", "test"):
        digests = {result["data_digests"][part] for result in results if part in result.get("data_digests", {})}
        if len(digests) > 1:
            warnings.warn(f"dba.figures.lra_curves: the results of {task} were made on different {part} data; "
                          "`dba reproduce lra --table` names the files", UserWarning, stacklevel=3)
            return


def _warn_of_other_settings(task: str, results: Sequence[dict]) -> None:
    # Results from before "changed" was kept say nothing.
    if len({tuple(result["changed"]) for result in results if "changed" in result}) > 1:
        warnings.warn(f"dba.figures.lra_curves: the results of {task} were made with different settings; "
                      "`dba reproduce lra --table` names the files", UserWarning, stacklevel=3)


def _warn_of_absent(task: str, methods: Sequence[str], results: Sequence[dict]) -> None:
    absent = [method for method in methods if not any(result["method"] == method for result in results)]
    if absent:
        warnings.warn(f"dba.figures.lra_curves: there is no result of {task} with {', '.join(absent)}; "
                      "the picture does without", UserWarning, stacklevel=3)


def lra_curves(folder: Path, tasks: Sequence[str] | None = None, methods: Sequence[str] | None = None,
               variant: str = "") -> numpy.ndarray:
    """Draws, for every task a row: training loss over updates, validation accuracy over updates, and validation
    accuracy against training loss. One colour per method; seeds of a method share it.

    folder: results/lra. tasks, methods: these alone, in this order; default all that have results.
    variant: the runs of this variant; "" are those of the whole recipe, others are shortened and never mixed in.
    Results on different data, or with different settings, are drawn with a warning; so is what there is where a method
    that was named has no result of a task.
    Returns the axes, (tasks, 3).
    """
    whole = read_results(folder)
    results = [result for result in whole if result["variant"] == variant]
    tasks = list(tasks or [task for task in TITLES if any(result["task"] == task for result in results)])
    named = list(methods or [])
    methods = named or list(dict.fromkeys(result["method"] for result in results))
    chosen = {task: [result for result in results if result["task"] == task and result["method"] in methods]
              for task in tasks}
    empty = [task for task in tasks if not chosen[task]]
    known = sorted({(result["task"], result["method"], result["variant"]) for result in whole})
    for method in named:
        if not any(method == of for _, of, _ in known):
            raise ValueError(f"dba.figures.lra_curves: no results of method {method!r}; the folder holds "
                             f"{', '.join(sorted({of for _, of, _ in known})) or 'none at all'}")
    if empty or not tasks:
        raise ValueError(f"dba.figures.lra_curves: no results of task {', '.join(empty) or 'any'} with methods "
                         f"{methods} and variant {variant!r}; the folder holds (task, method, variant) {known}")
    axes = pyplot().subplots(len(tasks), 3, figsize=(12, 3.4 * len(tasks)), layout="constrained", squeeze=False)[1]
    for row, task in zip(axes, tasks):
        _warn_of_absent(task, named, chosen[task])
        _warn_of_other_data(task, chosen[task])
        _warn_of_other_settings(task, chosen[task])
        for method in methods:
            seeds = [result for result in chosen[task] if result["method"] == method]
            label = method if len(seeds) == 1 else f"{method}, {len(seeds)} seeds"
            for index, result in enumerate(seeds):
                _draw_one(row, result, COLOURS[methods.index(method) % len(COLOURS)], label if index == 0 else None)
        for panel, (across, up) in zip(row, (("update", "training loss"), ("update", "validation accuracy, %"),
                                             ("training loss", "validation accuracy, %"))):
            panel.set_xlabel(across)
            panel.set_ylabel(up)
            panel.grid(True, alpha=0.3)
            panel.locator_params(axis="x", nbins=5)
        row[2].invert_xaxis()
        row[0].set_title(TITLES.get(task, task), loc="left")
        row[1].legend(fontsize="small")
    return axes
