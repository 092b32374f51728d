"""The program `dba`, small runs of it and data for them, for the tests that use it as a person does."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
SMALL = ["model.d=16", "model.heads=2", "model.layers=2", "model.d_ffn=16", "model.d_p=4", "model.d_in=8",
         "batch.size=8", "data.format=listops", "data.tokeniser=whitespace", "optimiser.lr=0.01", "threads=1",
         "device=cpu", "train.log_every=5", "train.evaluate_every=20", "train.checkpoint_every=7", "schedule.name=constant", "schedule.warmup=0"]


def dba(*arguments, check=True, **options):
    result = subprocess.run([DBA, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


def settings(*values):
    return [word for value in values for word in ("--set", value)]


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listops")
    dba("generate", "listops", "--out", folder, "--train", 300, "--validation", 60, "--test", 60, "--min-length", 4,
        "--max-length", 20, "--max-depth", 3, "--max-args", 4, "--quiet")
    return folder


def train_arguments(listops, run, *more):
    paths = [f"data.train={listops}/basic_train.tsv", f"data.validation={listops}/basic_val.tsv",
             f"data.test={listops}/basic_test.tsv"]
    return ["train", "--run", run, *settings(*SMALL, *paths, *more)]


@pytest.fixture(scope="module")
def whole(listops, tmp_path_factory):
    """A run of 60 updates that nobody disturbed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    dba(*train_arguments(listops, run, "train.updates=60"))
    return run


def metrics(run):
    return (run / "metrics.jsonl").read_text()


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
