"""Time series end to end: .ts and long CSV files, with and without labels, and the same arrays from Python."""

import csv
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

import dba  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
SMALL = ["model.d=16", "model.heads=2", "model.layers=1", "model.d_ffn=16", "model.d_p=4", "model.d_in=8",
         "batch.size=8", "optimiser.lr=0.01", "train.epochs=8", "threads=1", "device=cpu"]
LABELS = ["high", "Low"]


def program(*arguments, check=True):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


def cases(count, longest, seed):
    """Arrays (time, 3) float32 and labels: the mean of channel 0 is the class, channel 1 has missing values, channel 2
    is 7 everywhere. The first case is the longest, and says nothing of channel 1."""
    random = numpy.random.default_rng(seed)
    series = []
    for index in range(count):
        steps = longest if index == 0 else int(random.integers(3, longest + 1))
        one = random.standard_normal((steps, 3)).round(4)
        one[:, 0] += 20 - 4 * (index % 2)
        one[:, 1] += 100
        one[random.random(steps) < 0.2, 1] = numpy.nan
        one[:, 2] = 7
        series.append(one.astype(numpy.float32))
    series[0][:, 1] = numpy.nan
    return series, [LABELS[index % 2] for index in range(count)]


def text_of(value):
    return "?" if numpy.isnan(value) else repr(float(value))


def write_ts(path, series, labels=None):
    header = "# made here\r\n@problemName Made\r\n@univariate false\r\n@dimensions 3\r\n@equalLength false\r\n"
    header += "@classLabel true high low\r\n" if labels else "@classLabel false\r\n"
    rows = [":".join(",".join(map(text_of, channel)) for channel in one.T) for one in series]
    if labels:
        rows = [f"{row}:{label}" for row, label in zip(rows, labels, strict=True)]
    path.write_bytes((header + "@data\r\n" + "\r\n".join(rows)).encode())


def write_long(path, series, labels):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["case", "time", "a", "b", "c", "label"])
        for index, (one, label) in enumerate(zip(series, labels, strict=True)):
            table.writerows([[index, step, *map(text_of, row), label.lower()] for step, row in enumerate(one)])


