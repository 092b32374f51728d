"""Files that figures are drawn of, for the tests of both ways to them; matplotlib draws into memory."""

import json
import pathlib
import sys

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))
matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


def write_run(folder, accuracies):
    """A run's folder as `dba train` leaves it, as far as figures read it."""
    folder.mkdir()
    lines = []
    for step, accuracy in enumerate(accuracies, start=1):
        lines.append({"step": 10 * step, "part": "train", "epoch": 1, "loss": 1 / step, "accuracy": accuracy})
        lines.append({"step": 10 * step, "part": "validation", "epoch": 1, "loss": 2 / step, "accuracy": accuracy / 2,
                      "macro_f1": 0.25})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = {"classes": ["cat", "dog"], "test": {"confusion": [[3, 1], [0, 4]]},
              "validation": {"confusion": [[5, 0], [0, 5]]}}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "first", [0.2, 0.4, 0.6])


def bench_report():
    results = []
    for method, slope in (("softmax", 2.0), ("dba", 1.0)):
        for what in ("forward", "forward+backward"):
            for length in (256, 64, 1024):
                time = 1e-3 * length**slope
                results.append({"method": method, "pass": what, "cache": "warm", "dtype": "float32", "length": length,
                                "median_ms": time, "q1_ms": 0.9 * time, "q3_ms": 1.2 * time,
                                "peak_bytes": 1000 * length})
    results.append({"method": "dba", "pass": "forward", "cache": "warm", "dtype": "float32", "length": 4096,
                    "median_ms": None})
    return {"dba_bench": 1, "kind": "layer", "machine": {"CPU": "a processor"}, "results": results}


def write_result(folder, task, method, seed=1, variant="", lift=0.0):
    """A file as `dba reproduce` leaves it, as far as figures read it."""
    curves = {"train": {"step": [10, 20, 30], "loss": [2.0, 1.0, 0.5 + lift], "accuracy": [0.1, 0.2, 0.3]},
              "validation": {"step": [15, 30], "loss": [1.8, 1.6], "accuracy": [0.25 + lift, 0.5 + lift]}}
    result = {"task": task, "method": method, "variant": variant, "seed": seed, "curves": curves}
    folder.mkdir(exist_ok=True)
    (folder / f"{task}-{method}-{variant}-{seed}.json").write_text(json.dumps(result))


def write_ts(path, series, labels):
    """A file of the UEA archive: every channel's values separated by commas, channels and label by colons."""
    lines = ["# made here", "@problemName waves", "@univariate false", "@equalLength false",
             "@classLabel true " + " ".join(sorted(set(labels))), "@data"]
    for one, label in zip(series, labels):
        channels = [",".join("?" if numpy.isnan(value) else f"{value:g}" for value in channel) for channel in one.T]
        lines.append(":".join([*channels, label]))
    path.write_text("\n".join(lines) + "\n")
    return path
