"""Time and memory over the sequence length, from a result of `dba bench … --json`."""

from __future__ import annotations

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any, Union

from .look import COLOURS, MARKERS, axes_or_new, pyplot

if TYPE_CHECKING:
    import numpy
    from matplotlib.axes import Axes

Report = Union[str, "os.PathLike[str]", dict[str, Any]]
_LABELS = {"time": "time, ms", "memory": "peak memory beyond the input, MB"}


def read_bench(report: Report) -> dict[str, Any]:
    """The result of `dba bench … --json`: a path is read, a dictionary is checked and returned."""
    try:
        content = report if isinstance(report, dict) else json.loads(pathlib.Path(report).read_text())
        content["results"][:0]
        content.get("machine")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
        raise ValueError(f"{report if not isinstance(report, dict) else 'report'}: no result of dba bench: {reason!r}; "
                         "`dba bench layer --json FILE` writes one") from reason
    return content


def _selected(report: Report, cache: str, dtype: str | None, what: str | None) -> list[dict[str, Any]]:
    timed = [r for r in read_bench(report)["results"] if r.get("median_ms") is not None]
    dtype = dtype or next((r.get("dtype") for r in timed), None)
    fitting = [r for r in timed if r.get("cache", "warm") == cache and r.get("dtype") == dtype
               and (what is None or r["pass"] == what)]
    if not fitting:
        passes, types = sorted({r["pass"] for r in timed}), sorted({str(r.get("dtype")) for r in timed})
        raise ValueError(f"dba.figures: no figure with a time fits what (--pass) {what!r}, cache {cache!r} and dtype "
                         f"{dtype!r}; the report has the passes {passes} and the dtypes {types}")
    return fitting


def _method(result: dict[str, Any]) -> str:
    return f"{result['method']}:{result['form']}" if result.get("form") else result["method"]


def over_length(report: Report, value: str = "time", what: str = "forward", cache: str = "warm",
                dtype: str | None = None, ax: Axes | None = None) -> Axes:
    """Draws one line per method over the tokens of a sequence, both axes logarithmic.

    report: a file written by `dba bench … --json`, or its content.
    value: "time" (median, with the middle half of the samples as a band) or "memory" (peak beyond the input).
    what: the pass: "forward", "forward+backward" or "step".
    cache: "warm" or "cold". dtype: one of those measured; default the first.
    """
    if value not in _LABELS:
        raise ValueError(f"dba.figures.over_length: value must be one of {tuple(_LABELS)}, got {value!r}")
    results = _selected(report, cache, dtype, what)
    ax = axes_or_new(ax)
    _draw(ax, results, value, list(dict.fromkeys(map(_method, results))))
    ax.set_xlabel("tokens in a sequence")
    ax.set_ylabel(_LABELS[value])
    ax.legend(fontsize="small")
    return ax


def _draw(ax: Axes, results: list[dict[str, Any]], value: str, methods: list[str]) -> None:
    from matplotlib import ticker

    for index, method in enumerate(methods):
        points = sorted((r for r in results if _method(r) == method), key=lambda r: r["length"])
        look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "markersize": 4,
                "label": method}
        if value == "memory":
            points = [point for point in points if point.get("peak_bytes")]
            ax.plot([point["length"] for point in points], [point["peak_bytes"] / 1e6 for point in points], **look)
        else:
            lengths = [point["length"] for point in points]
            ax.plot(lengths, [point["median_ms"] for point in points], **look)
            ax.fill_between(lengths, [point["q1_ms"] for point in points], [point["q3_ms"] for point in points],
                            color=look["color"], alpha=0.2, linewidth=0)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:,.0f}"))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:g}"))
    ax.yaxis.set_minor_formatter(ticker.LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.7)))
    ax.grid(True, which="major", alpha=0.3)


def bench_panels(report: Report, what: str | None = None, cache: str = "warm",
                 dtype: str | None = None) -> numpy.ndarray:
    """Draws time above and memory below, one column per pass, on a new figure. Returns its axes, (2, passes)."""
    report = read_bench(report)
    results = _selected(report, cache, dtype, what)
    passes = list(dict.fromkeys(result["pass"] for result in results))
    methods = list(dict.fromkeys(map(_method, results)))
    figure, axes = pyplot().subplots(2, len(passes), figsize=(5.2 * len(passes), 7.6), sharex=True, squeeze=False,
                                     layout="constrained")
    for column, name in enumerate(passes):
        for row, value in enumerate(_LABELS):
            _draw(axes[row][column], [r for r in results if r["pass"] == name], value, methods)
        axes[0][column].set_title(name)
        axes[1][column].set_xlabel("tokens in a sequence")
    for row, value in enumerate(_LABELS):
        axes[row][0].set_ylabel(_LABELS[value])
    axes[0][0].legend(fontsize="small")
    machine = report.get("machine") or {}
    where = machine.get("GPU") or machine.get("CPU") or machine.get("device") or ""
    dtype = results[0].get("dtype") or report.get("settings", {}).get("dtype", "")
    figure.suptitle(f"{report.get('kind', 'layer')}, {dtype}\n{where}", fontsize="small")
    return axes
