"""What the program `dba` reads and writes beside its runs, and how it answers bad input."""

import csv
import json
import random
import signal
import subprocess
import time

import pytest
from small_runs import DBA, SMALL, dba, jsonl, listops, settings, train_arguments, whole  # noqa: F401


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


def test_a_class_missing_in_train_is_told_before_training(listops, tmp_path):
    train = jsonl(tmp_path / "train.jsonl", [{"text": "ab" * (1 + i % 2), "label": i % 2} for i in range(40)])
    test = jsonl(tmp_path / "test.jsonl", [{"text": "ab", "label": 0}, {"text": "abab", "label": 2}])
    run = tmp_path / "run"
    result = dba("train", "--run", run, *settings(*[s for s in SMALL if not s.startswith("data.")], "train.updates=5",
                                                  f"data.train={train}", f"data.test={test}"), check=False)
    assert result.returncode == 1 and not (run / "report.json").exists()
    assert "test.jsonl:2" in result.stderr and 'does not occur in the training part' in result.stderr


@pytest.mark.parametrize("more, message", [
    (["model.method=performer", "model.method_options=window=8"], 'performer has the options features, kernel, seed, got "window"'),
    (["model.method=performer", "model.method_options=features=0"], 'option features of performer must be an integer of 1 or more, got "0"'),
    (["model.method=linformer", "model.method_options=share=all"], "option share of linformer must be one of"),
    (["model.method=bigbird", "model.method_options=window=4"], "option window of bigbird must be odd, got 4"),
    (["model.method_options=window=8"], 'method "dba" has no options of its own, got "window=8"'),
    (["model.heads=3"], "model.d (16) must be divisible by model.heads (3)"),
])
def test_a_model_that_cannot_be_made_is_told_before_data_are_read(tmp_path, more, message):
    result = dba(*train_arguments(tmp_path / "nowhere", tmp_path / "run", "train.updates=1", *more), check=False)
    assert result.returncode == 1 and message in result.stderr, result.stderr
    assert "there is no" not in result.stderr


def test_a_run_that_never_began_leaves_nothing(whole, listops, tmp_path):
    runs = tmp_path / "runs"
    unknown = tmp_path / "unknown.tsv"  # a label that the training part lacks: found when that part has been read
    unknown.write_text("Source\tTarget\n[MAX 1 2 ]\tx\n")
    for wrong in (["model.heads=7"], ["model.method=performer", "model.method_options=window=8"],
                  ["data.train=nowhere.tsv"], ["data.test=nowhere.tsv"], [f"data.validation={unknown}"],
                  ["train.init_from=nowhere"], [f"train.init_from={whole}", "model.d_ffn=24"]):
        arguments = train_arguments(listops, runs / "run", "train.updates=1", *wrong)
        result = dba(*arguments, check=False)
        assert result.returncode == 1 and result.stderr and not runs.exists(), (wrong, result.stderr)
        assert dba(*arguments, "--seeds", "1,2", check=False).returncode == 1 and not runs.exists(), wrong
    # A folder that was there stays, with what lies in it.
    (runs / "run").mkdir(parents=True)
    (runs / "run" / "notes.txt").write_text("mine")
    assert dba(*arguments, check=False).returncode == 1
    assert (runs / "run" / "notes.txt").read_text() == "mine"
    # A run stays, whatever is asked of it afterwards.
    files = sorted(whole.rglob("*"))
    for again in (arguments[:2] + [whole] + arguments[3:], ["train", "--config", "nowhere.yaml", "--run", whole]):
        assert dba(*again, check=False).returncode == 1 and sorted(whole.rglob("*")) == files


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


def test_the_training_file_may_stand_without_an_option(tmp_path):
    data = jsonl(tmp_path / "mine.jsonl", [{"text": "ab" * (1 + i % 2), "label": i % 2} for i in range(40)])
    settled = settings(*[s for s in SMALL if not s.startswith("data.")], "train.updates=2", "data.train=other.jsonl")
    dba("train", data, "--run", tmp_path / "run", "--quiet", *settled)
    assert f'train: "{data}"' in (tmp_path / "run" / "config.yaml").read_text()
    result = dba("train", data, check=False)
    assert result.returncode == 2 and "--run" in result.stderr
    result = dba("train", "mine.yaml", "--run", tmp_path / "other", check=False)
    assert result.returncode == 2 and "mine.yaml is a configuration; name it with --config" in result.stderr
    result = dba("train", tmp_path, "--run", tmp_path / "other", *settled, check=False)
    assert result.returncode == 1 and 'a folder of data files, which are named one by one' in result.stderr
    assert f'"{data}"' in result.stderr
    result = dba("train", data, "--resume", tmp_path / "run", check=False)
    assert result.returncode == 2 and "leave out the training file" in result.stderr


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


@pytest.mark.parametrize("words", [["pathfinder", "--count", "100000000"], ["listops", "--train", "100000000"]],
                         ids=lambda words: words[0])
def test_a_stopped_generator_leaves_no_half_file(words, tmp_path):
    process = subprocess.Popen([DBA, "generate", *words, "--out", tmp_path / "made", "--threads", "1", "--quiet"],
                               stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "dba generate: stopped by a signal" in said
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
