"""The program `dba` trains: runs, kills and resumes them, tunes them further, keeps to its protocols."""

import json
import random
import shutil
import signal
import statistics
import subprocess
import time

import pytest
import safetensors.torch
import torch
from small_runs import DBA, dba, listops, metrics, train_arguments, whole  # noqa: F401


def last_checkpoint(run):
    """Name and bytes of the newest checkpoint; its index is left out, because it knows the time spent."""
    folder = sorted((run / "checkpoints").iterdir())[-1]
    return folder.name, {file.name: file.read_bytes() for file in sorted(folder.glob("data-*"))}


def assert_same_run(run, whole):
    assert metrics(run) == metrics(whole)
    assert last_checkpoint(run) == last_checkpoint(whole)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_run_leaves_all_that_it_promises(whole, listops):
    report = json.loads((whole / "report.json").read_text())
    assert report["protocol"] == "honest" and report["seed"] == 1 and report["updates"] == 60
    assert report["validation"]["examples"] == 60 and report["test"]["examples"] == 60
    assert sum(map(sum, report["test"]["confusion"])) == 60
    assert report["parameters"] == sum(t.numel() for t in
                                       safetensors.torch.load_file(whole / "model.safetensors").values())
    assert "as published" not in report["model_chosen_on"]
    assert list((whole / "events").iterdir())
    for shard in (whole / "checkpoints").rglob("*"):
        assert shard.is_dir() or shard.stat().st_size < 16_000_000
    again = whole.parent / "again"
    result = dba("train", "--config", whole / "config.yaml", "--run", again, "--quiet")
    assert result.stdout == "" and result.stderr == ""
    assert_same_run(again, whole)


