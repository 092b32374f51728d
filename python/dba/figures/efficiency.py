"""Figure 1 of the paper: speed, memory and accuracy of every attention, from `dba reproduce efficiency`."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from .labels import label_points
from .look import COLOURS, pyplot

if TYPE_CHECKING:
    import numpy

Path = Union[str, "os.PathLike[str]"]
LENGTHS = (512, 4096)
# A circle of this area, in points², takes as much memory as softmax attention.
WHOLE_MEMORY = 1400.0


def read_efficiency(path: Path) -> dict[str, Any]:
    """A file of results/efficiency; of a folder the one of a GPU, or the first."""
    path = pathlib.Path(path)
    files = sorted(path.glob("*.json"), key=lambda file: (not file.name.startswith("cuda"), file.name)) \
        if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"dba.figures.read_efficiency: {path} holds no *.json; `dba reproduce efficiency` "
                                "writes them to results/efficiency")
    try:
        content = json.loads(files[0].read_text())
        content["cells"][:0], content["lra_average"]["percent"].get("dba")
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        sentence = f"dba.figures.read_efficiency: {files[0]}: no result of dba reproduce efficiency: {reason!r}"
        raise ValueError(sentence) from reason
    return content


def efficiency_panels(path: Path, lengths: Sequence[int] = LENGTHS, what: str = "training",
                      baseline: str = "unfused") -> numpy.ndarray:
    """Draws one panel per length on a new figure: speed to the right, mean accuracy on Long-Range Arena upwards, peak
    memory as the area of a circle, all but the accuracy as ratios to softmax attention.

    path: results/efficiency or a file of it. what: "training" or "inference". baseline: "unfused", as in the paper, or
    "fused". Accuracies are those that the file names; methods without one (Flowformer) are left out.
    Returns the axes, (lengths).
    """
    report = read_efficiency(path)
    average = report["lra_average"]
    figure, axes = pyplot().subplots(1, len(lengths), figsize=(5.6 * len(lengths), 4.6), squeeze=False,
                                     layout="constrained")
    drawn = []
    for ax, length in zip(axes[0], lengths):
        points = [(cell, average["percent"][name]) for cell in report["cells"]
                  if (cell["length"], cell["pass"], cell["status"]) == (length, what, "ok")
                  and (name := _method(cell["method"], baseline)) in average["percent"]
                  and cell.get(f"speed_vs_{baseline}") is not None]
        if not points:
            measured = sorted({cell["length"] for cell in report["cells"] if cell["status"] == "ok"})
            raise ValueError(f"dba.figures.efficiency_panels: no figures of {what} at length {length} beside "
                             f"{baseline} softmax attention; the file has the lengths {measured}")
        for cell, accuracy in points:
            speed, memory = cell[f"speed_vs_{baseline}"], cell[f"memory_vs_{baseline}"]
            ours = cell["method"].startswith("dba")
            ax.scatter(speed, accuracy, s=WHOLE_MEMORY * memory, color=COLOURS[1] if ours else COLOURS[0],
                       alpha=0.55 if ours else 0.3, linewidth=0)
        drawn.append(points)
        ax.axvline(1.0, color="grey", linewidth=0.6, linestyle=":")
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
        ax.xaxis.set_minor_formatter(lambda number, _: f"{number:g}" if f"{number:e}"[0] in "25" else "")
        ax.margins(0.18, 0.14)
        ax.set_title(f"{length:,} tokens", fontsize="medium")
        ax.set_xlabel(f"speed, {what}, against {baseline} softmax attention")
    axes[0][0].set_ylabel(f"mean accuracy on Long-Range Arena, %\n(of the {average['source']})")
    machine = report.get("machine", {})
    figure.suptitle(f"Area: peak memory. {report['batch']} sequences, {report['dtype']}, "
                    f"{machine.get('GPU') or machine.get('CPU') or report['device']}", fontsize="small")
    for ax, points in zip(axes[0], drawn):
        label_points(ax, [cell["method"] for cell, _ in points],
                     [(cell[f"speed_vs_{baseline}"], accuracy) for cell, accuracy in points],
                     [WHOLE_MEMORY * cell[f"memory_vs_{baseline}"] for cell, _ in points])
    return axes[0]


def _method(name: str, baseline: str) -> str:
    """The paper's name for a method, or nothing for the softmax attentions that are not the yardstick."""
    yardstick = "softmax:math" if baseline == "unfused" else "softmax"
    if name.startswith("softmax"):
        return "softmax" if name == yardstick else ""
    return "" if ":" in name else name.split("(")[0]
