"""Softmax attention of every token of a sequence to every other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..sequences import Sequences


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, dropout: float, mask: Tensor | None = None) -> Tensor:
    """q, k, v (B, n, H·w) → (B, n, H·w)."""
    by_head = [t.unflatten(-1, (heads, -1)).transpose(-3, -2) for t in (q, k, v)]
    return scaled_dot_product_attention(*by_head, mask, dropout).transpose(-3, -2).flatten(-2)


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, heads: int, dropout: float) -> Tensor:
    parts, done = [], 0
    for begin, end in zip(sequences.begin.tolist(), sequences.end.tolist(), strict=True):
        if begin == end:
            continue
        parts.append(v.new_zeros(begin - done, v.shape[1]))
        parts.append(_attend(*(t[begin:end].unsqueeze(0) for t in (q, k, v)), heads, dropout).squeeze(0))
        done = end
    parts.append(v.new_zeros(sequences.rows - done, v.shape[1]))
    return torch.cat(parts)


def _through_padding(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, heads: int, dropout: float) -> Tensor:
    length = sequences.longest()
    sequence, position = sequences.sequence_of_row(), sequences.position_of_row()
    token = torch.arange(length, device=v.device)
    valid = token < sequences.lengths[:, None]
    row = (sequences.begin[:, None] + token).masked_fill(~valid, 0)
    # A token that does not exist may look at itself, so that no row of the map is empty.
    mask = (valid[:, None] | torch.eye(length, dtype=torch.bool, device=v.device))[:, None]
    mixed = _attend(q[row], k[row], v[row], heads, dropout, mask).flatten(0, 1)
    place = (sequence * length + position).clamp_min(0)
    return mixed[place].masked_fill((sequence < 0)[:, None], 0)


def _better_padded(sequences: Sequences) -> bool:
    """Where the program pads on a CPU too: sequences are short and of about one length."""
    longest = sequences.longest()
    return longest <= 256 and sequences.count * longest <= 2 * sequences.rows


def full_map_attention(
    q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, heads: int, dropout: float
) -> Tensor:
    """q, k (N, H·e), v (N, d) as rows; returns (N, d), zero in rows of nobody. Scale 1/√e."""
    if sequences.rows and sequences.common_length:
        batched = [t.unflatten(0, (sequences.count, sequences.common_length)) for t in (q, k, v)]
        return _attend(*batched, heads, dropout).flatten(0, 1)
    if sequences.count == 0 or (v.device.type == "cpu" and not _better_padded(sequences)):
        return _one_by_one(q, k, v, sequences, heads, dropout)
    return _through_padding(q, k, v, sequences, heads, dropout)
