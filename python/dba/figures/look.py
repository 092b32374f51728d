"""What all figures share: colours, markers, the way to matplotlib, the way to a file."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that people with any kind of colour vision tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "os^Dvx*"


def pyplot() -> Any:
    """matplotlib.pyplot, or a sentence that says how to get it."""
    try:
        from matplotlib import pyplot as plots
    except ImportError as reason:
        raise ImportError(
            "dba.figures: needs matplotlib; python3 -m pip install matplotlib, or dba[figures]") from reason
    return plots


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (6.0, 4.0)) -> Axes:
    """The axes given, or those of a new figure of `size` inches."""
    return ax if ax is not None else pyplot().subplots(figsize=size, layout="constrained")[1]


def as_array(values: Any) -> numpy.ndarray:
    """An array of a tensor on any device, of an array, or of nested lists."""
    for step in ("detach", "cpu"):
        if hasattr(values, step):
            values = getattr(values, step)()
    if "bfloat16" in str(getattr(values, "dtype", "")):
        values = values.float()
    return numpy.asarray(values)


def save(figure: Figure, output: str | pathlib.Path) -> None:
    """Writes the figure; the ending names the format. The same figure gives the same SVG."""
    pyplot().rcParams["svg.hashsalt"] = "dba"
    output = pathlib.Path(output)
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)
