"""The program `dba` as a person uses it: train, kill, resume, evaluate, predict, and bad input."""

import csv
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest
import safetensors.torch
import torch

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
    dba(*train_arguments(listops, run, "train.updates=60"), "--seeds", f"{own + 1},{own}")
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


def test_evaluate_and_predict_agree(whole, listops, tmp_path):
    report = json.loads((whole / "report.json").read_text())
    evaluated = json.loads(dba("evaluate", whole, "--json", "--baselines").stdout)
    assert evaluated["model"]["accuracy"] == pytest.approx(report["test"]["accuracy"], abs=1e-12)
    assert 0 < evaluated["majority_class"] < 1 and 0 < evaluated["bag_of_tokens_logistic_regression"] <= 1

    table = tmp_path / "predictions.csv"
    dba("predict", whole, "--input", listops / "basic_test.tsv", "--output", table)
    rows = list(csv.DictReader(table.open()))
    truth = [line.split("\t")[1].strip() for line in (listops / "basic_test.tsv").read_text().splitlines()[1:]]
    accuracy = sum(row["label"] == label for row, label in zip(rows, truth, strict=True)) / len(truth)
    assert accuracy == pytest.approx(report["test"]["accuracy"], abs=1e-12)
    for row in rows:
        assert sum(float(value) for key, value in row.items() if key != "label") == pytest.approx(1, abs=1e-5)

    line = json.dumps({"text": "[MAX 2 9 1 ]"}) + "\n"
    answer = json.loads(dba("predict", whole, input=line).stdout)
    assert max(answer["probabilities"], key=answer["probabilities"].get) == answer["label"]


