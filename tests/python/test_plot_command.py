"""`dba plot`: pictures of runs, results and measurements as files."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
from figure_files import ROOT, bench_report, closed_figures, run, write_result, write_ts  # noqa: F401

import dba
from dba import figures

DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))


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
