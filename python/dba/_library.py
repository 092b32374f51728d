"""Finds the operator library, compares the torch it was built with and the torch that runs, and loads it."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import warnings

import torch

PACKAGE = pathlib.Path(__file__).resolve().parent
# Written beside libdba.so when the project is configured: the project's version, torch's, and that of torch's CUDA.
BUILT_WITH = "dba_built_with.json"
REMEDY = (
    "build dba anew with the torch that runs (pip install --force-reinstall --no-deps . in its sources), or "
    "install the torch that it was built with"
)


def find_library() -> pathlib.Path:
    """libdba.so: what DBA_LIBRARY names, the one in the package, or that of a source checkout's build/release."""
    named = os.environ.get("DBA_LIBRARY")
    if named:
        if not pathlib.Path(named).is_file():
            raise ImportError(f"dba: DBA_LIBRARY={named} is no file; name libdba.so, or unset the variable")
        return pathlib.Path(named)
    candidates = [PACKAGE / "lib" / "libdba.so", PACKAGE.parents[1] / "build" / "release" / "lib" / "libdba.so"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ImportError(
        f"dba: libdba.so was found neither at {candidates[0]} nor at {candidates[1]}; install the package with pip, "
        "or in a checkout run make build, or name the file with DBA_LIBRARY"
    )


@functools.cache
def built_with() -> dict[str, str | None]:
    """What the library was built with: `version`, `torch`, `cuda`; empty where the build did not say."""
    try:
        return json.loads((find_library().parent / BUILT_WITH).read_text())
    except FileNotFoundError:
        return {}


def minor_version(version: str) -> str:
    """'2.11.0+cu130' → '2.11': torch's C++ interface may change with every minor version."""
    match = re.match(r"\d+\.\d+", version)
    return match.group() if match else version


def refuse_other_torch(built: str | None, running: str) -> None:
    """Raises ImportError where libraries built with one torch would be loaded into another."""
    if built and minor_version(built) != minor_version(running):
        raise ImportError(
            f"dba: the library was built with torch {built}, but torch {running} is running, whose C++ interface "
            f"differs; {REMEDY}"
        )


def load_library() -> pathlib.Path:
    """Loads the operators into the process and returns the path of libdba.so."""
    library = find_library()
    refuse_other_torch(built_with().get("torch"), torch.__version__)
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"dba: {library}, built with torch {built_with().get('torch', '(unknown)')}, cannot be loaded into torch "
            f"{torch.__version__}: {error}; {REMEDY}"
        ) from error
    load_cuda_kernels(library.with_name("libdba_cuda.so"))
    return library


def load_cuda_kernels(library: pathlib.Path) -> None:
    """The CUDA kernels are an addition: where they cannot be used, everything else still works."""
    if not library.is_file() or torch.version.cuda is None:
        return
    built, running = built_with().get("cuda"), torch.version.cuda
    if built and built.split(".")[0] != running.split(".")[0]:
        warnings.warn(
            f"dba: the CUDA kernels were built for CUDA {built}, but torch runs CUDA {running}; they are not loaded, "
            f"and GPUs take the plain operators. To have them, {REMEDY}",
            stacklevel=3,
        )
        return
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        warnings.warn(f"dba: {library} cannot be loaded, GPUs take the plain operators: {error}", stacklevel=3)
