"""`dba bench` as a person uses it, and the scripts beside it: compare, plot, gpu_table."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
LIBRARY = pathlib.Path(os.environ.get("DBA_LIBRARY", ROOT / "build" / "release" / "lib" / "libdba.so"))
SMALL = ["--d", 16, "--heads", 2, "--d-p", 4, "--d-in", 8, "--lengths", "8,32", "--tokens", 64, "--threads", 1,
         "--seconds", 0, "--repeats", 3]


def run(*command, check=True):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240,
                            env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


def bench(*arguments, check=True):
    return run(DBA, "bench", *arguments, check=check)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A small measurement: JSON and CSV files and the text."""
    folder = tmp_path_factory.mktemp("bench")
    text = bench("layer", *SMALL, "--methods", "softmax,dba,dba:released", "--cache", "both", "--json",
                 folder / "a.json", "--csv", folder / "a.csv").stdout
    return folder, text


def test_table_json_and_csv_say_the_same(result):
    folder, text = result
    report = json.loads((folder / "a.json").read_text())
    assert report["dba_bench"] == 1 and report["kind"] == "layer" and report["complete"] is True
    assert {"dba", "torch", "CPU", "threads", "memory"} <= report["machine"].keys()
    rows = list(csv.DictReader((folder / "a.csv").open()))
    assert len(rows) == len(report["results"]) == 3 * 2 * 2 * 2  # methods, lengths, passes, caches
    for row, figure in zip(rows, report["results"], strict=True):
        assert row["method"] == figure["method"] and int(row["n"]) == figure["length"]
        assert float(row["median_ms"]) == pytest.approx(figure["median_ms"], rel=1e-6)
        assert figure["status"] == "ok" and figure["q1_ms"] <= figure["median_ms"] <= figure["q3_ms"]
        assert figure["samples"] == 3 and figure["peak_bytes"] > 0 and figure["operations"] > 0
        assert figure["length"] * figure["batch"] == 64
        assert figure["checked_length"] == figure["length"]
    for figure in report["results"]:
        base = next(other for other in report["results"] if other["method"] == "softmax" and all(
            other[key] == figure[key] for key in ("length", "pass", "cache")))
        assert figure["times_faster_than"]["softmax"] == pytest.approx(base["median_ms"] / figure["median_ms"])
    for word in ("forward, warm cache", "forward+backward, cold cache", "vs softmax", "dba:released"):
        assert word in text


def test_other_kinds_and_output_to_a_pipe():
    small = [word for word in SMALL if word not in ("--tokens", 64)] + ["--batch", 2, "--depth", 2, "--d-ffn", 16]
    report = json.loads(bench("encoder", *small, "--methods", "softmax,dba", "--json", "--quiet").stdout)
    assert [figure["pass"] for figure in report["results"][:3]] == ["forward", "forward", "forward+backward"]
    result = bench("train-step", *small, "--methods", "dba", "--dtype", "float32,autocast,bfloat16", "--csv")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert {row["dtype"] for row in rows} == {"float32", "autocast", "bfloat16"}
    assert all(row["status"] == "ok" and row["pass"] == "step" and row["batch"] == "2" for row in rows)


def test_bad_words_are_answered_and_the_rest_is_measured():
    result = bench("layer", *SMALL, "--methods", "dba,shortformer,dba:sideways", "--dtype", "float32,float8",
                   "--baseline", "nobody", "--pass", "forward", check=False)
    assert result.returncode == 1
    for word in ('"shortformer"', '"sideways"', '"float8"', '"nobody"'):
        assert word in result.stderr
    assert "forward, warm cache, float32" in result.stdout and "dba" in result.stdout
    for wrong in (["--methods", "shortformer"], ["--dtype", "float8"], ["--lengths", "0"], ["--lengths", "many"],
                  ["--heads", 3], ["--batch", 2], ["--device", "abacus"], ["--cache", "lukewarm"]):
        assert bench("layer", *SMALL, *wrong, check=False).returncode == 2, wrong
    assert bench(check=False).returncode == 2
    for lengths in ("0", "-3", "eight"):
        refused = bench("layer", f"--lengths={lengths}", check=False)
        assert refused.returncode == 2
        assert f"--lengths: must be more than 0, got {lengths}" in refused.stderr + refused.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_and_missing_back_ends_are_told():
    result = bench("layer", *SMALL, "--device", "cuda", check=False)
    assert result.returncode == 1 and "no CUDA GPU" in result.stderr
    result = bench("layer", *SMALL, "--methods", "dba", "--baseline", "softmax:cudnn", "--pass", "forward",
                   check=False)
    assert result.returncode == 1 and "softmax:cudnn" in result.stderr
    assert "failed" in result.stdout and "x  " not in result.stdout


