"""Loads the library that is tested, DBA_LIBRARY or the release build's, and that of the CUDA kernels where it exists."""

import os
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("DBA_LIBRARY", ROOT / "build" / "release" / "lib" / "libdba.so"))
torch.ops.load_library(str(LIBRARY))
CUDA_LIBRARY = LIBRARY.with_name("libdba_cuda.so")
if CUDA_LIBRARY.exists():
    torch.ops.load_library(str(CUDA_LIBRARY))
