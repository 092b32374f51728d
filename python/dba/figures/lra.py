"""Training curves of the Long-Range Arena, from the results of `dba reproduce lra`."""

from __future__ import annotations

import json
import math
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

import numpy

from .look import COLOURS, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

Path = Union[str, "os.PathLike[str]"]
TITLES = {"listops": "ListOps", "text": "Text", "retrieval": "Retrieval", "image": "Image", "pathfinder": "Pathfinder"}
_NEEDED = ("task", "method", "variant", "seed", "curves")
# Beyond these colours lines are broken, and points have another shape.
_COLOURS = (*COLOURS, "#882255", "#999933", "#7a4fe0", "#999999")
_STYLES = (("-", "o"), ((0, (4, 1.5)), "^"), ((0, (1, 1)), "s"), ((0, (5, 1, 1, 1)), "x"))
_INSIDE = 3  # methods whose legend has room among the curves
_LINES = 12  # lines of a legend that are no higher than a panel


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


def _draw_one(panels: Sequence[Axes], result: dict, place: int, label: str | None) -> None:
    """Draws a run of the method in this place among the methods."""
    style, marker = _STYLES[place // len(_COLOURS) % len(_STYLES)]
    look = {"color": _COLOURS[place % len(_COLOURS)], "label": label}
    steps, loss = _curve(result, "train", "loss")
    panels[0].plot(steps, loss, linewidth=1, linestyle=style, **look)
    evaluated, accuracy = _curve(result, "validation", "accuracy")
    panels[1].plot(evaluated, 100 * accuracy, linewidth=1.2, linestyle=style, **look)
    # The loss is a mean over some updates; at an evaluation it is read off the line between two of them.
    if len(steps):
        panels[2].plot(numpy.interp(evaluated, steps, loss), 100 * accuracy, linewidth=0, marker=marker, markersize=3,
                       alpha=0.7, **look)


def _legend_beside(row: Sequence[Axes]) -> Legend:
    """A legend to the right of the row, in columns, with every method's line and point."""
    lines, labels = row[1].get_legend_handles_labels()
    points = dict(zip(*reversed(row[2].get_legend_handles_labels())))
    handles = [(line, points[label]) if label in points else line for line, label in zip(lines, labels)]
    return row[2].legend(handles, labels, fontsize="small", ncols=math.ceil(len(labels) / _LINES), handlelength=3,
                         loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)


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


def _holdings(results: Sequence[dict]) -> str:
    """Tasks with their methods, "image, text with dba, softmax; listops with dba"; many methods are counted."""
    tasks: dict[str, set[str]] = {}
    for result in results:
        tasks.setdefault(result["task"], set()).add(result["method"])
    alike: dict[tuple[str, ...], list[str]] = {}
    for task in sorted(tasks):
        alike.setdefault(tuple(sorted(tasks[task])), []).append(task)
    return "; ".join(f"{', '.join(of)} with {', '.join(methods) if len(methods) < 7 else f'{len(methods)} methods'}"
                     for methods, of in alike.items())


def _nothing_to_draw(whole: Sequence[dict], tasks: Sequence[str], methods: Sequence[str], variant: str) -> str:
    """A sentence: what is not there, what the folder holds, and the variants that have what was asked for.

    tasks: those without results; none are all. methods: those that were named; none are all.
    """
    variants = sorted({result["variant"] for result in whole})
    names = {of: f"runs of variant {of}" if of else "whole runs" for of in (*variants, variant)}
    held = {of: [result for result in whole if result["variant"] == of] for of in variants}
    sentence = f"dba.figures.lra_curves: there are no {names[variant]}"
    if variant in held:
        of_tasks = tasks if tasks or methods else TITLES
        sentence += f" of {', '.join(of_tasks)}" if of_tasks else ""
        sentence += f" with {', '.join(methods)}" if methods else ""
    sentence += f"; the folder holds {' and '.join(f'{names[of]} ({_holdings(held[of])})' for of in variants)}"
    others = [of for of in variants if of != variant and any(
        result["task"] in (tasks or TITLES) and result["method"] in (methods or [result["method"]])
        for result in held[of])]
    if not others:
        return sentence
    remedies = [f"--variant {of}" if of else "no --variant" for of in others]
    return f"{sentence}; use {' or '.join(remedies)} (in Python variant={' or '.join(map(repr, others))})"


def lra_curves(folder: Path, tasks: Sequence[str] | None = None, methods: Sequence[str] | None = None,
               variant: str = "") -> numpy.ndarray:
    """Draws, for every task a row: training loss over updates, validation accuracy over updates, and validation
    accuracy against training loss. Every method has a colour, or a colour and a style of line; its seeds share them.
    The legend of more than three methods is beside the panels, and the figure is wider by it.

    folder: results/lra. tasks, methods: these alone, in this order; default all that have results.
    variant: the runs of this variant; "" are those of the whole recipe, others are shortened and never mixed in.
    Results on different data, or with different settings, are drawn with a warning; so is what there is where a method
    that was named has no result of a task.
    Returns the axes, (tasks, 3).
    """
    whole = read_results(folder)
    results = [result for result in whole if result["variant"] == variant]
    named = list(methods or [])
    methods = named or list(dict.fromkeys(result["method"] for result in results))
    tasks = list(tasks or [task for task in TITLES if any(
        result["task"] == task and result["method"] in methods for result in results)])
    chosen = {task: [result for result in results if result["task"] == task and result["method"] in methods]
              for task in tasks}
    empty = [task for task in tasks if not chosen[task]]
    known = sorted({(result["task"], result["method"], result["variant"]) for result in whole})
    for method in named:
        if not any(method == of for _, of, _ in known):
            raise ValueError(f"dba.figures.lra_curves: no results of method {method!r}; the folder holds "
                             f"{', '.join(sorted({of for _, of, _ in known})) or 'none at all'}")
    if empty or not tasks:
        raise ValueError(_nothing_to_draw(whole, empty, named, variant))
    height = 3.4 * len(tasks)
    figure, axes = pyplot().subplots(len(tasks), 3, figsize=(12, height), layout="constrained", squeeze=False)
    beside = []
    for row, task in zip(axes, tasks):
        _warn_of_absent(task, named, chosen[task])
        _warn_of_other_data(task, chosen[task])
        _warn_of_other_settings(task, chosen[task])
        for method in methods:
            seeds = [result for result in chosen[task] if result["method"] == method]
            label = method if len(seeds) == 1 else f"{method}, {len(seeds)} seeds"
            for index, result in enumerate(seeds):
                _draw_one(row, result, methods.index(method), label if index == 0 else None)
        for panel, (across, up) in zip(row, (("update", "training loss"), ("update", "validation accuracy, %"),
                                             ("training loss", "validation accuracy, %"))):
            panel.set_xlabel(across)
            panel.set_ylabel(up)
            panel.grid(True, alpha=0.3)
            panel.locator_params(axis="x", nbins=5)
        row[2].invert_xaxis()
        row[0].set_title(TITLES.get(task, task), loc="left")
        if len(methods) > _INSIDE:
            beside.append(_legend_beside(row))
        else:
            row[1].legend(fontsize="small")
    if beside:
        figure.set_size_inches(12 + max(legend.get_window_extent().width for legend in beside) / figure.dpi, height)
    return axes
