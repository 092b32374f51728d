"""Members of the zoo, tokens for them, and what another package must return to agree with them."""

import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402

D, HEADS = 16, 2


def package(name):
    return pytest.importorskip(name, reason=f"the package {name} is not installed", exc_type=ImportError)


def made(member, heads=HEADS, **options):
    torch.manual_seed(4)
    return dba.zoo.make(member, D, heads, dtype=torch.float64, **options)


def tokens(batch, length):
    x = torch.randn(batch, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return (2 * x).requires_grad_()


def expect_same(layer, x, theirs, padding=None):
    """Outputs and gradients for the tokens agree; what they return for padding does not count."""
    ours = layer(x, key_padding_mask=padding)[0]
    if padding is not None:
        theirs = theirs.masked_fill(padding[:, :, None], 0)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    weight = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(6))
    gradients = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)