def test_killed_and_resumed_run_equals_the_undisturbed_one(listops, tmp_path):
    """A checkpoint after every update, so that many kills hit the middle of a write."""
    more = ["train.updates=600", "train.checkpoint_every=1"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    dba(*train_arguments(listops, whole, *more))
    chance = random.Random(5)
    arguments = train_arguments(listops, run, *more)
    kills = 0
    while True:
        process = subprocess.Popen([DBA, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(timeout=0.5 + 0.6 * chance.random() + 0.05 * kills)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            assert kills < 100, "the run makes no progress"
            if (run / "config.yaml").exists():
                arguments = ["train", "--resume", run]
            continue
        assert process.returncode == 0, process.stderr.read()
        break
    assert kills >= 3, "the run was over before it could be killed"
    assert_same_run(run, whole)


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_finishes_the_update_saves_and_can_be_resumed(listops, tmp_path, number, status):
    run = tmp_path / "run"
    arguments = train_arguments(listops, run, "train.updates=100000", "train.evaluate_every=100000")
    process = subprocess.Popen([DBA, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while len(list(run.glob("checkpoints/step-*"))) < 2 and time.time() < deadline:
        time.sleep(0.05)
    refused = dba("train", "--resume", run, check=False)
    assert refused.returncode == 1 and str(process.pid) in refused.stderr
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "--resume" in errors
    steps = sorted(int(folder.name.split("-")[1]) for folder in run.glob("checkpoints/step-*"))
    config = (run / "config.yaml").read_text().replace("updates: 100000", f"updates: {steps[-1] + 3}")
    (run / "config.yaml").write_text(config)
    dba("train", "--resume", run, "--quiet")
    assert json.loads((run / "report.json").read_text())["updates"] == steps[-1] + 3


def test_the_second_seed_of_a_process_finds_nothing_of_the_first(whole, listops, tmp_path):
    own = json.loads((whole / "report.json").read_text())["seed"]
    run = tmp_path / "mine"
    told = dba(*train_arguments(listops, run, "train.updates=60"), "--seeds", f"{own + 1},{own}").stdout
    reached = [100 * json.loads((tmp_path / f"mine-seed{seed}" / "report.json").read_text())["test"]["accuracy"]
               for seed in (own, own + 1)]
    summary = f"{statistics.mean(reached):.2f} ± {statistics.stdev(reached):.2f} (2)"
    assert told.endswith(f"test accuracy, protocol honest, in percent, mean ± standard deviation (seeds): {summary}\n")
    assert_same_run(tmp_path / f"mine-seed{own}", whole)
    assert metrics(tmp_path / f"mine-seed{own + 1}") != metrics(whole)
    assert not run.exists()
    told = dba("train", "--resume", whole, "--seeds", "1", check=False)
    assert told.returncode == 2 and "--seeds" in told.stderr


def test_damaged_checkpoint_is_told_and_the_one_before_is_used(listops, tmp_path):
    run = tmp_path / "run"
    dba(*train_arguments(listops, run, "train.updates=30"))
    newest = sorted((run / "checkpoints").iterdir())[-1]
    shard = next(newest.glob("data-*"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    result = dba("train", "--resume", run)
    assert "warning" in result.stderr and newest.name in result.stderr


def test_fine_tuning_takes_weights_and_may_learn_a_new_head(whole, listops, tmp_path):
    dba(*train_arguments(listops, tmp_path / "same", "train.updates=1", "optimiser.name=sgd", "optimiser.lr=1e-30",
                         ), "--init-from", whole, "--quiet")
    before = safetensors.torch.load_file(whole / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "same" / "model.safetensors")
    assert all((before[name] == after[name]).all() for name in before)
    dba(*train_arguments(listops, tmp_path / "head", "train.updates=1", "optimiser.name=sgd", "optimiser.lr=1e-30",
                         ), "--init-from", whole, "--new-head", "--quiet")
    after = safetensors.torch.load_file(tmp_path / "head" / "model.safetensors")
    assert all((before[name] == after[name]).all() for name in before if not name.startswith("head."))
    assert any((before[name] != after[name]).any() for name in before if name.startswith("head."))


def test_fine_tuning_on_other_data_keeps_the_symbols(whole, listops, tmp_path):
    """Longer expressions with another ranking of the words; the resumed run needs the first model no more."""
    other = tmp_path / "other"
    dba("generate", "listops", "--out", other, "--train", 60, "--validation", 20, "--test", 20, "--min-length", 21,
        "--max-length", 40, "--seed", 9, "--quiet")
    first = tmp_path / "first"
    shutil.copytree(whole, first)
    run = tmp_path / "tuned"
    dba(*train_arguments(other, run, "train.updates=4", "train.checkpoint_every=2"), "--init-from", first, "--quiet")
    report = json.loads((run / "report.json").read_text())
    assert report["repairs"]["training"]["sequences_cut"] > 0  # the positions are those of the first model
    shutil.rmtree(first)
    shutil.rmtree(sorted((run / "checkpoints").iterdir())[-1])
    dba("train", "--resume", run, "--quiet")


def test_accumulated_batches_equal_one_large_batch(listops, tmp_path):
    base = ["train.updates=3", "batch.bucket=1", "model.dropout=0", "model.attention_dropout=0",
            "optimiser.name=sgd", "optimiser.lr=0.1"]
    dba(*train_arguments(listops, tmp_path / "large", *base, "batch.size=8"), "--quiet")
    dba(*train_arguments(listops, tmp_path / "parts", *base, "batch.size=4", "train.accumulate=2"), "--quiet")
    large = safetensors.torch.load_file(tmp_path / "large" / "model.safetensors")
    parts = safetensors.torch.load_file(tmp_path / "parts" / "model.safetensors")
    for name in large:
        torch.testing.assert_close(parts[name], large[name], rtol=0, atol=1e-5, msg=name)


def test_patience_class_weights_and_smoothing(listops, tmp_path):
    run = tmp_path / "run"
    dba(*train_arguments(listops, run, "train.updates=500", "train.evaluate_every=1", "train.patience=3",
                         "optimiser.name=sgd", "optimiser.lr=1e-12", "train.class_weights=balanced",
                         "train.label_smoothing=0.1", "train.metric=macro_f1", "train.clip=1"), "--quiet")
    report = json.loads((run / "report.json").read_text())
    assert report["stopped_early"] and report["updates"] == 4 and report["best_update"] == 1
    before = metrics(run)
    dba("train", "--resume", run, "--quiet")  # a run that is over stays over
    assert metrics(run) == before and json.loads((run / "report.json").read_text())["updates"] == 4


def test_as_published_protocol_says_so(listops, tmp_path):
    run = tmp_path / "run"
    result = dba(*train_arguments(listops, run, "train.updates=2", "protocol=as_published"))
    report = json.loads((run / "report.json").read_text())
    assert report["protocol"] == "as_published" and "as published" in report["model_chosen_on"]
    assert "as published" in result.stdout
    assert json.loads(dba("evaluate", run, "--json").stdout)["protocol"] == "as_published"
    assert "as_published" in dba("evaluate", run, "--quiet").stdout


def test_one_run_gives_every_protocol_and_watching_the_test_set_changes_nothing(listops, tmp_path):
    plain, watched, resumed = tmp_path / "plain", tmp_path / "watched", tmp_path / "resumed"
    more = ["train.updates=24", "train.evaluate_every=3"]
    dba(*train_arguments(listops, plain, *more), "--quiet")
    text = dba(*train_arguments(listops, watched, *more, "train.watch_test=true")).stdout
    report = json.loads((watched / "report.json").read_text())
    points = {line["step"]: line for line in map(json.loads, metrics(watched).splitlines()) if line["part"] == "test"}
    assert list(points) == list(range(3, 25, 3))
    protocols = report["protocols"]
    highest = max(point["accuracy"] for point in points.values())
    first = min(step for step, point in points.items() if point["accuracy"] == highest)
    for name, update in {"honest": report["best_update"], "last_epoch": 24, "as_published": first}.items():
        assert protocols[name]["update"] == update
        assert protocols[name]["accuracy"] == points[update]["accuracy"]
        assert sum(map(sum, protocols[name]["confusion"])) == 60
        assert name in text
    assert report["test"]["accuracy"] == protocols["honest"]["accuracy"]
    assert last_checkpoint(watched) == last_checkpoint(plain)
    alone = json.loads((plain / "report.json").read_text())
    assert list(alone["protocols"]) == ["honest"] and alone["best_update"] == report["best_update"]

    dba(*train_arguments(listops, resumed, "train.updates=12", "train.evaluate_every=3", "train.watch_test=true"),
        "--quiet")
    config = (resumed / "config.yaml").read_text()
    (resumed / "config.yaml").write_text(config.replace("updates: 12", "updates: 24"))
    dba("train", "--resume", resumed, "--quiet")
    assert json.loads((resumed / "report.json").read_text())["protocols"] == protocols
    assert metrics(resumed) == metrics(watched)


def test_last_epoch_keeps_the_last_model_of_the_whole_training_file(listops, tmp_path):
    run = tmp_path / "run"
    arguments = train_arguments(listops, run, "train.updates=6", "train.evaluate_every=2", "protocol=last_epoch",
                                "data.validation=", "data.validation_fraction=0", "train.watch_test=true")
    text = dba(*arguments).stdout
    report = json.loads((run / "report.json").read_text())
    assert report["training_examples"] == 300 and report["best_update"] == 6 and "validation" not in report
    assert set(report["protocols"]) == {"last_epoch", "as_published"}
    assert "nothing: the last model is kept" in text
    assert json.loads(dba("evaluate", run, "--json").stdout)["model"]["accuracy"] == report["test"]["accuracy"]


def test_checkpoints_by_time_alone_and_by_updates_alone(listops, tmp_path):
    for name, more in {"time": ["train.checkpoint_every=0"], "updates": ["train.checkpoint_seconds=0"]}.items():
        run = tmp_path / name
        dba(*train_arguments(listops, run, "train.updates=12", *more), "--quiet")
        assert (run / "report.json").exists()


def test_epochs_end_and_evaluate_on_their_boundaries(listops, tmp_path):
    run = tmp_path / "run"
    dba(*train_arguments(listops, run, "train.epochs=2", "train.evaluate_every=0", "batch.tokens=100"), "--quiet")
    lines = [json.loads(line) for line in metrics(run).splitlines()]
    assert [line["epoch"] for line in lines if line["part"] == "validation"] == [1, 2]
    dba(*train_arguments(listops, tmp_path / "other", "train.epochs=6", "train.evaluate_every=0",
                         "train.evaluate_epochs=4"), "--quiet")
    lines = [json.loads(line) for line in metrics(tmp_path / "other").splitlines()]
    assert [line["epoch"] for line in lines if line["part"] == "validation"] == [1, 4, 6]


def test_resume_with_another_number_of_threads_says_so(listops, tmp_path):
    run = tmp_path / "run"
    dba(*train_arguments(listops, run, "train.updates=4"), "--quiet")
    config = (run / "config.yaml").read_text()
    assert "threads: 1" in config
    (run / "config.yaml").write_text(config.replace("threads: 1", "threads: 2"))
    assert "threads" in dba("train", "--resume", run).stderr


def test_other_data_are_refused_when_a_run_goes_on(listops, tmp_path):
    run, data = tmp_path / "run", tmp_path / "train.tsv"
    lines = (listops / "basic_train.tsv").read_text().splitlines(keepends=True)
    data.write_text("".join(lines[:200]))
    dba(*train_arguments(listops, run, f"data.train={data}", "train.updates=4"), "--quiet")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("updates: 4", "updates: 6"))
    data.write_text("".join([*lines[:199], lines[200]]))
    refused = dba("train", "--resume", run, check=False)
    assert refused.returncode == 1
    assert "was made with other training data (digest" in refused.stderr and "train.init_from" in refused.stderr
    data.write_text("".join(lines[:200]))
    dba("train", "--resume", run, "--quiet")
    assert json.loads((run / "report.json").read_text())["updates"] == 6


def test_diverging_run_stops_says_when_and_keeps_a_good_checkpoint(listops, tmp_path):
    run = tmp_path / "run"
    result = dba(*train_arguments(listops, run, "train.updates=50", "optimiser.name=sgd", "optimiser.lr=1e30",
                                  "train.checkpoint_every=1"), check=False)
    assert result.returncode == 1
    assert "NaN or infinite at update" in result.stderr and "optimiser.lr" in result.stderr
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step-00000000"]
