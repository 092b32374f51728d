"""Event files of the C++ library are read by TensorBoard, and by a reader of the documented format written here."""

import math
import os
import pathlib
import struct
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = pathlib.Path(os.environ.get("DBA_TEST_TOOLS", ROOT / "build" / "release" / "test-tools"))
WRITE = TOOLS / "write_events"

pytestmark = pytest.mark.skipif(
    not WRITE.is_file(), reason=f"{WRITE} has not been built; build the project or set DBA_TEST_TOOLS to its folder"
)


@pytest.fixture
def folder(tmp_path):
    result = subprocess.run([WRITE, tmp_path / "events"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return tmp_path / "events"


def single(value):
    """The nearest number of 32 bits."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def expected_loss(step):
    return single(single(1 / step) + (100 if step > 6 else 0))


def crc32c(octets):
    checksum = 0xFFFFFFFF
    for octet in octets:
        checksum ^= octet
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF


def masked(octets):
    checksum = crc32c(octets)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(octets):
    position = 0
    while position < len(octets):
        length, length_checksum = struct.unpack_from("<QI", octets, position)
        assert length_checksum == masked(octets[position : position + 8])
        data = octets[position + 12 : position + 12 + length]
        (checksum,) = struct.unpack_from("<I", octets, position + 12 + length)
        assert checksum == masked(data)
        yield data
        position += 16 + length
    assert position == len(octets)


def varint(octets, position):
    value = shift = 0
    while True:
        octet = octets[position]
        value |= (octet & 0x7F) << shift
        position += 1
        shift += 7
        if octet < 0x80:
            return value, position


def fields(message):
    """Pairs of a field's number and its value, as protocol buffers write them."""
    position = 0
    while position < len(message):
        key, position = varint(message, position)
        wire = key & 7
        if wire == 0:
            value, position = varint(message, position)
        elif wire == 2:
            length, position = varint(message, position)
            value, position = message[position : position + length], position + length
        else:
            code, size = {1: ("<d", 8), 5: ("<f", 4)}[wire]
            (value,) = struct.unpack_from(code, message, position)
            position += size
        yield key >> 3, value


def test_files_follow_the_format(folder):
    first, second = sorted(folder.iterdir())
    events = [dict(fields(record)) for record in records(first.read_bytes())]
    assert events[0][3] == b"brain.Event:2"
    assert len(events) == 11
    for step, event in enumerate(events[1:], start=1):
        assert event[1] == 1_700_000_000.5 + step
        assert event[2] == step
        values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
        assert values == [
            {1: b"train/loss", 2: expected_loss(step) if step <= 6 else single(1 / step)},
            {1: "validation/größe".encode(), 2: step * 0.25},
        ]
    events = [dict(fields(record)) for record in records(second.read_bytes())]
    assert events[0][3] == b"brain.Event:2"
    assert (events[1][2], events[1][7]) == (7, b"\x08\x01")
    assert [event[2] for event in events[2:]] == [*range(7, 13), 2**40]


def test_tensorboard_reads_them(folder):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = accumulators.EventAccumulator(str(folder))
    accumulator.Reload()
    assert set(accumulator.Tags()["scalars"]) == {"train/loss", "validation/größe", "odd", "odder"}
    loss = accumulator.Scalars("train/loss")
    # Each step once: what the first run wrote beyond the checkpoint is gone.
    assert [point.step for point in loss] == list(range(1, 13))
    assert [point.value for point in loss] == [expected_loss(step) for step in range(1, 13)]
    assert [point.wall_time for point in loss] == [1_700_000_000.5 + step for step in range(1, 13)]
    (odd,) = accumulator.Scalars("odd")
    assert (odd.step, odd.value) == (2**40, math.inf)
    (odder,) = accumulator.Scalars("odder")
    assert math.isnan(odder.value)