def test_predictions_stand_in_a_file_when_all_are_made(whole, listops, tmp_path):
    good = (listops / "basic_test.tsv").read_text()
    bad = tmp_path / "bad.tsv"
    bad.write_text(good + "[MAX 1 2 ]\t2\ttoo\tmany\n")
    lines = len(good.splitlines())
    answers = tmp_path / "answers.csv"
    result = dba("predict", whole, "--input", bad, "--output", answers, check=False)
    assert result.returncode == 1 and f"bad.tsv:{lines + 1}: has 4 fields" in result.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.tsv"]
    dba("predict", whole, "--input", listops / "basic_test.tsv", "--output", answers)
    before = answers.read_bytes()
    assert before.count(b"\n") == lines
    assert dba("predict", whole, "--input", bad, "--output", answers, check=False).returncode == 1
    assert answers.read_bytes() == before
    result = dba("predict", whole, "--input", bad, "--output", tmp_path / "none" / "x.csv", check=False)
    assert result.returncode == 2 and f"there is no folder {tmp_path / 'none'}" in result.stderr
    # Standard output, devices and pipes get every batch when it is ready.
    for output in "-", "/dev/stdout":
        result = dba("predict", whole, "--input", bad, "--output", output, check=False)
        assert result.returncode == 1 and 0 < result.stdout.count("\n") < lines

    process = subprocess.Popen([DBA, "predict", whole, "--output", tmp_path / "more.jsonl"], text=True,
                               stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(json.dumps({"text": "[MAX 2 9 1 ]"}) + "\n")
    process.stdin.flush()
    deadline = time.time() + 60
    while len(list(tmp_path.iterdir())) == 2 and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "more.jsonl was not written" in errors
    assert sorted(file.name for file in tmp_path.iterdir()) == ["answers.csv", "bad.tsv"]


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


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_series_pairs_pixels_and_text_train(tmp_path):
    chance = random.Random(1)
    kinds = {
        "series": lambda y: {"series": [[y + chance.random(), chance.random()] for _ in range(chance.randint(1, 9))]},
        "pairs": lambda y: {"text1": "ab" * (1 + y), "text2": "xyz"[: 1 + chance.randint(0, 2)]},
        "pixels": lambda y: {"pixels": [[255 * y, chance.randint(0, 255)], [0, 1]]},
        "text": lambda y: {"text": "yes" * chance.randint(1, 5) if y else "no" * chance.randint(1, 5)},
    }
    for name, make in kinds.items():
        records = [make(i % 2) | {"label": ["low", "high"][i % 2]} for i in range(60)]
        data = jsonl(tmp_path / f"{name}.jsonl", records)
        test = jsonl(tmp_path / f"{name}_test.jsonl", [make(i % 2) | {"label": ["low", "high"][i % 2]} for i in range(60)])
        more = ["data.tokeniser=integer"] if name == "pixels" else []
        run = tmp_path / name
        dba("train", "--run", run, "--quiet", *settings(
            *[s for s in SMALL if not s.startswith("data.")], f"data.train={data}", f"data.test={test}",
            "train.updates=60", *more))
        report = json.loads((run / "report.json").read_text())
        assert report["validation"]["examples"] == 6 and "held out" in report["model_chosen_on"]
        if name in ("series", "text"):
            assert report["test"]["accuracy"] > 0.9
        predicted = dba("predict", run, "--input", test).stdout.splitlines()
        assert len(predicted) == 60


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


def test_a_class_missing_in_train_is_told_before_training(listops, tmp_path):
    train = jsonl(tmp_path / "train.jsonl", [{"text": "ab" * (1 + i % 2), "label": i % 2} for i in range(40)])
    test = jsonl(tmp_path / "test.jsonl", [{"text": "ab", "label": 0}, {"text": "abab", "label": 2}])
    run = tmp_path / "run"
    result = dba("train", "--run", run, *settings(*[s for s in SMALL if not s.startswith("data.")], "train.updates=5",
                                                  f"data.train={train}", f"data.test={test}"), check=False)
    assert result.returncode == 1 and not (run / "report.json").exists()
    assert "test.jsonl:2" in result.stderr and 'does not occur in the training part' in result.stderr


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


def test_diverging_run_stops_says_when_and_keeps_a_good_checkpoint(listops, tmp_path):
    run = tmp_path / "run"
    result = dba(*train_arguments(listops, run, "train.updates=50", "optimiser.name=sgd", "optimiser.lr=1e30",
                                  "train.checkpoint_every=1"), check=False)
    assert result.returncode == 1
    assert "NaN or infinite at update" in result.stderr and "optimiser.lr" in result.stderr
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step-00000000"]


@pytest.mark.parametrize("content, message", [
    ("", "no examples"),
    ('{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}\n', "class"),
    ('{"text": "a", "label": "x"}\n{"text": \n', ":2"),
    ('{"words": "a", "label": "x"}\n', ":1"),
    ('{"series": [[1, 2], [3]], "label": "x"}\n', ":1"),
])
def test_bad_training_files_are_answered_with_a_sentence(tmp_path, content, message):
    data = tmp_path / "bad.jsonl"
    data.write_text(content)
    command = ["train", "--run", tmp_path / "run",
               *settings(f"data.train={data}", *[s for s in SMALL if not s.startswith("data.")], "train.updates=1")]
    result = dba(*command, check=False)
    assert result.returncode == 1 and "bad.jsonl" in result.stderr and message in result.stderr, result.stderr
    jsonl(data, [{"text": "ab" * i, "label": i % 2} for i in range(1, 20)])
    dba(*command)  # the corrected file may use the same folder


def test_unseen_label_and_unknown_keys_are_answered_with_a_sentence(listops, tmp_path):
    train = jsonl(tmp_path / "train.jsonl", [{"text": "ab", "label": i % 2} for i in range(20)])
    test = jsonl(tmp_path / "test.jsonl", [{"text": "ab", "label": 7}])
    base = ["train", "--run", tmp_path / "run",
            *settings(*[s for s in SMALL if not s.startswith("data.")], "train.updates=1", f"data.train={train}")]
    result = dba(*base, "--set", f"data.validation={test}", check=False)
    assert result.returncode == 1 and "test.jsonl:1" in result.stderr and "7" in result.stderr
    result = dba("train", "--set", "model.head=4", "--print-config", check=False)
    assert result.returncode == 2 and "mlp" in result.stderr
    result = dba("train", "--set", "model.heds=4", "--print-config", check=False)
    assert result.returncode == 2 and "model.heads" in result.stderr
    config = tmp_path / "config.yaml"
    config.write_text("seed: 1\nmodel:\n  heds: 4\n")
    result = dba("train", "--config", config, "--run", tmp_path / "other", check=False)
    assert result.returncode == 1 and "config.yaml:3" in result.stderr and "heads" in result.stderr


def test_reviews_as_tables_train_and_doubtful_labels_are_told(tmp_path):
    def table(name, header, labels):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows([f'A "{word}" film,<br /><br />\n{word} in line {i}', labels[i % len(labels)]]
                             for i, word in enumerate(["dull", "grand"] * 10))
        return tmp_path / name

    settled = [s for s in SMALL if not s.startswith("data.")] + ["train.updates=2", "data.tokeniser=byte"]
    train = table("train.csv", ["review", "sentiment"], ["negative", "positive"])
    test = table("test.csv", ["review", "sentiment"], ["negative", "positive"])
    run = tmp_path / "run"
    result = dba("train", "--run", run, *settings(*settled, f"data.train={train}", f"data.test={test}"))
    assert "20 examples of" in result.stderr and "2 classes" in result.stderr and "warning" not in result.stderr
    assert json.loads((run / "report.json").read_text())["classes"] == ["negative", "positive"]
    answers = dba("predict", run, "--input", table("new.csv", ["text", "stars"], ["?"])).stdout
    assert answers.count("\n") == 20
    numbered = dba("evaluate", run, "--data", table("numbered.csv", ["text", "label"], [0, 1]), check=False)
    assert numbered.returncode == 1 and 'numbered.csv:2: the label "0"' in numbered.stderr
    mixed = table("mixed.csv", ["text", "label"], ["negative", "positive", "Positive"])
    result = dba("train", "--run", tmp_path / "other", *settings(*settled, f"data.train={mixed}"))
    assert 'warning: the training file has the labels "Positive" (6) and "positive" (7)' in result.stderr


def test_evaluate_reads_other_formats_and_bad_test_files_are_found_early(whole, listops, tmp_path):
    rows = [line.split("\t") for line in (listops / "basic_test.tsv").read_text().splitlines()[1:]]
    strip = str.maketrans("", "", "()")
    data = jsonl(tmp_path / "more.jsonl", [{"text": source.translate(strip), "label": int(target)}
                                           for source, target in rows])
    other = json.loads(dba("evaluate", whole, "--data", data, "--json").stdout)
    assert other["model"]["accuracy"] == json.loads(dba("evaluate", whole, "--json").stdout)["model"]["accuracy"]
    result = dba(*train_arguments(listops, tmp_path / "run", "train.updates=1", "data.test=nowhere.tsv"), check=False)
    assert result.returncode == 1 and "data.test: there is no nowhere.tsv" in result.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_full_disk_and_unwritable_folders_are_answered_with_a_sentence(whole, listops, tmp_path):
    result = dba(*train_arguments(listops, "/proc/run", "train.updates=1"), check=False)
    assert result.returncode == 1 and "/proc/run" in result.stderr
    result = dba("predict", whole, "--input", listops / "basic_test.tsv", "--output", "/dev/full", check=False)
    assert result.returncode == 1 and "/dev/full" in result.stderr

    disk = tmp_path / "disk"
    disk.mkdir()
    mount = lambda *options: subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", disk], capture_output=True)
    if mount("-o", "size=700k").returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    try:
        run = disk / "run"
        (tmp_path / "cache").mkdir()
        result = dba(*train_arguments(listops, run, "train.updates=30", "train.checkpoint_every=1", "train.keep=50",
                                      f"data.cache={tmp_path}/cache"), check=False)
        assert result.returncode == 1 and "No space left" in result.stderr, result.stderr
        kept = sorted(folder.name for folder in (run / "checkpoints").glob("step-*"))
        assert kept
        mount("-o", "remount,size=50m")
        assert f"resumed at update {int(kept[-1].split('-')[1])}" in dba("train", "--resume", run).stderr
    finally:
        subprocess.run(["umount", disk])


def test_help_usage_and_data_check(listops, tmp_path):
    for command in ([], ["train"], ["evaluate"], ["predict"], ["generate", "listops"], ["data", "check"], ["info"]):
        assert "Examples:" in dba(*command, "--help").stdout
    assert dba("nonsense", check=False).returncode == 2
    assert dba("evaluate", check=False).returncode == 2
    described = json.loads(dba("data", "check", listops, "--json").stdout)
    assert sum(file["records"] for file in described["files"]) == 420
    empty = tmp_path / "empty"
    empty.mkdir()
    assert dba("data", "check", empty, check=False).returncode == 1
