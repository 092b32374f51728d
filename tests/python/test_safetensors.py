"""Files of the C++ library and of the Python package `safetensors` are read by each other, bit for bit.

The program safetensors_copy reads a file with the C++ reader and writes it again with the C++ writer: a file from
Python that goes through it and comes back equal has been read by C++, and its result by Python.
"""

import json
import os
import pathlib
import struct
import subprocess

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = pathlib.Path(os.environ.get("DBA_TEST_TOOLS", ROOT / "build" / "release" / "test-tools"))
COPY = TOOLS / "safetensors_copy"

pytestmark = pytest.mark.skipif(
    not COPY.is_file(), reason=f"{COPY} has not been built; build the project or set DBA_TEST_TOOLS to its folder"
)

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def run_copy(source, target):
    return subprocess.run([COPY, source, target], capture_output=True, text=True, timeout=60)


def copy(source, target):
    result = run_copy(source, target)
    assert result.returncode == 0, result.stderr
    return target


def random_bits(dtype, shape, generator):
    """Every pattern of bits, NaN and denormal numbers included."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    octets = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return octets.view(dtype).squeeze(-1)


def octets(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(actual, expected):
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert actual[name].shape == tensor.shape, name
        assert torch.equal(octets(actual[name]), octets(tensor)), name


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_every_dtype_goes_both_ways(dtype, tmp_path):
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "matrix": random_bits(TORCH_DTYPES[dtype], (5, 7), generator),
        "scalar": random_bits(TORCH_DTYPES[dtype], (), generator),
        "empty": random_bits(TORCH_DTYPES[dtype], (3, 0), generator),
    }
    safetensors.torch.save_file(tensors, tmp_path / "python")
    assert_same(safetensors.torch.load_file(copy(tmp_path / "python", tmp_path / "cpp")), tensors)


def test_all_dtypes_in_one_file_are_aligned(tmp_path):
    generator = torch.Generator().manual_seed(4)
    tensors = {f"layer.{name}": random_bits(dtype, (3,), generator) for name, dtype in TORCH_DTYPES.items()}
    safetensors.torch.save_file(tensors, tmp_path / "python")
    written = copy(tmp_path / "python", tmp_path / "cpp").read_bytes()
    assert_same(safetensors.torch.load(written), tensors)
    (header_length,) = struct.unpack("<Q", written[:8])
    assert header_length % 8 == 0
    header = json.loads(written[8 : 8 + header_length])
    for name, tensor in tensors.items():
        assert header[name]["data_offsets"][0] % tensor.dtype.itemsize == 0, name


def test_names_and_metadata_go_both_ways(tmp_path):
    tensors = {"größe.注意.🙂": torch.arange(3), 'a "b" \\ \n \t \x00 \x7f': torch.ones(2, 2)}
    metadata = {"format": "pt", "Überschrift": 'line\n"quoted"', "": "empty key"}
    safetensors.torch.save_file(tensors, tmp_path / "python", metadata)
    copy(tmp_path / "python", tmp_path / "cpp")
    assert_same(safetensors.torch.load_file(tmp_path / "cpp"), tensors)
    with safetensors.safe_open(tmp_path / "cpp", framework="pt") as file:
        assert file.metadata() == metadata


def test_file_without_tensors_goes_both_ways(tmp_path):
    safetensors.torch.save_file({}, tmp_path / "python")
    assert safetensors.torch.load_file(copy(tmp_path / "python", tmp_path / "cpp")) == {}


def test_numpy_files_go_both_ways(tmp_path):
    arrays = {
        "double": numpy.linspace(-1, 1, 6).reshape(2, 3),
        "unsigned": numpy.array([0, 2**64 - 1], dtype=numpy.uint64),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "python")
    loaded = safetensors.numpy.load_file(copy(tmp_path / "python", tmp_path / "cpp"))
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        numpy.testing.assert_array_equal(loaded[name], array)


def test_unaligned_header_is_read(tmp_path):
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    assert (8 + len(header)) % 4 != 0
    values = torch.tensor([1.5, -2.25])
    (tmp_path / "odd").write_bytes(struct.pack("<Q", len(header)) + header + values.numpy().tobytes())
    assert_same(safetensors.torch.load_file(copy(tmp_path / "odd", tmp_path / "cpp")), {"w": values})


@pytest.mark.parametrize(
    "header, data",
    [
        (b"[]", b""),
        (b'{"w":', b""),
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"1234567"),
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"123456789"),
        (b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', b"12345678"),
        (b'{"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', b"12345678"),
        (b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"12"),
        (b'{"w":{"dtype":"X8","shape":[1],"data_offsets":[0,1]}}', b"1"),
        (b'{"__metadata__":{"a":1}}', b""),
    ],
)
def test_both_refuse_the_same_damage(header, data, tmp_path):
    (tmp_path / "damaged").write_bytes(struct.pack("<Q", len(header)) + header + data)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load_file(tmp_path / "damaged")
    result = run_copy(tmp_path / "damaged", tmp_path / "cpp")
    assert result.returncode == 1
    assert str(tmp_path / "damaged") in result.stderr
    assert not (tmp_path / "cpp").exists()
