"""The program with data of the Long-Range Arena: generated pictures, parts of a file, caches without their source."""

import hashlib
import json
import os
import pathlib
import struct
import subprocess
import zlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
CONFIG = """
device: cpu
threads: 1
data:
  train: {file}@0-80%
  validation: {file}@80-90%
  test: {file}@90-100%
  tokeniser: integer
  integers: 256
  cls: true
  max_length: 1024
batch: {{size: 8}}
model: {{d: 16, heads: 2, layers: 1, d_ffn: 16, d_p: 4, d_in: 8}}
schedule: {{name: constant, warmup: 0}}
train: {{updates: 3, log_every: 1}}
"""


def dba(*arguments, check=True):
    result = subprocess.run([DBA, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """240 pictures of the easy set as records, and a configuration that divides them."""
    folder = tmp_path_factory.mktemp("pictures")
    out = folder / "pathfinder32"
    dba("generate", "pathfinder", "--out", out, "--count", 240, "--difficulty", "easy", "--sheet", folder / "sheet.png",
        "--quiet")
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(file=out.with_suffix(".bin")))
    return config


def test_generated_pictures_and_their_sheet(pictures):
    records = (pictures.parent / "pathfinder32.bin").read_bytes()
    assert len(records) == 240 * 1025
    assert 80 < sum(records[::1025]) < 160, "labels are about as often 0 as 1"
    assert (pictures.parent / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_data_check_reports_the_parts_of_a_configuration(pictures):
    described = json.loads(dba("data", "check", pictures, "--json").stdout)
    assert [(file["part"], file["records"]) for file in described["files"]] == [("train", 192), ("validation", 24),
                                                                             ("test", 24)]
    digest = hashlib.sha256((pictures.parent / "pathfinder32.bin").read_bytes()).hexdigest()
    assert {file["sha256"] for file in described["files"]} == {digest}
    result = dba("data", "check", pictures.parent / "pathfinder32.bin@90-101%", check=False)
    assert result.returncode != 0 and "100%" in result.stderr


def test_training_from_caches_is_training_from_their_source(pictures, tmp_path):
    caches = tmp_path / "caches"
    written = dba("data", "cache", pictures, "--out", caches).stdout
    assert "192 examples" in written and f"--set data.test={caches}/test.cache" in written
    assert (caches / "train.cache").stat().st_size < 192 * 1100
    dba("train", "--config", pictures, "--run", tmp_path / "source")
    source = pictures.parent / "pathfinder32.bin"
    hidden = source.rename(source.with_suffix(".hidden"))
    try:
        parts = [f"data.{part}={caches}/{part}.cache" for part in ("train", "validation", "test")]
        dba("train", "--config", pictures, "--run", tmp_path / "cached", *[w for p in parts for w in ("--set", p)])
    finally:
        hidden.rename(source)
    assert (tmp_path / "cached/metrics.jsonl").read_text() == (tmp_path / "source/metrics.jsonl").read_text()
    cached, read = (json.loads((tmp_path / run / "report.json").read_text())["data_digests"]
                    for run in ("cached", "source"))
    assert cached == read and len(set(cached.values())) == 3
    described = json.loads(dba("data", "check", caches, "--json").stdout)
    assert {file["digest"] for file in described["files"]} == set(cached.values())
    result = dba("train", "--config", pictures, "--run", tmp_path / "other", "--set", parts[0], "--set",
                 "data.cls=false", check=False)
    assert result.returncode == 1 and "was made with cls true" in result.stderr


def test_a_damaged_cache_is_told_with_the_remedy_by_check_and_training(pictures, tmp_path):
    dba("data", "cache", pictures, "--out", tmp_path)
    cache = tmp_path / "train.cache"
    cache.write_bytes(cache.read_bytes()[:5000])
    fault = "are stated, more than the file holds; make it anew with dba data cache, or remove it"
    assert fault in checked(cache)
    result = dba("train", "--config", pictures, "--run", tmp_path / "run", "--set", f"data.train={cache}", check=False)
    assert result.returncode == 1 and fault in result.stderr


def test_a_packed_file_and_shared_records_are_answered_with_a_sentence(pictures, tmp_path):
    packed = tmp_path / "data.bin"
    packed.write_bytes(b"\xfd7zXZ\x00 and so on")
    result = dba("train", "--config", pictures, "--run", tmp_path / "run", "--set", f"data.train={packed}", check=False)
    assert result.returncode == 1 and "unpack it first" in result.stderr
    source = pictures.parent / "pathfinder32.bin"
    result = dba("train", "--config", pictures, "--run", tmp_path / "run", "--set", f"data.test={source}@70-100%",
                 check=False)
    assert result.returncode != 0 and "share records" in result.stderr


def grey(labels):
    """Records of a label byte and 1,024 pixels."""
    return b"".join(bytes([label]) + bytes(range(256)) * 4 for label in labels)


def checked(path, status=1):
    """What `dba data check` prints."""
    result = dba("data", "check", path, check=False)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize("name, label, last", [("cifar10_gray_train.bin", 77, 9), ("pathfinder32.bin", 2, 1)])
@pytest.mark.parametrize("record", [1, 7])
def test_a_label_beyond_the_task_is_refused_by_check_and_training(tmp_path, name, label, last, record):
    file = tmp_path / name
    labels = [0, 1] * 10
    labels[record - 1] = label
    file.write_bytes(grey(labels))
    told = f"{file}:{record}: record {record} has the label {label}, expected 0 to {last}"
    text = checked(tmp_path)
    assert told in text and "fetch or generate it again" in text
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(file=file))
    result = dba("train", "--config", config, "--run", tmp_path / "run", check=False)
    assert result.returncode == 1 and told in result.stderr


def test_a_cache_with_a_class_too_many_is_told(tmp_path):
    (tmp_path / "mine.bin").write_bytes(grey([0, 1, 2] * 20))
    (tmp_path / "config.yaml").write_text(CONFIG.format(file=tmp_path / "mine.bin"))
    dba("data", "cache", tmp_path / "config.yaml", "--out", tmp_path / "lra" / "pathfinder")
    assert "train.cache has 3 classes, expected 2" in checked(tmp_path / "lra")


@pytest.mark.parametrize("name", ["cifar10_gray_train.bin", "cifar10_gray_test.bin"])
def test_one_file_of_a_task_is_the_task_without_its_other_parts(tmp_path, name):
    (tmp_path / name).write_bytes(grey(range(10)))
    text = checked(tmp_path)
    assert "image\n" in text and ": missing; looked for cifar10_gray_" in text


def test_records_that_cannot_be_read_are_told_with_the_reason(tmp_path):
    (tmp_path / "cifar10_gray_train.bin").write_bytes(b"")
    (tmp_path / "cifar10_gray_test.bin").write_bytes(grey(range(10))[:-5])
    (tmp_path / "listops").mkdir()
    (tmp_path / "listops" / "train.cache").write_bytes(b"")
    (tmp_path / "listops" / "test.cache").write_bytes(b"no cache")
    text = checked(tmp_path)
    assert "cifar10_gray_train.bin: is empty; fetch or generate it again" in text
    assert "which the training part lacks" not in text, "nothing is known of its labels"
    assert "the file ends after 1020 of the 1025 bytes of record 10; it is cut short" in text
    assert "train.cache, not recognised; it is empty; fetch or make it again" in text
    assert "test.cache, not recognised; it is no cache of this program" in text
    other = tmp_path / "other.bin"
    for contents, reason in ((b"", "is empty"), (grey([12]), "has the label 12 in record 1, expected 0 to 9"),
                             (b"\xff" * 99, "has 99 bytes, which is no whole number of records of 1,025 bytes")):
        other.write_bytes(contents)
        assert reason in checked(other)


def reviews(folder):
    """aclImdb with four reviews a class in either part."""
    for part in ("train", "test"):
        for label, rating in (("pos", 9), ("neg", 2)):
            (folder / "aclImdb" / part / label).mkdir(parents=True)
            for number in range(4):
                (folder / "aclImdb" / part / label / f"{number}_{rating}.txt").write_text(f"{label} {number}")


def test_what_cannot_be_read_is_an_error_of_its_part_alone(tmp_path):
    reviews(tmp_path)
    (tmp_path / "pathfinder32.bin").write_bytes(grey([0, 1] * 20))
    negative = tmp_path / "aclImdb" / "train" / "neg"
    (negative / "8_2.txt").mkdir()
    (negative / "9_2.txt").symlink_to(tmp_path / "nowhere")
    text = checked(tmp_path)
    assert f"cannot read {negative}/8_2.txt: Is a directory; a folder stands where a file belongs" in text
    assert f"cannot open {negative}/9_2.txt: No such file or directory; it is gone, or a link that leads nowhere" in text
    assert "train: 8 examples" in text and "train: 32 examples" in text, "the rest is read"


def test_a_link_that_leads_nowhere_is_not_a_missing_task(tmp_path):
    (tmp_path / "aan").symlink_to(tmp_path / "nowhere")
    text = checked(tmp_path)
    assert f"  train: cannot open {tmp_path}/aan: No such file or directory; it is gone, or a link" in text
    assert "listops: missing" in text
    tasks = json.loads(dba("data", "check", tmp_path, "--json", check=False).stdout)
    assert not tasks["sound"] and "link" in tasks["tasks"]["retrieval"]["test"]["unreadable"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@pytest.mark.parametrize("closed", ["aclImdb", "aclImdb/train", "aclImdb/train/pos"])
def test_a_folder_without_permission_is_not_a_missing_one(tmp_path, closed):
    reviews(tmp_path)
    (tmp_path / closed).chmod(0)
    try:
        text = checked(tmp_path)
    finally:
        (tmp_path / closed).chmod(0o700)
    assert "Permission denied; make it and the folders it lies in readable" in text


LISTOPS = "Source\tTarget\n" + "[MAX 1 2 ]\t2\n[MIN 1 2 ]\t1\n" * 3
PAIRS = "1.0\ta\tb\tone\ttwo\n0.0\ta\tb\tthree\tfour\n" * 3


def listops(folder, text=LISTOPS):
    folder.mkdir(exist_ok=True)
    for part in ("train", "val", "test"):
        (folder / f"basic_{part}.tsv").write_text(text if part == "train" else LISTOPS)


def pairs(folder, text=PAIRS):
    folder.mkdir(exist_ok=True)
    for part in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{part}.tsv").write_text(text if part == "train" else PAIRS)


@pytest.mark.parametrize("row", ["[MAX 3 4", "[MAX 3 4 ]\t"])
def test_listops_that_ends_within_a_row_is_cut_short(tmp_path, row):
    listops(tmp_path / "listops", LISTOPS + row)
    text = checked(tmp_path)
    assert "basic_train.tsv:8: has " in text and "no line end: the file is cut short; fetch" in text
    assert "must become a space" not in text


def test_pairs_that_may_be_cut_short_are_told(tmp_path):
    pairs(tmp_path / "aan", PAIRS[:-3])
    assert "new_aan_pairs.train.tsv has no line end behind its last row, line 6; it may be cut short" in checked(tmp_path)
    pairs(tmp_path / "aan", PAIRS + "1.0\ta\tb\tone\t" + "\0" * 40 + "\n")
    assert "new_aan_pairs.train.tsv has bytes of 0 in 1 row, the first in line 7" in checked(tmp_path)
    pairs(tmp_path / "aan")
    checked(tmp_path, status=0)


@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "cifar-10-binary.tar.gz"])
def test_a_packed_archive_is_a_fault_beside_a_sound_task_too(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x1f\x8b\x08" + bytes(40))  # its end is missing, which gzip alone can tell
    fault = "is packed; unpack it first: tar xf"
    assert fault in checked(tmp_path)
    listops(tmp_path / "listops")
    assert f"{name}: {fault}" in checked(tmp_path)
    assert not json.loads(dba("data", "check", tmp_path, "--json", check=False).stdout)["sound"]


def test_an_archive_that_has_been_unpacked_may_stay(tmp_path):
    (tmp_path / "aclImdb_v1.tar.gz").write_bytes(b"\x1f\x8b\x08" + bytes(40))
    reviews(tmp_path)
    assert "is packed" not in checked(tmp_path, status=0)


def test_examples_without_text_are_noted(tmp_path):
    reviews(tmp_path)
    pairs(tmp_path / "aan", PAIRS + "1.0\ta\tb\tone\t\n0.0\ta\tb\t\ttwo\n")
    assert "without text" in checked(tmp_path, status=0), "of the pairs"
    empty = tmp_path / "aclImdb" / "train" / "pos" / "2_9.txt"
    empty.write_text("")
    text = checked(tmp_path, status=0)
    assert f"note: text: train has 1 example without text, the first at {empty};" in text
    table = tmp_path / "aan" / "new_aan_pairs.train.tsv"
    assert f"note: retrieval: train has 2 examples without text, the first at {table}:7;" in text
    assert "without text: 1 record, the first at " + str(empty) in checked(tmp_path / "aclImdb" / "train", status=0)


def test_batches_of_cifar_have_ten_thousand_records(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    two = bytes([3]) + bytes(3072) + bytes([4]) + bytes(3072)
    for name in (*[f"data_batch_{number}" for number in range(1, 6)], "test_batch"):
        (folder / f"{name}.bin").write_bytes(two)
    (folder / "data_batch_1.bin").write_bytes(two * 5000)
    text = checked(tmp_path)
    assert "other than 10,000 records in its batches: 2 in data_batch_2.bin, 2 in data_batch_3.bin" in text
    assert "in data_batch_5.bin; unpack cifar-10-binary.tar.gz again" in text and "in data_batch_1.bin" not in text
    (folder / "data_batch_5.bin").write_bytes(b"")
    assert "data_batch_5.bin: is empty; fetch" in checked(tmp_path)


def test_a_part_that_the_folder_of_one_task_lacks_is_named(tmp_path):
    pairs(tmp_path)
    text = checked(tmp_path, status=0)
    assert "missing" not in text and "aan, validation part: 6 records" in text
    (tmp_path / "new_aan_pairs.eval.tsv").unlink()
    text = checked(tmp_path, status=0)
    assert "missing: the validation part, new_aan_pairs.eval.tsv; dba reproduce skips retrieval without it\n" in text
    assert text.count("missing") == 1
    (tmp_path / "new_aan_pairs.test.tsv").rename(tmp_path / "test.tsv")
    assert "missing: the test part, new_aan_pairs.test.tsv; dba reproduce skips" in checked(tmp_path, status=0)


def test_other_counts_than_published_are_noted(tmp_path):
    listops(tmp_path / "listops")
    text = checked(tmp_path, status=0)
    assert "note: listops: other counts than published: train 96,000 expected, 6 found, validation 2,000 expected" in text
    notes = json.loads(dba("data", "check", tmp_path, "--json").stdout)
    assert notes["sound"] and len(notes["notes"]) == 1 and not notes["remarks"]


def png(width, height):
    """A black picture."""
    def chunk(name, contents):
        return struct.pack(">I", len(contents)) + name + contents + struct.pack(">I", zlib.crc32(name + contents))
    rows = bytes(height * (width + 1))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@pytest.mark.parametrize("layout", ["pathfinder32/curv_contour_length_14", "curv_contour_length_14"])
@pytest.mark.parametrize("size, sound", [((32, 32), True), ((64, 64), False), ((33, 32), False)])
def test_pictures_of_another_size_are_refused(tmp_path, layout, size, sound):
    folder = tmp_path / layout
    (folder / "imgs" / "0").mkdir(parents=True)
    (folder / "metadata").mkdir()
    lines = [f"imgs/0 sample_{number}.png {number} {number % 2} 1.0\n" for number in range(20)]
    (folder / "metadata" / "0.npy").write_text("".join(lines))
    for number in range(20):
        (folder / "imgs" / "0" / f"sample_{number}.png").write_bytes(png(*size))
    text = checked(tmp_path, status=0 if sound else 1)
    if not sound:
        assert (f"0.npy:1: {folder}/imgs/0/sample_0.png is {size[0]} × {size[1]} pixels, expected 32 × 32; fetch the "
                "archive of pathfinder32 again") in text
    if not sound and "pathfinder32" in layout:
        (tmp_path / "config.yaml").write_text(CONFIG.format(file=folder))
        result = dba("train", "--config", tmp_path / "config.yaml", "--run", tmp_path / "run", check=False)
        assert result.returncode == 1 and "expected 32 × 32" in result.stderr


def test_a_byte_order_mark_does_not_change_the_format(tmp_path):
    listops(tmp_path / "listops", "\ufeff" + LISTOPS)
    pairs(tmp_path / "aan", "\ufeff" + PAIRS)
    text = checked(tmp_path, status=0)
    assert "basic_train.tsv, listops\n" in text and "new_aan_pairs.train.tsv, aan\n" in text
    assert text.count("train: 6 examples") == 2


def test_a_cache_of_other_pictures_with_the_same_labels_is_told(tmp_path):
    file = tmp_path / "pathfinder32.bin"
    records = grey([0, 1] * 20)
    file.write_bytes(records)
    (tmp_path / "config.yaml").write_text(CONFIG.format(file=file))
    dba("data", "cache", tmp_path / "config.yaml", "--out", tmp_path / "pathfinder")
    checked(tmp_path, status=0)
    other = bytearray(records)
    other[2 * 1025 + 100] ^= 1
    file.write_bytes(other)
    text = checked(tmp_path)
    assert f"train.cache, which runs take, is not of {file}@0-80%: the first example that differs is {file}:3;" in text
    assert text.count("which runs take") == 1, "the other parts are alike"
