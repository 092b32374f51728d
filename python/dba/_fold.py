"""Slots and projections become score rows."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _nodes


def fold(
    z: Tensor,
    weights: list[Tensor],
    heads: int,
    scale: float,
    *,
    biases: list[Tensor | None] | None = None,
    tail: Tensor | None = None,
    tail_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Score rows from slots and projections, so that the tokens need not be projected: for every projection and head,
    scale · z_h W_h, group behind group.

    z (d_p, H·w) or (B, d_p, H·w); weights (H·w, d) as in nn.Linear; biases (H·w). With z (d_p, H·w) the rows of `tail`
    (T, d) and `tail_bias` (T) follow as they are. Returns rows (L, d) or (B, L, d) and their bias, None where there is
    none.
    """
    biases = [None] * len(weights) if biases is None else biases
    biased = tail_bias is not None or any(bias is not None for bias in biases)
    if _nodes.in_python():
        rows, bias = _fold_in_python(z, weights, biases, tail, tail_bias, heads, scale, biased)
    else:
        rows, bias = torch.ops.dba.fold_stack.default(z, weights, biases, tail, tail_bias, heads, scale)
    return rows, bias if biased else None


def _fold_in_python(
    z: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    tail: Tensor | None,
    tail_bias: Tensor | None,
    heads: int,
    scale: float,
    biased: bool,
) -> tuple[Tensor, Tensor | None]:
    """The same products in ATen, which compilers and torch.func see through; kept from autocast like the operator."""
    with torch.autocast(z.device.type, enabled=False):
        slots = z.unflatten(-1, (heads, -1)).transpose(-3, -2) * scale  # (…, H, d_p, w)
        rows, row_biases = [], []
        for weight, bias in zip(weights, biases, strict=True):
            rows.append((slots @ weight.view(heads, -1, weight.shape[1])).flatten(-3, -2))
            zeros = slots.new_zeros(rows[-1].shape[:-1])
            row_biases.append(zeros if bias is None else (slots @ bias.view(heads, -1, 1)).flatten(-3))
        if tail is not None:
            rows.append(tail)
            row_biases.append(slots.new_zeros(tail.shape[0]) if tail_bias is None else tail_bias)
        return torch.cat(rows, -2), torch.cat(row_biases, -1) if biased else None
