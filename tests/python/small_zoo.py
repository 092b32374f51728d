"""Small members of the zoo and tokens for them, and the devices to run them on."""

import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(),
                                                                reason="torch finds no GPU"))]
D, HEADS, LONGEST = 16, 2, 40
# Small enough that sequences of forty tokens have several blocks, chunks and segments.
OPTIONS = {
    "local": {"block": 8},
    "sparse": {"summary": 2},
    "longformer": {"window": 8, "globals": 2},
    "bigbird": {"block": 4, "random": 1},
    "linformer": {"k": 5, "max_length": LONGEST},
    "reformer": {"chunk": 4, "buckets": 4},
    "sinkhorn": {"block": 8, "max_length": LONGEST},
    "synthesizer": {"kind": "mixed", "max_length": LONGEST},
    "performer": {"features": 32},
    "nystromformer": {"landmarks": 5, "conv": 3},
    "yoso": {"tau": 3, "hashes": 4},
    "scatterbrain": {"window": 8, "features": 8},
    "pixelfly": {"block": 4, "butterfly": 4, "rank": 3},
    "luna": {"d_p": 4, "mask_slots": True},
    "dba": {"d_p": 4, "d_in": 8},
}
NAMES = dba.zoo.names()


def made(name, **more):
    torch.manual_seed(2)
    return dba.zoo.make(name, D, HEADS, dtype=torch.float64, **OPTIONS.get(name, {}), **more)


def tokens(*shape, seed=3):
    return torch.randn(*shape, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
