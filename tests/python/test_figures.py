"""The figures: what they draw of runs, measurements, predictions and attention weights, and `dba plot`."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))
matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib")
matplotlib.use("Agg")

import torch  # noqa: E402
from matplotlib import pyplot  # noqa: E402

import dba  # noqa: E402
import dba.figures.look  # noqa: E402
from dba import figures  # noqa: E402

DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))


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


def points(line):
    return [tuple(map(float, point)) for point in line.get_xydata()]


def test_learning_curves_hold_the_numbers_of_every_run(run, tmp_path):
    second = write_run(tmp_path / "second", [0.1, 0.9])
    axes = figures.learning_curves([run, second])
    lines = {line.get_label(): points(line) for line in axes.lines}
    assert lines == {
        "first, train": [(10, 0.2), (20, 0.4), (30, 0.6)],
        "first, validation": [(10, 0.1), (20, 0.2), (30, 0.3)],
        "second, train": [(10, 0.1), (20, 0.9)],
        "second, validation": [(10, 0.05), (20, 0.45)],
    }
    assert axes.lines[0].get_color() == axes.lines[1].get_color() != axes.lines[2].get_color()
    assert axes.get_xlabel() == "update" and axes.get_ylabel() == "accuracy"
    own = pyplot.subplots()[1]
    assert figures.learning_curves(run, "loss", parts=["validation"], ax=own) is own
    assert points(own.lines[0]) == [(10, 2.0), (20, 1.0), (30, pytest.approx(2 / 3))]


def test_learning_curves_of_a_crashed_run_and_errors(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "pa')
    assert len(figures.learning_curves(run).lines) == 2
    with pytest.raises(ValueError, match="beauty.*macro_f1"):
        figures.learning_curves(run, "beauty")
    with pytest.raises(FileNotFoundError, match="dba train"):
        figures.learning_curves(run / "nowhere")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "part": "train"}\n')
    with pytest.raises(ValueError, match="metrics.jsonl:1"):
        figures.read_metrics(run)


def test_time_and_memory_over_length(tmp_path):
    report = bench_report()
    axes = figures.over_length(report)
    lines = {line.get_label(): points(line) for line in axes.lines}
    assert [length for length, _ in lines["dba"]] == [64, 256, 1024]
    assert lines["softmax"][-1] == (1024, pytest.approx(1e-3 * 1024**2))
    assert axes.get_xscale() == axes.get_yscale() == "log"
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(1.2e-3 * 1024**2)
    memory = figures.over_length(report, "memory", "forward+backward")
    assert points(memory.lines[0])[0] == (64, pytest.approx(0.064))
    path = tmp_path / "layer.json"
    path.write_text(json.dumps(report))
    panels = figures.bench_panels(path)
    assert panels.shape == (2, 2) and panels[0][1].get_title() == "forward+backward"
    assert figures.bench_panels(path, "forward").shape == (2, 1)
    for wrong, match in (({"what": "sideways"}, "forward"), ({"dtype": "int4"}, "float32"), ({"cache": "cold"}, "cold"),
                         ({"value": "beauty"}, "memory")):
        with pytest.raises(ValueError, match=match):
            figures.over_length(report, **wrong)
    path.write_text("{}")
    with pytest.raises(ValueError, match="dba bench layer --json"):
        figures.bench_panels(path)


def cells(axes):
    return {text.get_position()[::-1]: text.get_text() for text in axes.texts}


def write_result(folder, task, method, seed=1, variant="", lift=0.0):
    """A file as `dba reproduce` leaves it, as far as figures read it."""
    curves = {"train": {"step": [10, 20, 30], "loss": [2.0, 1.0, 0.5 + lift], "accuracy": [0.1, 0.2, 0.3]},
              "validation": {"step": [15, 30], "loss": [1.8, 1.6], "accuracy": [0.25 + lift, 0.5 + lift]}}
    result = {"task": task, "method": method, "variant": variant, "seed": seed, "curves": curves}
    folder.mkdir(exist_ok=True)
    (folder / f"{task}-{method}-{variant}-{seed}.json").write_text(json.dumps(result))


def test_lra_curves_hold_the_numbers_of_every_result(tmp_path):
    folder = tmp_path / "lra"
    write_result(folder, "image", "dba")
    write_result(folder, "image", "dba", seed=2, lift=0.125)
    write_result(folder, "image", "softmax")
    write_result(folder, "listops", "softmax")
    write_result(folder, "image", "dba", variant="short", lift=0.25)
    axes = figures.lra_curves(folder)
    assert axes.shape == (2, 3)
    assert [row[0].get_title(loc="left") for row in axes] == ["ListOps", "Image"]
    loss, accuracy, against = axes[1]
    assert [points(line) for line in loss.lines] == [[(10, 2), (20, 1), (30, 0.5)], [(10, 2), (20, 1), (30, 0.625)],
                                                     [(10, 2), (20, 1), (30, 0.5)]]
    assert [points(line) for line in accuracy.lines] == [[(15, 25), (30, 50)], [(15, 37.5), (30, 62.5)],
                                                         [(15, 25), (30, 50)]]
    assert points(against.lines[0]) == [(1.5, 25), (0.5, 50)]  # the loss half way between updates 10 and 20
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["dba, 2 seeds", "softmax"]
    assert loss.lines[0].get_color() == loss.lines[1].get_color() != loss.lines[2].get_color()
    short = figures.lra_curves(folder, tasks=["image"], variant="short")
    assert short.shape == (1, 3) and points(short[0][1].lines[0]) == [(15, 50), (30, 75)]
    with pytest.raises(ValueError, match="text.*holds.*'listops', 'softmax'"):
        figures.lra_curves(folder, tasks=["text"])
    (folder / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="broken.json"):
        figures.lra_curves(folder)
    with pytest.raises(FileNotFoundError, match="dba reproduce lra"):
        figures.lra_curves(tmp_path / "nowhere")


def test_confusion_matrix_of_a_run_of_labels_and_of_counts(run, tmp_path):
    axes = figures.confusion_matrix(run)
    assert cells(axes) == {(0, 0): "3", (0, 1): "1", (1, 1): "4"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog"]
    assert numpy.allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 1]])
    assert "87.5%" in axes.get_title()
    assert "100.0%" in figures.confusion_matrix(run, part="validation").get_title()
    axes = figures.confusion_matrix(["b", "a", "b"], ["b", "b", "b"], share=False)
    assert cells(axes) == {(0, 1): "1", (1, 1): "2"} and axes.images[0].get_array().max() == 2
    evaluated = tmp_path / "evaluated.json"
    evaluated.write_text(json.dumps({"file": "x", "model": {"confusion": [[1, 2], [3, 4]]}}))
    axes = figures.confusion_matrix(evaluated, classes=["no", "yes"])
    assert cells(axes)[1, 0] == "3" and axes.get_yticklabels()[1].get_text() == "yes"
    assert cells(figures.confusion_matrix(torch.eye(3, dtype=torch.long)))[2, 2] == "1"
    assert not figures.confusion_matrix(numpy.eye(30, dtype=int)).texts


def test_confusion_matrix_errors(run, tmp_path):
    with pytest.raises(ValueError, match="predicted"):
        figures.confusion_matrix([1, 2, 3])
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        figures.confusion_matrix([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="2 classes"):
        figures.confusion_matrix(run, classes=["one"])
    with pytest.raises(ValueError, match="report.json"):
        figures.confusion_matrix(tmp_path / "nowhere")
    (run / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="'test'"):
        figures.confusion_matrix(run)


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(1)
    attention = dba.DBAttention(16, 2, d_p=4, d_in=8)
    with torch.no_grad():
        return attention(*3 * [torch.randn(2, 9, 16)], need_weights=True)[1]


def test_weights_of_an_attention_as_maps_and_as_images(weights):
    axes = figures.compression(weights, "w_c", sequence=1, head=0)
    drawn = axes.images[0].get_array()
    assert drawn.shape == (4, 9) and numpy.allclose(drawn, weights.w_c[1, 0], atol=1e-7)
    assert numpy.allclose(drawn.sum(1), 1, atol=1e-5)
    mean = figures.reconstruction(weights).images[0].get_array()
    assert numpy.allclose(mean, weights.w_r_prime[0].mean(0).T, atol=1e-7)
    assert numpy.allclose(mean.sum(0), 1, atol=1e-5)  # every token shares itself out
    images = figures.compression(weights, side=3, head=1)
    assert len(images) == 4
    assert numpy.allclose(images[2].images[0].get_array(), weights.w_r[0, 1, 2].view(3, 3), atol=1e-7)
    assert figures.reconstruction(weights, side=(1, 9))[0].images[0].get_array().shape == (1, 9)
    assert figures.compression(weights, length=5).images[0].get_array().shape == (4, 5)
    negative = figures.compression(-weights.w_r, head=0).images[0]
    assert negative.norm.vmin == -negative.norm.vmax < 0


def test_weights_errors(weights):
    with pytest.raises(ValueError, match="reconstruction"):
        figures.compression(weights, "w_r_prime")
    with pytest.raises(ValueError, match="need_weights"):
        figures.reconstruction({})
    with pytest.raises(ValueError, match="9 pixels"):
        figures.compression(weights, side=2)
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        figures.compression(weights, head=2)
    with pytest.raises(ValueError, match="B, H, d_p, n"):
        figures.compression(torch.ones(3, 3))
    with pytest.raises(ValueError, match="ax"):
        figures.compression(weights, side=3, ax=pyplot.subplots()[1])


def test_the_same_figure_gives_the_same_svg(run, tmp_path):
    for name in ("a.svg", "b.svg"):
        dba.figures.look.save(figures.confusion_matrix(run).figure, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def plot(*words, check=True, **environment):
    """`dba plot` through the program in C++."""
    if not DBA.is_file():
        pytest.skip(f"{DBA} has not been built")
    paths = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run([DBA, "plot", *map(str, words)], capture_output=True, text=True, timeout=120,
                            env={**os.environ, "PYTHONPATH": paths, "DBA_PYTHON": sys.executable, **environment})
    assert not check or result.returncode == 0, result.stderr
    return result


def test_plot_command_writes_pictures(run, tmp_path):
    from dba.figures.program import main

    assert main(["curves", str(run), "--metric", "loss"]) == 0
    assert "<svg" in (run / "curves-loss.svg").read_text()
    assert main(["confusion", str(run), "--output", str(tmp_path / "c.png")]) == 0
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    bench = tmp_path / "layer.json"
    bench.write_text(json.dumps(bench_report()))
    assert main(["lengths", str(bench), "--pass", "forward"]) == 0
    assert (tmp_path / "layer.svg").is_file()


def test_plot_lra_chooses_tasks_and_methods(tmp_path):
    from dba.figures.program import main

    write_result(tmp_path / "lra", "image", "dba")
    write_result(tmp_path / "lra", "image", "softmax")
    assert main(["lra", str(tmp_path / "lra"), "--tasks", "image", "--methods", "softmax"]) == 0
    picture = (tmp_path / "lra" / "curves.svg").read_text()
    assert "<!-- softmax -->" in picture and "<!-- dba -->" not in picture


def test_plot_command_answers_with_sentences(run, capsys):
    from dba.figures.program import main

    assert main(["curves", str(run / "nowhere")]) == 1
    assert main(["confusion", str(run), "--output", "/proc/c.svg"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("dba plot: ") == 2 and "/proc/c.svg" in errors and "Traceback" not in errors
    with pytest.raises(SystemExit) as usage:
        main(["sideways"])
    assert usage.value.code == 2


def test_program_hands_plot_to_python_and_says_what_is_missing(run, tmp_path):
    module = subprocess.run([sys.executable, "-m", "dba", "plot", "confusion", run, "--output", tmp_path / "c.svg"],
                            capture_output=True, text=True, timeout=120, cwd=ROOT / "python")
    assert module.returncode == 0 and (tmp_path / "c.svg").is_file(), module.stderr
    missing = plot("curves", run, check=False, DBA_PYTHON="/nowhere/python3")
    assert missing.returncode == 1 and "/nowhere/python3" in missing.stderr
    bare = tmp_path / "python3"  # a Python that knows no packages
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    without = plot("curves", run, check=False, DBA_PYTHON=str(bare))
    assert without.returncode == 1 and "pip install" in without.stderr and "Traceback" not in without.stderr


def test_plot_draws_the_weights_of_a_trained_run(tmp_path, capsys):
    from dba.figures.program import main

    if not DBA.is_file():
        pytest.skip(f"{DBA} has not been built")
    images = tmp_path / "images.jsonl"
    rows = [{"pixels": [(7 * i + 31 * p) % 256 for p in range(16)], "label": i % 2} for i in range(12)]
    images.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["model.d=16", "model.heads=2", "model.layers=2", "model.d_ffn=16", "model.d_p=4", "model.d_in=8",
                "batch.size=4", f"data.train={images}", "threads=1", "device=cpu", "train.updates=2",
                "schedule.warmup=1", "data.tokeniser=integer"]
    trained = subprocess.run([DBA, "train", "--quiet", "--run", tmp_path / "run",
                              *[word for setting in settings for word in ("--set", setting)]], capture_output=True,
                             text=True, timeout=120)
    assert trained.returncode == 0, trained.stderr
    picture = tmp_path / "weights.svg"
    result = plot("weights", tmp_path / "run", "--input", images, "--index", 3, "--layer", 1, "--side", 4, "--which",
                  "w_r_prime", "--output", picture)
    assert result.stdout.strip() == str(picture) and picture.read_text().count("<image") >= 4
    assert main(["weights", str(tmp_path / "run"), "--input", str(images), "--layer", "2"]) == 1
    assert main(["weights", str(tmp_path / "run"), "--input", str(images), "--index", "12"]) == 1
    errors = capsys.readouterr().err
    assert "layer must lie in [0, 2)" in errors and "--index 12" in errors


def efficiency_report():
    cells = []
    for method, speed, memory in (("softmax:math", 1.0, 1.0), ("softmax", 2.0, 0.5), ("dba", 6.0, 0.1),
                                  ("dba:released", 7.0, 0.1), ("flowformer", 3.0, 0.2), ("luna", 5.0, 0.125)):
        for length in (512, 4096):
            cells.append({"method": method, "length": length, "pass": "training", "status": "ok",
                          "speed_vs_unfused": speed, "memory_vs_unfused": memory, "speed_vs_fused": speed / 2,
                          "memory_vs_fused": 2 * memory})
    cells.append({"method": "yoso", "length": 512, "pass": "training", "status": "skipped", "reason": "too long"})
    return {"dba_efficiency": 1, "machine": {"GPU": "a GPU"}, "device": "cuda", "dtype": "autocast", "batch": 32,
            "lra_average": {"source": "paper",
                            "percent": {"softmax": 58.57, "dba": 62.21, "luna": 61.46, "yoso": 59.2}},
            "cells": cells}


def test_efficiency_panels_show_speed_accuracy_and_memory_as_area(tmp_path):
    (tmp_path / "cuda-autocast-batch32.json").write_text(json.dumps(efficiency_report()))
    axes = figures.efficiency_panels(tmp_path)
    assert [ax.get_title() for ax in axes] == ["512 tokens", "4,096 tokens"]
    drawn = {text.get_text(): text.xy for text in axes[0].texts}
    # Without an average (Flowformer), beside the yardstick (fused softmax), as a variant or unmeasured: left out.
    assert drawn == {"softmax:math": (1.0, 58.57), "dba": (6.0, 62.21), "luna": (5.0, 61.46)}
    areas = [collection.get_sizes()[0] for collection in axes[0].collections]
    assert areas[1] / areas[0] == pytest.approx(0.1) and areas[2] / areas[0] == pytest.approx(0.125)
    assert "of the paper" in axes[0].get_ylabel() and "a GPU" in axes[0].figure.get_suptitle()
    fused = figures.efficiency_panels(tmp_path, [4096], baseline="fused")
    assert {text.get_text(): text.xy[0] for text in fused[0].texts} == {"softmax": 1.0, "dba": 3.0, "luna": 2.5}
    with pytest.raises(ValueError, match=r"length 99 .* the lengths \[512, 4096\]"):
        figures.efficiency_panels(tmp_path, [99])
    with pytest.raises(FileNotFoundError, match="dba reproduce efficiency"):
        figures.read_efficiency(tmp_path / "..")
    (tmp_path / "cuda-autocast-batch32.json").write_text("{}")
    with pytest.raises(ValueError, match="no result of dba reproduce efficiency"):
        figures.read_efficiency(tmp_path)


def write_ts(path, series, labels):
    """A file of the UEA archive: every channel's values separated by commas, channels and label by colons."""
    lines = ["# made here", "@problemName waves", "@univariate false", "@equalLength false",
             "@classLabel true " + " ".join(sorted(set(labels))), "@data"]
    for one, label in zip(series, labels):
        channels = [",".join("?" if numpy.isnan(value) else f"{value:g}" for value in channel) for channel in one.T]
        lines.append(":".join([*channels, label]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_mean_series_leave_out_what_is_missing(tmp_path):
    nan = float("nan")
    series = [numpy.array([[1, 10], [3, 20], [5, nan]]), numpy.array([[3, 30]]), numpy.array([[7, 7]])]
    read, labels = figures.read_ts(write_ts(tmp_path / "a.ts", series, ["up", "up", "down"]))
    assert labels == ["up", "up", "down"] and read[0].shape == (3, 2)
    means = figures.mean_series(read, labels)
    numpy.testing.assert_allclose(means["up"], [[2, 20], [3, 20], [5, nan]])
    numpy.testing.assert_allclose(means["down"], [[7, 7]])
    (tmp_path / "b.ts").write_text("@classLabel true a\n@data\n1,two:a\n")
    with pytest.raises(ValueError, match="b.ts:3.*dba data check"):
        figures.read_ts(tmp_path / "b.ts")
    (tmp_path / "c.ts").write_text("@classLabel false\n@data\n1,2:3,4\n")
    assert figures.read_ts(tmp_path / "c.ts")[1] == [""]


def test_plot_uea_draws_means_confusion_and_compression(tmp_path, capsys):
    from dba.figures.program import main

    if not DBA.is_file():
        pytest.skip(f"{DBA} has not been built")
    steps = numpy.arange(12)
    labels = ["a", "b"] * 10
    waves = [numpy.stack([numpy.sin(0.3 * (1 + (label == "b")) * (steps[: 8 + i % 5] + i)), numpy.ones(8 + i % 5)], 1)
             for i, label in enumerate(labels)]
    train, test = write_ts(tmp_path / "train.ts", waves, labels), write_ts(tmp_path / "test.ts", waves, labels)
    settings = ["model.d=16", "model.heads=2", "model.layers=2", "model.d_ffn=16", "model.d_p=4", "model.d_in=8",
                "model.form=released", "model.z_update=replace", "model.pooling=flatten", "batch.size=4",
                f"data.train={train}", f"data.test={test}", "threads=1", "device=cpu", "train.updates=2",
                "schedule.warmup=1"]
    for run, more in (("dba", []), ("softmax", ["model.method=softmax"])):
        trained = subprocess.run([DBA, "train", "--quiet", "--run", tmp_path / run,
                                  *[word for setting in settings + more for word in ("--set", setting)]],
                                 capture_output=True, text=True, timeout=120)
        assert trained.returncode == 0, trained.stderr
    figure = figures.series_picture(tmp_path / "dba", channels=[1, 0], examples=2, layer=1)
    drawn = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert [axes.get_title() for axes in drawn[:2]] == [f"mean series per class, channel {c}" for c in (1, 0)]
    expected = figures.mean_series(*figures.read_ts(test))
    for line in drawn[1].lines:
        numpy.testing.assert_allclose(line.get_ydata(), expected[line.get_label()][:, 0])
    report = json.loads((tmp_path / "dba" / "report.json").read_text())
    assert drawn[2].get_title().startswith(f"accuracy {report['test']['accuracy']:.1%}")
    model = dba.load(tmp_path / "dba")
    for axes, example in zip(drawn[3:], figures.read_ts(test)[0][:2], strict=True):
        weights = figures.layer_weights(model, [example], 1).w_r[0].mean(0)
        numpy.testing.assert_allclose(axes.images[0].get_array(), weights, atol=1e-6)
    assert len([axes for axes in figures.series_picture(tmp_path / "softmax").axes
                if axes.get_label() != "<colorbar>"]) == 3
    assert main(["uea", str(tmp_path / "dba"), "--channels", "1"]) == 0 and (tmp_path / "dba" / "series.svg").is_file()
    assert main(["uea", str(tmp_path / "dba"), "--channels", "2"]) == 1
    assert "channels must lie in [0, 2)" in capsys.readouterr().err
