"""`dba reproduce lra` from data to table: every task in its own format, on small data with small models."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import time
import zlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
TASKS = ["listops", "text", "retrieval", "image", "pathfinder"]
SMALL = ["model.d=8", "model.heads=2", "model.d_ffn=8", "model.head_hidden=8", "model.layers=1", "model.d_p=4",
         "model.d_in=4", "batch.size=4", "batch.prefetch=1"]


def words_of(folder, *arguments):
    words = [DBA, "reproduce", "lra", "--data", folder / "data", "--configs", ROOT / "configs" / "lra", "--runs",
             folder / "runs", "--results", folder / "results", "--seeds", 1, "--device", "cpu", "--threads", 1,
             *arguments]
    return [str(word) for word in words] + [word for value in SMALL for word in ("--set", value)]


def reproduce(folder, *arguments, check=True):
    result = subprocess.run(words_of(folder, *arguments), capture_output=True, text=True, timeout=240)
    if check:
        logs = "".join(log.read_text() for log in sorted((folder / "runs").glob("*.log")))
        assert result.returncode == 0, result.stdout + result.stderr + logs
    return result


def png(pixels):
    """A grey image of 32 × 32 bytes."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes(pixels[32 * row:32 * row + 32]) for row in range(32))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_data(data):
    """A few examples of every task, laid out as the benchmark's."""
    chance = random.Random(3)

    def picture():
        return [chance.randrange(256) for _ in range(1024)]

    subprocess.run([str(DBA), "generate", "listops", "--out", str(data / "listops"), "--train", "120", "--validation",
                    "8", "--test", "8", "--min-length", "4", "--max-length", "20", "--max-depth", "3", "--max-args",
                    "4", "--quiet"], check=True, timeout=60)
    for part in ("train", "test"):
        for label in ("pos", "neg"):
            folder = data / "aclImdb" / part / label
            folder.mkdir(parents=True)
            for i in range(10):
                (folder / f"{i}_{chance.randrange(11)}.txt").write_text(f"{label} review number {i} " * (1 + i % 3))
    (data / "aan").mkdir()
    for part in ("train", "eval", "test"):
        rows = [f"{i % 2}.0\tP{i}\tP{i + 1}\tfirst paper {i}\tsecond paper, {chance.random()}" for i in range(8)]
        (data / "aan" / f"new_aan_pairs.{part}.tsv").write_text("".join(row + "\n" for row in rows))
    for part, count in (("train", 20), ("test", 10)):
        records = b"".join(bytes([i % 10, *picture()]) for i in range(count))
        (data / f"cifar10_gray_{part}.bin").write_bytes(records)
    images = data / "pathfinder32" / "imgs" / "0"
    images.mkdir(parents=True)
    (data / "pathfinder32" / "metadata").mkdir()
    lines = []
    for i in range(20):
        (images / f"sample_{i}.png").write_bytes(png(picture()))
        lines.append(f"imgs/0 sample_{i}.png {i} {i % 2} 1.0 14 2\n")
    (data / "pathfinder32" / "metadata" / "0.npy").write_text("".join(lines))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All tasks, trained without a break."""
    if not DBA.is_file():
        pytest.skip(f"{DBA} has not been built")
    folder = tmp_path_factory.mktemp("lra")
    write_data(folder / "data")
    reproduce(folder, "--methods", "dba", "--updates", 4, "--jobs", 2)
    return folder


def result_of(folder, task, method="dba", updates=4):
    return json.loads((folder / "results" / f"{task}-{method}-updates{updates}-seed1.json").read_text())


def test_every_task_leaves_a_result_and_a_row(whole):
    for task in TASKS:
        result = result_of(whole, task)
        assert (result["task"], result["method"], result["seed"], result["updates"]) == (task, "dba", 1, 4)
        assert result["precision"] == "float32" and 1 <= result["config"]["schedule"]["warmup"] <= 2
        assert result["curves"]["validation"]["step"][-1] == 4
        assert 0 <= result["protocols"]["honest"]["accuracy"] <= 1
    text = result_of(whole, "text")
    assert "held out" in text["model_chosen_on"] and "as_published" not in text["protocols"]  # the run is a short one
    page = (whole / "results" / "README.md").read_text()
    assert "Shortened to 4 updates: Chosen on validation data" in page
    assert re.search(r"^\| Image \(18 training examples instead of 45000\) \(`.*`\) \| here \|", page, re.MULTILINE)
    assert "46.51" not in page  # the paper's data are others


def test_a_trial_names_what_was_set(whole, tmp_path):
    for name in ("data", "results"):
        shutil.copytree(whole / name, tmp_path / name)
    changed = result_of(whole, "image")["changed"]
    # One layer is the recipe's; without a GPU it is float32; --updates, --device and --threads are told apart.
    assert set(changed) == {"precision=float32", *SMALL} - {"model.layers=1", "batch.prefetch=1"}
    small = ", ".join(f"`{setting}`" for setting in changed)
    page = (whole / "results" / "README.md").read_text()
    row = f"Image (18 training examples instead of 45000) ({small})"
    assert f"| {row} | here |" in page and f"- {row}: image-dba-updates4-seed1.json" in page
    assert "different settings" not in page and page.count("| Image") == 1
    arguments = ["--tasks", "image", "--methods", "dba", "--updates", 4, "--set", "optimiser.lr=0.25"]
    stays = reproduce(tmp_path, *arguments)
    assert "was finished with other settings than --set says (optimiser.lr=0.005) and stays so" in stays.stderr
    mixed = reproduce(tmp_path, *arguments, "--seeds", 2)
    page = (tmp_path / "results" / "README.md").read_text()
    assert f"| {row} | here |" in page and f"| {row[:-1]}, `optimiser.lr=0.25`) | here |" in page
    for said in (page, mixed.stderr):
        assert "were made with different settings and are not averaged" in said
        assert "`optimiser.lr=0.25`: image-dba-updates4-seed2.json" in said


def test_a_damaged_report_is_told_and_the_run_made_again(whole, tmp_path):
    for name in ("data", "results", "runs"):
        shutil.copytree(whole / name, tmp_path / name)
    name = "image-dba-updates4-seed1"
    report = tmp_path / "runs" / name / "report.json"
    report.write_text(report.read_text()[:100])
    (tmp_path / "results" / f"{name}.json").unlink()
    arguments = ["--tasks", "image", "--methods", "dba", "--updates", 4]
    assert f"interrupted ({report} is damaged)" in reproduce(tmp_path, *arguments, "--list").stdout
    remade = reproduce(tmp_path, *arguments)
    assert f"{report}: damaged (expected a JSON object); the run is made again" in remade.stderr
    assert result_of(tmp_path, "image")["curves"] == result_of(whole, "image")["curves"]


def test_a_copy_of_a_result_counts_for_no_other_seed(whole, tmp_path):
    shutil.copytree(whole / "results", tmp_path / "results")
    page = (whole / "results" / "README.md").read_text()
    copies = ["image-dba-updates4-seed1 (copy).json", "image-dba-updates4-seed2.json"]
    for copy in copies:
        shutil.copy(tmp_path / "results" / "image-dba-updates4-seed1.json", tmp_path / "results" / copy)
    better = json.loads((tmp_path / "results" / "text-dba-updates4-seed1.json").read_text())
    better["protocols"]["honest"]["accuracy"] = 1.7
    (tmp_path / "results" / "text-dba-updates4-seed1.json").write_text(json.dumps(better))
    table = reproduce(tmp_path, "--table", check=False)
    assert table.returncode == 1
    for copy in copies:
        assert f"{copy}: it holds the result of the run image-dba-updates4-seed1; delete it" in table.stderr
    assert "text-dba-updates4-seed1.json: accuracy must be from 0 to 1, got 1.7" in table.stderr
    row = next(line for line in page.splitlines() if line.startswith("| Image"))
    assert row in (tmp_path / "results" / "README.md").read_text()


def test_a_watched_test_set_gives_a_second_number(whole, tmp_path):
    shutil.copytree(whole / "data" / "aclImdb", tmp_path / "data" / "aclImdb")
    reproduce(tmp_path, "--tasks", "text", "--methods", "dba", "--updates", 4, "--set", "train.watch_test=true")
    protocols = result_of(tmp_path, "text")["protocols"]
    assert protocols["as_published"]["accuracy"] >= protocols["honest"]["accuracy"]


def test_a_run_below_expectation_is_told_while_it_runs(whole, tmp_path):
    shutil.copytree(whole / "data", tmp_path / "data")
    told = reproduce(tmp_path, "--tasks", "image", "--methods", "dba", "--updates", 4, "--set", "expect.update=2",
                     "--set", "expect.accuracy=1")
    assert re.search(r"image-dba-updates4-seed1: warning: the validation accuracy is 0\.\d{4} at update 2, and a good run "
                     r"has 1\.0000 by update 2", told.stderr)
    assert told.stderr.index("warning:") < told.stderr.index("[1/1]")
    result = result_of(tmp_path, "image")
    assert result["seconds_per_update"] > 0 and 0 < sum(result["share_of_time"].values()) <= 1.001


def test_digests_tell_data_sets_apart_and_seeds_do_not(whole, tmp_path):
    folder = tmp_path / "other"
    for name in ("data", "results"):
        shutil.copytree(whole / name, folder / name)
    reproduce(folder, "--tasks", "text", "--methods", "dba", "--updates", 4, "--seeds", 2)
    first, second = (json.loads((folder / "results" / f"text-dba-updates4-seed{seed}.json").read_text())
                     for seed in (1, 2))
    assert first["data_digests"] == second["data_digests"] and set(first["data_digests"]) == {"training", "test"}
    assert set(result_of(whole, "image")["data_digests"]) == {"training", "validation", "test"}
    assert "(training data" not in (folder / "results" / "README.md").read_text()
    records = bytearray((folder / "data" / "cifar10_gray_train.bin").read_bytes())
    records[1] ^= 1  # one pixel of the first picture
    (folder / "data" / "cifar10_gray_train.bin").write_bytes(records)
    mixed = reproduce(folder, "--tasks", "image", "--methods", "dba", "--updates", 4, "--seeds", 2)
    page = (folder / "results" / "README.md").read_text()
    digests = [json.loads((folder / "results" / f"image-dba-updates4-seed{seed}.json").read_text())["data_digests"]
               for seed in (1, 2)]
    assert digests[0]["training"] != digests[1]["training"] and digests[0]["test"] == digests[1]["test"]
    for seed, digest in zip((1, 2), digests):
        named = f"training data {digest['training'][:8]}"
        row = rf"^\| Image \(18 training examples instead of 45000\) .* \({named}\) \| here \|"
        assert re.search(row, page, re.MULTILINE)
        assert f"{named}: image-dba-updates4-seed{seed}.json" in page and named in mixed.stderr
    (folder / "results" / "image-dba-updates4-seed1.json").write_text("{")
    damaged = reproduce(folder, "--table", check=False)
    assert damaged.returncode == 1 and "image-dba-updates4-seed1.json" in damaged.stderr
    beside = reproduce(folder, "--tasks", "image", "--methods", "softmax", "--updates", 4)
    assert "1 of 1 run finished" in beside.stdout and "left out of the table" in beside.stderr
    assert "is damaged" in reproduce(folder, "--list", "--tasks", "image", "--updates", 4).stdout
    remade = reproduce(folder, "--tasks", "image", "--methods", "dba", "--updates", 4)
    assert "seed1.json: damaged; the run is made again" in remade.stderr


def test_two_commands_at_once_do_not_share_a_run(whole, tmp_path):
    shutil.copytree(whole / "data" / "listops", tmp_path / "data" / "listops")
    arguments = ["--tasks", "listops", "--methods", "dba", "--updates", 3000]
    first = subprocess.Popen(words_of(tmp_path, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lock = tmp_path / "runs" / "listops-dba-updates3000-seed1.lock"
    while first.poll() is None and not (lock.is_file() and lock.read_text()):
        time.sleep(0.005)
    second = reproduce(tmp_path, *arguments, check=False)
    assert f"listops-dba-updates3000-seed1  at work (process {first.pid})" in reproduce(tmp_path, *arguments,
                                                                                        "--list").stdout
    first.terminate()
    assert first.wait(timeout=60) == 128 + signal.SIGTERM and not lock.exists()
    assert second.returncode == 1, second.stdout + second.stderr
    assert f"listops-dba-updates3000-seed1: is left to process {first.pid}, which is making it" in second.stderr
    assert "wait for its end and give the same command again" in second.stderr


def test_what_is_there_is_not_made_again_and_other_methods_are_made_on_request(whole):
    before = {path.name: path.stat().st_mtime_ns for path in (whole / "results").glob("*.json")}
    reproduce(whole, "--tasks", "image", "--methods", "dba,performer", "--updates", 4)
    performer = result_of(whole, "image", "performer")
    assert performer["config"]["model"]["method"] == "performer"
    after = {path.name: path.stat().st_mtime_ns for path in (whole / "results").glob("*.json")}
    assert {name: after[name] for name in before} == before
    listed = reproduce(whole, "--list", "--tasks", "listops,image", "--updates", 4).stdout.split("\n")
    assert [line.split() for line in listed if "dba-" in line] == [["listops-dba-updates4-seed1", "finished"],
                                                                   ["image-dba-updates4-seed1", "finished"]]
    assert any(line.split() == ["listops-softmax-updates4-seed1", "to", "do"] for line in listed)


def test_every_attention_of_the_zoo_is_a_method_under_the_same_recipe(whole):
    members = subprocess.run([str(DBA), "zoo", "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    names = [member["name"] for member in json.loads(members)["members"]]
    listed = reproduce(whole, "--list", "--tasks", "text", "--methods", ",".join(names), "--updates", 4).stdout.split()
    assert len(names) == 20 and all(f"text-{name}-updates4-seed1" in listed for name in names)
    # One that must know the longest sequence has it from the data's limit.
    reproduce(whole, "--tasks", "image", "--methods", "linformer", "--updates", 4)
    assert result_of(whole, "image", "linformer")["config"]["data"]["max_length"] == 1024


def test_a_stopped_run_goes_on_as_if_it_had_never_stopped(whole, tmp_path):
    for folder in (tmp_path / "stopped", tmp_path / "undisturbed"):
        shutil.copytree(whole / "data" / "listops", folder / "data" / "listops")
    arguments = ["--tasks", "listops", "--methods", "dba", "--updates", 300]
    stopped = tmp_path / "stopped"
    out_of_time = reproduce(stopped, *arguments, "--minutes", 0.00001, check=False)
    assert out_of_time.returncode == 3 and "the same command goes on" in out_of_time.stdout, out_of_time.stderr
    metrics = stopped / "runs" / "listops-dba-updates300-seed1" / "metrics.jsonl"
    process = subprocess.Popen(words_of(stopped, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.005)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not (stopped / "results" / "listops-dba-updates300-seed1.json").exists()
    goes_on = reproduce(stopped, *arguments, "--set", "optimiser.lr=0.123").stderr
    assert "goes on with the settings it began with (optimiser.lr=" in goes_on and "not what --set says)" in goes_on
    reproduce(tmp_path / "undisturbed", *arguments)
    pieces, one_go = (result_of(folder, "listops", updates=300) for folder in (stopped, tmp_path / "undisturbed"))
    assert pieces["curves"] == one_go["curves"] and pieces["protocols"] == one_go["protocols"]


def test_missing_data_and_unknown_names_are_told(whole, tmp_path):
    missing = reproduce(tmp_path, "--tasks", "text", check=False)
    assert missing.returncode == 1 and "aclImdb/train" in missing.stderr
    for arguments, words in ((["--tasks", "imag"], "did you mean image"), (["--methods", "lunar"], "did you mean luna"),
                             (["--updates", "-1"], "--updates")):
        refused = reproduce(whole, *arguments, check=False)
        assert refused.returncode == 2 and words in refused.stderr, refused.stderr
    assert missing.stderr.count("aclImdb/train,") == 1
    for arguments, words in ((["--set", "modeld"], "modeld"), (["--table"], "--table")):
        refused = reproduce(whole, "--list", *arguments, check=False)
        assert refused.returncode == 2 and words in refused.stderr, refused.stderr
    for assignment, words in (("model.method_options=window=8", 'image-performer-seed1: dba::zoo: performer has the options'),
                              ("model.layrs=1", "model.layers")):
        refused = reproduce(tmp_path, "--tasks", "image", "--methods", "performer", "--set", assignment, check=False)
        assert refused.returncode == 2 and words in refused.stderr and "no data" not in refused.stderr, refused.stderr


def test_another_recipe_wants_folders_of_its_own(tmp_path):
    words = [DBA, "reproduce", "lra", "--configs", ROOT / "configs" / "lra", "--set", "optimiser.lr=0.1"]
    for more in ([], ["--results", "other"], ["--runs", "other", "--results", "./results/lra/"], ["--updates", "6"]):
        refused = subprocess.run([*words, *more], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and "name other --runs and --results" in refused.stderr
    listed = subprocess.run([*words[:-2], "--list", "--tasks", "image", "--methods", "dba", "--seeds", "2", "1", "2"],
                            cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["image-dba-seed2", "image-dba-seed1"]
