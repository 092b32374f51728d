"""How the package finds its library and its program, and what it says where they do not fit the torch that runs."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402
import dba_program  # noqa: E402
from dba import _library  # noqa: E402
from dba.__main__ import main  # noqa: E402

DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))


def run_python(*arguments, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True,
                          timeout=120)


def test_another_torch_is_refused_with_both_versions_and_a_remedy(tmp_path):
    """A library that says it was built with another torch; that it would load all the same is not tried."""
    library = tmp_path / "libdba.so"
    shutil.copy(dba.LIBRARY, library)
    (tmp_path / _library.BUILT_WITH).write_text(json.dumps({"version": "0.1.0", "torch": "2.99.1", "cuda": None}))
    result = run_python("-c", "import dba", DBA_LIBRARY=str(library))
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: dba: the library was built with torch 2.99.1")
    assert f"torch {torch.__version__} is running" in last and "pip install" in last


def test_a_library_that_cannot_be_loaded_is_explained(tmp_path, monkeypatch):
    library = tmp_path / "libdba.so"
    library.write_bytes(b"no library")
    result = run_python("-c", "import dba", DBA_LIBRARY=str(library))
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: dba: {library}") and torch.__version__ in last and "pip install" in last
    monkeypatch.setenv("DBA_LIBRARY", str(tmp_path / "nothing.so"))
    with pytest.raises(ImportError, match="is no file; name libdba.so"):
        _library.find_library()
    monkeypatch.delenv("DBA_LIBRARY")
    monkeypatch.setattr(_library, "PACKAGE", tmp_path / "python" / "dba")
    with pytest.raises(ImportError, match="make build, or name the file with DBA_LIBRARY"):
        _library.find_library()


def test_minor_versions_decide():
    assert _library.minor_version("2.11.0+cu130") == "2.11" and _library.minor_version("2.9.1a0+git1") == "2.9"
    _library.refuse_other_torch("2.11.0", "2.11.3+cpu")
    _library.refuse_other_torch(None, "2.11.0")
    with pytest.raises(ImportError):
        _library.refuse_other_torch("2.11.0", "2.12.0")


def test_info_says_what_runs(capsys):
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["torch"] == torch.__version__ and pathlib.Path(info["library"]).samefile(dba.LIBRARY)
    assert info["backend"] in ("auto", "reference", "fused") and info["devices"][0] == "cpu"
    assert info["version"] == dba.__version__
    assert main(["info"]) == 0
    assert f"torch             {torch.__version__}" in capsys.readouterr().out


def test_the_program_is_the_packages_command(tmp_path):
    """What an installed `dba` does: it becomes the program, with torch's libraries in reach."""
    code = "from dba_program import main; main()"
    result = run_python("-c", code, "info", "--json", DBA_PROGRAM=str(DBA))
    assert result.returncode == 0, result.stderr
    assert torch.__version__.startswith(json.loads(result.stdout)["torch"])
    environment = dba_program.program_environment()
    folders = environment["LD_LIBRARY_PATH"].split(":")
    assert any((pathlib.Path(folder) / "libtorch.so").is_file() for folder in folders)
    assert environment["DBA_PYTHON"]
    result = run_python("-c", code, DBA_PROGRAM="/nowhere/dba")
    assert result.returncode == 1 and "install the package with pip" in result.stderr
    command = tmp_path / "dba"  # naming it must not start it for ever
    command.write_text(code)
    result = run_python(str(command), DBA_PROGRAM=str(command))
    assert result.returncode == 1 and "leave DBA_PROGRAM unset" in result.stderr


def test_the_package_is_typed_and_documented():
    assert 'dba = "dba_program:main"' in (ROOT / "pyproject.toml").read_text()
    assert (ROOT / "python" / "dba" / "py.typed").is_file()
    for name in dba.__all__:
        thing = getattr(dba, name)
        assert thing.__doc__, name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            if not member.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{member}"
                assert value.__annotations__.get("return", ...) is not ..., f"{name}.{member}"