def test_length_that_does_not_fit_is_skipped_with_a_sentence():
    small = [word for word in SMALL if word not in ("--lengths", "8,32")]
    result = bench("layer", *small, "--lengths", "16,4194304", "--methods", "softmax:math", "--pass", "forward")
    assert "skipped: needs about" in result.stderr
    assert "4,194,304" in result.stdout


def test_signal_prints_what_was_measured():
    lengths = ",".join(map(str, range(8, 2000)))
    small = [str(word) for word in SMALL] + ["--lengths", lengths]
    small.remove("8,32")
    small.remove("--lengths")
    process = subprocess.Popen([DBA, "bench", "layer", *small, "--methods", "dba", "--pass", "forward"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = process.stderr.readline()  # of the progress, after the first figure
    process.send_signal(signal.SIGINT)
    text, errors = process.communicate(timeout=120)
    assert process.returncode == 130, first + errors
    assert "stopped before the end" in text and "forward, warm cache" in text


def test_compare_marks_only_what_is_no_noise(result, tmp_path):
    folder, _ = result
    report = json.loads((folder / "a.json").read_text())
    for figure in report["results"]:
        if figure["method"] == "dba":
            for key in ("q1_ms", "median_ms", "q3_ms"):
                figure[key] = figure[key] * 100
    other = tmp_path / "b.json"
    other.write_text(json.dumps(report))
    same = run(sys.executable, ROOT / "bench" / "compare", folder / "a.json", folder / "a.json")
    assert "slower" not in same.stdout and "1.000" in same.stdout
    worse = run(sys.executable, ROOT / "bench" / "compare", folder / "a.json", other, "--fail-above", 2, check=False)
    assert worse.returncode == 1
    marked = [line for line in worse.stdout.splitlines() if "slower" in line]
    assert len(marked) == 8 and all("100.000" in line and line.startswith("dba ") for line in marked)
    other.write_text("{}")
    refused = run(sys.executable, ROOT / "bench" / "compare", folder / "a.json", other, check=False)
    assert refused.returncode == 1 and "b.json" in refused.stderr


def test_plot_draws_a_line_per_method(result, tmp_path):
    pytest.importorskip("matplotlib")
    folder, _ = result
    picture = tmp_path / "picture.svg"
    run(sys.executable, ROOT / "bench" / "plot", folder / "a.json", "--output", picture)
    assert picture.read_text().count("<svg") == 1
    run(sys.executable, ROOT / "bench" / "plot", folder / "a.json", "--output", tmp_path / "p.png", "--cache", "cold")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    refused = run(sys.executable, ROOT / "bench" / "plot", folder / "a.json", "--pass", "sideways", check=False)
    assert refused.returncode == 1 and "--pass" in refused.stderr


def test_gpu_table_checks_and_times_every_column(tmp_path):
    table = tmp_path / "table.json"
    result = run(sys.executable, ROOT / "bench" / "gpu_table.py", "--device", "cpu", "--dtype", "float32", "--tokens",
                 64, "--lengths", "32", "--backward-lengths", "32", "--no-compile", "--columns",
                 "math,flash,written,two-pass,dba", "--d", 16, "--heads", 2, "--d-p", 4, "--d-in", 8, "--seconds", 0,
                 "--repeats", 3, "--library", LIBRARY, "--json", table)
    figures = json.loads(table.read_text())["results"]
    assert len(figures) == 5 * 2 * 2 and all(figure["status"] == "ok" for figure in figures), result.stderr
    assert all(figure["error"] < 1e-5 for figure in figures)
    assert all(figure["gradient_error"] < 1e-4 for figure in figures if figure["pass"] == "forward+backward")


def test_gpu_table_takes_the_library_or_its_folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from layer_table.columns import find_library

    library = tmp_path / "libdba.so"
    library.touch()
    assert find_library(library) == find_library(tmp_path) == library
    (tmp_path / "empty").mkdir()
    for wrong, told in ((tmp_path / "empty", "holds no libdba.so"), (tmp_path / "none.so", "there is no"),
                        (pathlib.Path(__file__), "is not libdba.so")):
        with pytest.raises(FileNotFoundError, match=told):
            find_library(wrong)
    refused = run(sys.executable, ROOT / "bench" / "gpu_table.py", "--device", "cpu", "--library", tmp_path / "empty",
                  check=False)
    assert refused.returncode == 2 and "holds no libdba.so" in refused.stderr


def test_help_has_examples():
    for command in ([], ["layer"], ["encoder"], ["train-step"]):
        assert "Examples:" in bench(*command, "--help").stdout