def train(run, *settings):
    return program("train", "--run", run, *[word for value in (*SMALL, *settings) for word in ("--set", value)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the files, the run and the arrays of either part."""
    folder = tmp_path_factory.mktemp("series")
    parts = {"TRAIN": cases(40, 12, 0), "TEST": cases(20, 15, 1)}
    for part, (series, labels) in parts.items():
        write_ts(folder / f"Made_{part}.ts", series, labels)
    write_ts(folder / "new.ts", parts["TEST"][0])
    train(folder / "run", f"data.train={folder}/Made_TRAIN.ts", f"data.test={folder}/Made_TEST.ts")
    return folder, parts


def test_report_counts_what_was_cut_and_put_right(made):
    folder, parts = made
    report = json.loads((folder / "run" / "report.json").read_text())
    repairs = report["repairs"]
    missing = {part: sum(int(numpy.isnan(one).sum()) for one in series) for part, (series, _) in parts.items()}
    assert repairs["training"]["missing_values_interpolated"] == missing["TRAIN"] > 0
    assert repairs["test"]["missing_values_interpolated"] == missing["TEST"] > 0
    assert repairs["training"]["constant_channels"] == [3]
    assert repairs["training"]["channels_without_values"] >= 1
    longer = sum(len(one) > 12 for one in parts["TEST"][0])
    assert repairs["test"]["sequences_cut"] == longer > 0 and repairs["training"]["sequences_cut"] == 0
    assert report["classes"] == ["high", "low"] and report["test"]["accuracy"] > 0.8
    evaluated = json.loads(program("evaluate", folder / "run", "--json", "--device", "cpu").stdout)
    assert evaluated["model"]["accuracy"] == report["test"]["accuracy"]
    compared = program("evaluate", folder / "run", "--baselines", "--device", "cpu").stdout
    assert "logistic regression on means and mean squares of the channels" in compared and "tokens" not in compared


def test_files_without_labels_and_arrays_are_classified_alike(made):
    folder, parts = made
    tables = []
    for name in ("new.ts", "Made_TEST.ts"):
        program("predict", folder / "run", "--input", folder / name, "--output", folder / "out.csv", "--device", "cpu")
        tables.append(list(csv.DictReader((folder / "out.csv").open())))
    assert tables[0] == tables[1] and len(tables[0]) == 20
    model = dba.load(folder / "run")
    series, labels = parts["TEST"]
    assert model.predict(series) == [row["label"] for row in tables[0]]
    expected = [[float(row["p(high)"]), float(row["p(low)"])] for row in tables[0]]
    assert numpy.allclose(model.predict_proba(series).numpy(), expected, atol=1e-5)
    assert numpy.mean([label.lower() == row["label"] for label, row in zip(labels, tables[0], strict=True)]) > 0.8


def test_long_tables_give_the_same_run_bit_by_bit(made):
    folder, parts = made
    for part, (series, labels) in parts.items():
        write_long(folder / f"made_{part}.csv", series, labels)
    train(folder / "long", f"data.train={folder}/made_TRAIN.csv", f"data.test={folder}/made_TEST.csv")
    assert (folder / "long" / "metrics.jsonl").read_text() == (folder / "run" / "metrics.jsonl").read_text()


def test_flatten_pooling_is_as_long_as_the_longest_of_training_and_100_epochs_are_the_default(made):
    folder, _ = made
    files = [f"data.train={folder}/Made_TRAIN.ts", f"data.test={folder}/Made_TEST.ts"]
    said = train(folder / "flat", *files, "model.pooling=flatten", "model.head=linear", "batch.size=64",
                 "train.epochs=0").stderr
    assert "schedule.warmup is 100, the whole run 100 updates: the warm-up takes 25 of them" in said
    report = json.loads((folder / "flat" / "report.json").read_text())
    assert report["repairs"]["test"]["sequences_cut"] > 0 and report["updates"] == 100
    assert dba.load(folder / "flat").state_dict()["head.linear.weight"].shape[1] == 12 * 16


def test_estimator_standardises_as_the_program_does(made):
    pytest.importorskip("sklearn", reason="DBAClassifier needs scikit-learn")
    from dba.models.encoding import fill_missing
    from dba.sklearn.series import Standardiser

    folder, parts = made
    encoding = dba.load(folder / "run").known_encoding()
    standardise = Standardiser(parts["TRAIN"][0])
    assert numpy.allclose(standardise.mean, encoding.mean, rtol=1e-12, atol=0)
    known = [fill_missing(one)[:, 1] for one in parts["TRAIN"][0][1:]]  # the first says nothing of channel 1
    assert encoding.mean[1] == pytest.approx(numpy.concatenate(known).astype(float).mean(), rel=1e-12)
    assert (encoding.batch(parts["TRAIN"][0][:1])[0][:, 1] == 0).all()
    varying = numpy.array(encoding.deviation) > 0
    assert varying.tolist() == [True, True, False]
    assert numpy.allclose(standardise.deviation[varying], numpy.array(encoding.deviation)[varying], rtol=1e-12, atol=0)
    short = [one[:12] for one in parts["TEST"][0]]
    rows, _ = encoding.batch(short)
    assert numpy.allclose(numpy.concatenate(standardise(short)), rows.numpy(), rtol=1e-6, atol=1e-7)


def test_arrays_of_one_channel_may_be_flat_and_empty_ones_are_refused():
    encoding = dba.models.Encoding("series", ["a", "b"], channels=1)
    flat, sequences = encoding.batch([[1.0, float("nan"), 3.0], numpy.array([4.0])])
    assert flat.tolist() == [[1], [2], [3], [4]] and sequences.end.tolist() == [3, 4]
    for bad in (numpy.zeros((0, 1)), [], numpy.zeros((3, 2))):
        with pytest.raises(ValueError, match=r"shape \(time, 1\) and at least one time step"):
            encoding.batch([bad])


def test_listed_classes_without_examples_are_told_and_reported(made, tmp_path):
    folder, _ = made
    file = tmp_path / "more.ts"
    file.write_text((folder / "Made_TRAIN.ts").read_text().replace("true high low", "true high low middle"))
    sentence = 'has no example of the class "middle", which its header lists'
    result = train(tmp_path / "run", f"data.train={file}", "train.epochs=1")
    assert f"warning: the training file {sentence}" in result.stderr
    repairs = {run: json.loads((run / "report.json").read_text())["repairs"]["training"]
               for run in (folder / "run", tmp_path / "run")}
    assert [one["classes_without_examples"] for one in repairs.values()] == [[], ["middle"]]
    check = program("data", "check", file, check=False)
    assert check.returncode == 1 and f"note: more.ts {sentence}" in check.stdout


def test_what_is_no_label_is_not_dropped_as_one(made, tmp_path):
    folder, parts = made
    file = tmp_path / "new.ts"
    write_ts(file, parts["TEST"][0], ["1,2"] * 20)
    result = program("predict", folder / "run", "--input", file, check=False)
    assert result.returncode == 1 and "new.ts:8: column" in result.stderr and "dimension 4 has 2 values" in result.stderr


def test_bad_rows_stop_training_and_are_listed_with_line_and_column(made, tmp_path):
    folder, _ = made
    bad = tmp_path / "bad.ts"
    rows = {"1,2:3,4:low": "column 8: the row has 2 dimensions, the header promises 3",
            "1,2:3,4:5,6:middle": 'column 13: the label "middle" is none of the 2 classes',
            "1,2:3,x:5,6:low": 'column 7: expected a number, found "x"'}
    bad.write_text((folder / "Made_TRAIN.ts").read_text() + "\n" + "\n".join(rows))
    sentences = [f"{bad}:{line}: {sentence}" for line, sentence in enumerate(rows.values(), 48)]
    result = program("train", "--run", tmp_path / "run", "--set", f"data.train={bad}", check=False)
    assert result.returncode == 1 and sentences[0] in result.stderr
    check = program("data", "check", bad, check=False)
    assert check.returncode == 1 and all(sentence in check.stdout for sentence in sentences)
    assert "constant channels, which standardising brings to 0: 3" in check.stdout
