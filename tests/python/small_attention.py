"""A small attention and tokens for it, for the tests of the package."""

import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402

D, HEADS = 8, 2
SIZES = {"d_p": 3, "d_in": 6}


def make(kind=dba.DBAttention, seed=0, dtype=torch.double, **options):
    torch.manual_seed(seed)
    return kind(D, HEADS, dtype=dtype, **{**SIZES, **options})


def tokens(*shape, seed=1, dtype=torch.double):
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)
