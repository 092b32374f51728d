"""`dba plot`: pictures of runs, results and measurements as files."""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy
import pytest
import torch
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
    drawn = panels(figures.series_picture(tmp_path / "dba", channels=[2, 1], examples=2, layer=1))
    assert [axes.get_title() for axes in drawn[:2]] == [f"mean series per class, channel {c}" for c in (2, 1)]
    expected = figures.mean_series(*figures.read_ts(test))
    for line in drawn[1].lines:
        numpy.testing.assert_allclose(line.get_ydata(), expected[line.get_label()][:, 0])
    report = json.loads((tmp_path / "dba" / "report.json").read_text())
    assert drawn[2].get_title().startswith(f"accuracy {report['test']['accuracy']:.1%}")
    model = dba.load(tmp_path / "dba")
    for axes, example in zip(drawn[3:], figures.read_ts(test)[0][:2], strict=True):
        weights = figures.layer_weights(model, [example], 1).w_r[0].mean(0)
        numpy.testing.assert_allclose(axes.images[0].get_array(), weights, atol=1e-6)
    assert len(panels(figures.series_picture(tmp_path / "softmax"))) == 3
    assert main(["uea", str(tmp_path / "dba"), "--channels", "1"]) == 0 and (tmp_path / "dba" / "series.svg").is_file()
    for channel in "0", "3":
        assert main(["uea", str(tmp_path / "dba"), "--channels", channel]) == 1
        assert f"channels must lie in [1, 2], got [{channel}]; they are counted from 1" in capsys.readouterr().err

    # The report's matrix belongs to the run's test file alone.
    def matrix(**options):
        axes = panels(figures.series_picture(tmp_path / "dba", examples=0, **options))[-1]
        return counts_of(axes), axes.figure.get_suptitle()

    asked = counts_of(figures.confusion_matrix(labels, model.predict(figures.read_ts(test)[0]), model.labels))
    report["test"]["confusion"] = [[10, 0], [3, 7]]  # as no prediction has it
    assert asked != {(0, 0): "10", (1, 0): "3", (1, 1): "7"}
    (tmp_path / "dba" / "report.json").write_text(json.dumps(report))
    told = {(0, 0): "10", (1, 0): "3", (1, 1): "7"}
    assert matrix() == matrix(input=test) == (told, "test: dba, protocol honest")
    assert matrix(input=train) == (asked, "train: dba, protocol honest")
    shutil.copy(test, tmp_path / "elsewhere.ts")
    assert matrix(input=tmp_path / "elsewhere.ts") == (asked, "elsewhere: dba, protocol honest")
    write_ts(test, waves[:7], labels[:7])
    assert sum(map(int, matrix()[0].values())) == 7
    test.unlink()
    assert main(["uea", str(tmp_path / "dba")]) == 1
    assert "test.ts does not exist, or is no file; say with --input where it lies" in capsys.readouterr().err
    (tmp_path / "dba" / "report.json").unlink()
    assert matrix(input=train) == (asked, "train: dba")


