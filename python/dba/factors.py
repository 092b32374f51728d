"""The factors of the attention map, for whoever wants to look: the equations as written, on padded tokens."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from .layer import DBALayer
from .sequences import Sequences


class AttentionWeights(NamedTuple):
    """The map of head h is W_r' P' W_c'ᵀ; W_r and W_c say what the slots between read. Padded to the longest sequence,
    n, zero outside it, without dropout; None where a form has no such factor. Key tokens are the query's in
    self-attention."""

    w_r: Tensor
    """(B, H, d_p, n) compression of the queries (form released: the one compression)"""
    w_c: Tensor | None
    """(B, H, d_p, n_key) compression of the keys"""
    p: Tensor
    """(B, H, d_p, d_p) P' between the slots"""
    w_c_prime: Tensor | None
    """(B, H, n_key, d_p)"""
    w_r_prime: Tensor
    """(B, H, n, d_p)"""


@dataclasses.dataclass
class Padded:
    """Rows as a padded batch."""

    x: Tensor
    """(B, n, d), zero where there is no token"""
    valid: Tensor
    """(B, n)"""

    @staticmethod
    def of(rows: Tensor, sequences: Sequences) -> Padded:
        """From rows (N, d)."""
        length = sequences.longest()
        token = torch.arange(length, device=rows.device)
        valid = token < sequences.lengths[:, None]
        index = (sequences.begin[:, None] + token).masked_fill(~valid, 0)
        if rows.shape[0] == 0:
            return Padded(rows.new_zeros(*index.shape, rows.shape[1]), valid)
        return Padded(rows[index].masked_fill(~valid[..., None], 0), valid)

    def softmax(self, scores: Tensor) -> Tensor:
        """Over the tokens of scores (B, H, d_p, n); zeros for an empty sequence."""
        outside = ~self.valid[:, None, None]
        empty = ~self.valid.any(1)[:, None, None, None]
        return scores.masked_fill(outside & ~empty, -torch.inf).softmax(3).masked_fill(outside, 0)


def by_head(x: Tensor, heads: int) -> Tensor:
    """(…, n, H·w) → (…, H, n, w)"""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def compression(tokens: Padded, z: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """softmax over tokens(z_h (x W)_hᵀ/√w): (B, H, d_p, n). z (d_p, H·w) or (B, d_p, H·w)."""
    slots = by_head(z if z.dim() == 3 else z.unsqueeze(0), heads)
    projected = by_head(linear(tokens.x, weight, bias), heads)
    return tokens.softmax(slots @ projected.transpose(2, 3) * slots.shape[3] ** -0.5)


def mixing(tokens: Padded, weight: Tensor, bias: Tensor | None, heads: int, normalise: str) -> Tensor:
    """W_c' (B, H, n, d_p)."""
    scores = by_head(linear(tokens.x, weight, bias), heads).transpose(2, 3)
    if normalise == "linear":
        lengths = tokens.valid.sum(1).clamp_min(1).to(scores.dtype)
        weights = (scores / lengths[:, None, None, None]).masked_fill(~tokens.valid[:, None, None], 0)
    else:
        weights = tokens.softmax(scores)
    return weights.transpose(2, 3)


def restoration(tokens: Padded, weight: Tensor, bias: Tensor | None, heads: int, normalise: str) -> Tensor:
    """W_r' (B, H, n, d_p)."""
    scores = by_head(linear(tokens.x, weight, bias), heads)
    weights = scores if normalise == "linear" else scores.softmax(3)
    return weights.masked_fill(~tokens.valid[:, None, :, None], 0)


def between_slots(queries: Tensor, keys: Tensor, width: Tensor | None) -> Tensor:
    """P' (B, H, d_p, d_p) of queries and keys (B, H, d_p, w)."""
    if width is not None:
        queries, keys = queries @ width, keys @ width
    return (queries @ keys.transpose(2, 3) * queries.shape[3] ** -0.5).softmax(3)


def layer_factors(layer: DBALayer, x: Padded, other: Padded, z: Tensor) -> AttentionWeights:
    """The factors by which x asks `other`, which is x itself in self-attention; z (d_p, d) or (B, d_p, d)."""
    heads = layer.heads
    w_r_prime = restoration(x, layer.restoring.weight, layer.restoring.bias, heads, layer.normalise)
    if layer.released:
        slots, scored = layer.p_q(z), layer.p_k
        w_r = compression(x, slots, scored.weight, scored.bias, heads)
        w_c = w_r if other is x else compression(other, slots, scored.weight, scored.bias, heads)
        c, c_other = (
            (weights @ by_head(layer.p_v(tokens.x), heads)).transpose(1, 2).flatten(2)
            for weights, tokens in ((w_r, x), (w_c, other))
        )
        p = between_slots(by_head(layer.w_q(c), heads), by_head(layer.w_k(c_other), heads), None)
        return AttentionWeights(w_r, None if other is x else w_c, p, None, w_r_prime)
    w_r = compression(x, z, layer.w_q.weight, layer.w_q.bias, heads)
    w_c = compression(other, z, layer.w_k.weight, layer.w_k.bias, heads)
    p = between_slots(w_r @ by_head(layer.w_q(x.x), heads), w_c @ by_head(layer.w_k(other.x), heads), layer.r)
    w_c_prime = mixing(other, layer.f_c.weight, layer.f_c.bias, heads, layer.normalise)
    return AttentionWeights(w_r, w_c, p, w_c_prime, w_r_prime)
