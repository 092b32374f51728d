"""`python -m dba info`: what the package runs on."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from typing import Any

import torch

from . import LIBRARY, __version__, built_with, get_backend


def describe() -> dict[str, Any]:
    """Versions, library, devices."""
    cuda_library = LIBRARY.with_name("libdba_cuda.so")
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "built_with_torch": built_with().get("torch"),
        "cuda": torch.version.cuda,
        "library": str(LIBRARY),
        "cuda_library": str(cuda_library) if cuda_library.is_file() else None,
        "backend": get_backend(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *devices],
    }


def main(arguments: Sequence[str]) -> int:
    """Prints lines, or one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m dba info", description="Versions, libraries and devices.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    info = describe()
    if parser.parse_args(arguments).json:
        print(json.dumps(info, indent=2))
    else:
        for name, value in info.items():
            print(f"{name.replace('_', ' '):17} {', '.join(value) if isinstance(value, list) else value or 'none'}")
    return 0
