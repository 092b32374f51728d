"""The program `dba`, written in C++, as the command of an installed package. It stands outside the package `dba`, which
imports torch: the program need not wait for that."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "dba"


def find_program() -> pathlib.Path:
    """What DBA_PROGRAM names, the one in the package, or that of a source checkout's build/release."""
    named = os.environ.get("DBA_PROGRAM")
    candidates = [pathlib.Path(named)] if named else [
        PACKAGE / "bin" / "dba", PACKAGE.parents[1] / "build" / "release" / "bin" / "dba"
    ]
    for candidate in candidates:
        if candidate.is_file() and candidate.resolve() == pathlib.Path(sys.argv[0]).resolve():
            raise SystemExit(f"dba: DBA_PROGRAM names {candidate}, which is this command and not the C++ program that "
                             "it starts; leave DBA_PROGRAM unset")
        if candidate.is_file():
            return candidate
    raise SystemExit(f"dba: the program was not found at {' or at '.join(map(str, candidates))}; install the package "
                     "with pip, or in a checkout run make build, or name the program with DBA_PROGRAM")


def torch_library_folders() -> list[pathlib.Path]:
    """Where the dynamic linker finds torch's libraries and the CUDA runtime beside them; torch is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit(f"dba: the Python at {sys.executable} has no torch; install it with pip install torch")
    torch = pathlib.Path(spec.origin).parent
    folders = [torch / "lib", torch.with_name("torch.libs"), *sorted(torch.parent.glob("nvidia/*/lib"))]
    return [folder for folder in folders if folder.is_dir()]


def program_environment() -> dict[str, str]:
    """The environment in which the program starts."""
    environment = dict(os.environ)
    paths = [*map(str, torch_library_folders()), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    environment["LD_LIBRARY_PATH"] = ":".join(paths)
    # Its commands that are written in Python take this one.
    environment.setdefault("DBA_PYTHON", sys.executable)
    return environment


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Becomes the program, with the words of the command line if none are given; never returns."""
    program = find_program()
    words = sys.argv[1:] if arguments is None else arguments
    os.execve(program, [str(program), *words], program_environment())
