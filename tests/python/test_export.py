"""`dba export`: a trained run becomes a package that Python and C++ load, with the numbers of the run."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

# A pool of compilers costs more than it brings for one small model.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))

import dba  # noqa: E402
import dba.export  # noqa: E402
from dba.models import Classifier, DualEncoder, Encoding, ModelConfig, Tokeniser  # noqa: E402

DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
LIBRARY = pathlib.Path(os.environ.get("DBA_LIBRARY", ROOT / "build" / "release" / "lib" / "libdba.so"))
EXPORTED = LIBRARY.parents[1] / "examples" / "exported"
SMALL = {"d": 16, "heads": 2, "layers": 2, "d_ffn": 16, "d_p": 4, "d_in": 8}
LENGTHS = [5, 1, 9, 4]


def series(index, length):
    return [[math.sin(0.3 * index + step), 10 + step % 3] for step in range(length)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on series of two channels, whose statistics are not 0 and 1."""
    if not DBA.is_file():
        pytest.skip(f"{DBA} has not been built")
    folder = tmp_path_factory.mktemp("export")
    data = folder / "series.jsonl"
    data.write_text("".join(json.dumps({"series": series(i, 3 + i % 5), "label": f"class {i % 3}"}) + "\n"
                            for i in range(18)))
    settings = [f"model.{name}={value}" for name, value in {**SMALL, "layers": 1}.items()]
    settings += [f"data.train={data}", "batch.size=4", "threads=1", "device=cpu", "train.updates=3",
                 "model.position=sinusoidal", "schedule.warmup=1"]
    result = subprocess.run([DBA, "train", "--quiet", "--run", folder / "run",
                             *[word for setting in settings for word in ("--set", setting)]], capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def package(run):
    """Compiled once: that takes most of this file's time."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("a package is compiled, and there is no C++ compiler")
    path = run.parent / "model.pt2"
    assert dba.export.main([str(run), "--out", str(path)]) == 0
    return path


def packed(examples):
    offsets = torch.tensor([0, *(len(example) for example in examples)]).cumsum(0)
    return torch.cat([torch.tensor(example) for example in examples]), offsets


@pytest.mark.parametrize("lengths", [LENGTHS, [3], [1], [2, 0, 6]], ids=str)
def test_package_gives_the_numbers_of_the_run_for_any_lengths(run, package, lengths):
    model = dba.load(run)
    rows, offsets = packed([series(7 + i, length) for i, length in enumerate(lengths)])
    sequences = dba.Sequences(offsets[:-1], offsets[1:], len(rows))
    mean, deviation = (torch.tensor(v, dtype=torch.double) for v in (model.encoding.mean, model.encoding.deviation))
    with torch.no_grad():
        expected = model(((rows - mean) / deviation).float(), sequences)
    found = torch._inductor.aoti_load_package(str(package))(rows, offsets)
    assert found.shape == (len(lengths), 3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_package_knows_its_classes(package):
    metadata = torch._inductor.aoti_load_package(str(package)).get_metadata()
    assert json.loads(metadata["classes"]) == ["class 0", "class 1", "class 2"]


def test_cpp_program_without_python_prints_the_same_logits(run, package, tmp_path):
    if not EXPORTED.is_file():
        pytest.skip(f"{EXPORTED} has not been built")
    examples = [series(7 + i, length) for i, length in enumerate(LENGTHS)]
    rows, offsets = packed(examples)
    safetensors.torch.save_file({"input": rows, "offsets": offsets}, tmp_path / "input.safetensors")
    nowhere = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    result = subprocess.run([EXPORTED, package, tmp_path / "input.safetensors"], capture_output=True, text=True,
                            timeout=120, env={**nowhere, "PATH": "/nowhere"})
    assert result.returncode == 0, result.stderr
    printed = torch.tensor([[float(word) for word in line.split()] for line in result.stdout.splitlines()])
    torch.testing.assert_close(printed, dba.load(run).logits(examples), rtol=1e-5, atol=1e-6)
    refused = subprocess.run([EXPORTED, tmp_path / "none.pt2", "x"], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1 and refused.stderr.startswith("exported: ")
    safetensors.torch.save_file({"input": rows}, tmp_path / "half.safetensors")
    refused = subprocess.run([EXPORTED, package, tmp_path / "half.safetensors"], capture_output=True, text=True,
                             timeout=120)
    assert refused.returncode == 1 and "holds no tensor called offsets" in refused.stderr


@pytest.mark.parametrize("form", ["paper", "released"])
def test_graph_of_symbols_takes_any_batch(form):
    torch.manual_seed(3)
    model = Classifier(ModelConfig(form=form, **SMALL), 3, vocabulary=11, max_length=20)
    program = dba.export.export_program(model).module()
    assert all(module.training for module in model.modules())  # left as it was
    tokens, offsets = torch.randint(11, (17,)), torch.tensor([0, 4, 4, 17])
    with torch.no_grad():
        expected = model.eval()(tokens, dba.Sequences(offsets[:-1], offsets[1:], 17))
    torch.testing.assert_close(program(tokens, offsets), expected, rtol=1e-5, atol=1e-6)


def test_graph_of_pairs_takes_any_batch():
    torch.manual_seed(3)
    model = DualEncoder(ModelConfig(**SMALL), 2, vocabulary=11, max_length=20)
    program = dba.export.export_program(model.eval()).module()
    first, second = torch.randint(11, (17,)), torch.randint(11, (9,))
    bounds = torch.tensor([0, 4, 6, 17]), torch.tensor([0, 1, 8, 9])
    sequences = [dba.Sequences(b[:-1], b[1:], int(b[-1])) for b in bounds]
    with torch.no_grad():
        expected = model(first, second, *sequences)
    torch.testing.assert_close(program(first, bounds[0], second, bounds[1]), expected, rtol=1e-5, atol=1e-6)


def test_any_module_with_dba_inside_can_be_exported():
    torch.manual_seed(3)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 1).eval()
    dba.replace_attention(model, d_p=4, d_in=8)
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1)
    program = dba.export.export_program(model, (torch.randn(3, 5, 16),), {"src": {0: batch, 1: length}}).module()
    x = torch.randn(2, 9, 16)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_exported_is_answered_with_a_sentence(tmp_path, capsys):
    softmax = Classifier(ModelConfig(method="softmax", **SMALL), 3, features=2, max_length=20)
    with pytest.raises(ValueError, match="method softmax"):
        dba.export.export_package(softmax, tmp_path / "model.pt2")
    with pytest.raises(ValueError, match=".pt2"):
        dba.export.export_package(softmax, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="folder"):
        dba.export.export_package(softmax, tmp_path / "nowhere" / "model.pt2")
    with pytest.raises(TypeError, match="Linear"):
        dba.export.export_package(torch.nn.Linear(2, 2), tmp_path / "model.pt2")
    assert dba.export.main([str(tmp_path), "--out", str(tmp_path / "model.pt2")]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("dba export: ") and "model.safetensors" in errors


@pytest.mark.parametrize(("kind", "model_of_kind"), [("tokens", Classifier), ("pairs", DualEncoder)])
def test_a_model_that_leaves_out_symbols_is_refused(kind, model_of_kind, tmp_path, capsys):
    """A package would count positions among the symbols that are left, and give other numbers than the run."""
    tokeniser = Tokeniser("integer", integers=11, leave_out=[0, 7])
    model = model_of_kind(ModelConfig(**SMALL), 2, vocabulary=11, max_length=20)
    model.encoding = Encoding(kind, ["no", "yes"], tokeniser=tokeniser)
    file, out = tmp_path / "model.safetensors", tmp_path / "model.pt2"
    model.save(file)
    assert dba.export.main([str(file), "--out", str(out)]) == 1 and not out.exists()
    errors = capsys.readouterr().err
    assert errors.startswith("dba export: ") and "(data.leave_out)" in errors
    assert "train one that leaves out none" in errors
    with pytest.raises(ValueError, match="data.leave_out"):
        dba.export.export_program(model)