def panels(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def counts_of(axes):
    """Row and column of a confusion matrix → the number that stands there."""
    return {text.get_position()[::-1]: text.get_text() for text in axes.texts}


def model_of_series(path, labels, **options):
    """A model of series of two channels, with random weights, in a file."""
    torch.manual_seed(0)
    config = dba.models.ModelConfig(d=16, heads=2, layers=1, d_ffn=16, d_p=4, d_in=8)
    model = dba.models.Classifier(config, len(labels), features=2, max_length=8).eval()
    tokeniser = dba.models.Tokeniser(max_length=8)
    model.encoding = dba.models.Encoding("series", labels, channels=2, tokeniser=tokeniser, **options)
    model.save(path)
    return model


def noise(count, seed=0):
    random = numpy.random.default_rng(seed)
    lengths = random.integers(3, 8, count)
    return [random.standard_normal((int(length), 2)).round(3).astype(numpy.float32) for length in lengths]


def test_plot_uea_and_weights_read_what_training_reads(tmp_path, capsys):
    """A model without a run; the same series as .ts, JSON lines and long CSV."""
    from dba.figures.program import main

    file, series, labels = tmp_path / "model.safetensors", noise(12), ["1", "2.0", "3"] * 4
    model = model_of_series(file, ["1", "2.0"])
    series[1][1, 0] = numpy.nan
    write_ts(tmp_path / "a.ts", series, labels)
    lines = [f'{{"series": {json.dumps(one.tolist())}, "label": {label}}}\n' for one, label in zip(series, labels)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    with (tmp_path / "a.csv").open("w", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["label", "case", "x", "time", "y"])
        for case, (one, label) in enumerate(zip(series, labels)):
            writer.writerows([label, case, "NA" if numpy.isnan(x) else x, 2 * time, y]
                             for time, (x, y) in enumerate(one.tolist()))
    for name in ("a.ts", "a.jsonl", "a.csv"):
        read, found = figures.read_series(tmp_path / name)
        assert found == labels and all(map(lambda *two: numpy.array_equal(*two, equal_nan=True), read, series)), name
        with pytest.warns(UserWarning, match="1 missing value in 1 of 12 series interpolated"):
            drawn = panels(figures.series_picture(file, tmp_path / name, examples=1))
            predicted = model.predict(series)
        # The model does not know the class 3: a row of its own, and no column that is ever met.
        assert [text.get_text() for text in drawn[2].get_yticklabels()] == ["1", "2.0", "3"]
        expected = counts_of(figures.confusion_matrix(labels, predicted, ["1", "2.0", "3"]))
        assert counts_of(drawn[2]) == expected and drawn[2].figure.get_suptitle() == "a: dba"
        picture = tmp_path / f"{name}.svg"
        assert main(["weights", str(file), "--input", str(tmp_path / name), "--index", "1", "--output",
                     str(picture)]) == 0
    assert (tmp_path / "a.ts.svg").read_bytes() == (tmp_path / "a.csv.svg").read_bytes()
    half, found = figures.read_series(f"{tmp_path}/a.ts@50-100%")
    assert found == labels[6:] and numpy.array_equal(half[0], series[6])
    capsys.readouterr()
    (tmp_path / "plain.csv").write_text("text,label\nwords,1\n")
    for words, sentence in ((["uea", "plain.csv"], ".ts files, JSON lines (.jsonl) and long CSV"),
                            (["weights", "plain.csv"], "series from .ts files and long CSV"),
                            (["weights", "a.ts", "--index", "12"], "--index must lie in [0, 12), got 12")):
        assert main([words[0], str(file), "--input", str(tmp_path / words[1]), *words[2:]]) == 1
        assert sentence in capsys.readouterr().err


def test_plot_uea_leaves_out_series_without_a_label_and_says_what_was_cut(tmp_path, capsys):
    from dba.figures.program import main

    file, series = tmp_path / "model.safetensors", noise(5)
    model_of_series(file, ["a", "b"])
    path = write_ts(tmp_path / "a.ts", [*series, numpy.ones((9, 2))], ["a", "b", "a", "b", "?", "a"])
    assert main(["uea", str(file), "--input", str(path), "--examples", "0", "--output", str(tmp_path / "a.svg")]) == 0
    assert "a (1 of 6 series, which have no label, left out): dba" in (tmp_path / "a.svg").read_text()
    said = "dba plot: dba.models.Classifier: 1 of 5 sequences cut: longer than the model takes\n"
    assert capsys.readouterr().err == said
    header = "@univariate false\n@dimensions 2\n@classLabel true a b\n@data\n"
    path.write_text(header + "1,2:3,4\n5,6:7,8\n")
    assert main(["uea", str(file), "--input", str(path)]) == 1
    assert "has no labels, and mean series" in capsys.readouterr().err
    path.write_text(header.replace("@dimensions 2\n", "") + "1,2,3\n")
    assert main(["uea", str(file), "--input", str(path)]) == 1
    path.write_text(header + "1,2:3,4:c\n")
    assert main(["uea", str(file), "--input", str(path)]) == 1
    errors = capsys.readouterr().err
    assert "the label 'c' is none of the 2 classes" in errors and errors.count("dba plot: ") == 2
    write_ts(path, [numpy.ones((4, 3))], ["a"])
    assert main(["uea", str(file), "--input", str(path)]) == 1
    assert "have 3 channels, those of the model 2" in capsys.readouterr().err


def test_plot_uea_names_many_classes_below_the_picture(tmp_path):
    names = [f"class {index:02}" for index in range(15)]
    model_of_series(tmp_path / "model.safetensors", names)
    path = write_ts(tmp_path / "a.ts", noise(15), names)
    path.write_text("\n".join("@classLabel true" if line.startswith("@classLabel") else line
                              for line in path.read_text().splitlines()))
    figure = figures.series_picture(tmp_path / "model.safetensors", path, examples=0)
    (key,) = figure.legends
    assert [text.get_text() for text in key.get_texts()] == names and figure.axes[0].get_legend() is None
    assert len({(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines[:14]}) == 14
