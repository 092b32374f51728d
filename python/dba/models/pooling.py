"""From token rows to one vector per sequence, and from that to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .. import _nodes, ops
from .._shapes import accumulation_dtype
from ..layer import check_positive
from ..sequences import Sequences, clear_rows, require


class Pooling(nn.Module):
    """From tokens to one vector per sequence: the `first`, the `mean`, or all of them (`flatten`); zeros for an empty
    sequence."""

    def __init__(self, d: int, kind: str, max_length: int = 0) -> None:
        super().__init__()
        if kind == "flatten" and max_length < 1:
            raise ValueError(f"dba.models.Pooling: flatten needs a positive max_length, got {max_length}; give the "
                             "length of the longest sequence, or pool by mean")
        self.kind, self.max_length = kind, max_length
        self.width = max_length * d if kind == "flatten" else d

    def forward(self, rows: Tensor, sequences: Sequences) -> Tensor:
        """rows (N, d) → (B, width)."""
        if self.kind == "mean" and _nodes.in_python():
            return _plain_mean(rows, sequences)
        if self.kind == "mean":
            # One row whose score is 1 for every token: the sums of the library, and its treatment of empty sequences.
            score = {"shared": rows.new_zeros(1, rows.shape[1]), "shared_bias": rows.new_ones(1)}
            return ops.compress(rows, sequences, **score, linear=1).c.squeeze(1).to(rows.dtype)
        if self.kind == "first":
            return _first_tokens(rows, sequences, 1).squeeze(1)
        require((sequences.lengths <= self.max_length).all(),
                f"dba.models.Pooling: sequences must have at most {self.max_length} tokens (max_length) to be "
                "flattened; cut the sequences, enlarge max_length or pool by mean")
        return _first_tokens(rows, sequences, self.max_length).flatten(1)


def _plain_mean(rows: Tensor, sequences: Sequences) -> Tensor:
    """In ATen alone, for compilers; in the accumulation type."""
    wide = rows.to(accumulation_dtype(rows.dtype))
    sums = wide.new_zeros(sequences.count + 1, rows.shape[1])
    # Rows of nobody go to a sequence more, which nobody reads.
    owner = sequences.sequence_of_row()
    sums = sums.index_add(0, torch.where(owner < 0, sequences.count, owner), clear_rows(wide, sequences.row_mask()))
    return (sums[:-1] / sequences.lengths.clamp_min(1).unsqueeze(1)).to(rows.dtype)


def _first_tokens(rows: Tensor, sequences: Sequences, length: int) -> Tensor:
    """(B, length, d): the first tokens of every sequence, zeros behind its end."""
    if rows.shape[0] == 0:
        rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    index = sequences.begin[:, None] + torch.arange(length, device=rows.device)
    real = index < sequences.end[:, None]
    token = rows.index_select(0, index.flatten().clamp_max(rows.shape[0] - 1))
    return clear_rows(token, real.flatten()).unflatten(0, index.shape)


class Head(nn.Module):
    """From the vector of a sequence to its logits: one linear layer, or (`mlp`) two with a ReLU between them."""

    def __init__(self, width: int, classes: int, kind: str = "linear", hidden: int = 0) -> None:
        super().__init__()
        check_positive("models.Head", "classes", classes)
        self.kind = kind
        if kind == "linear":
            self.linear = nn.Linear(width, classes)
        else:
            self.linear_1 = nn.Linear(width, check_positive("models.Head", "hidden", hidden))
            self.linear_2 = nn.Linear(hidden, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width) → (B, classes)."""
        return self.linear(x) if self.kind == "linear" else self.linear_2(functional.relu(self.linear_1(x)))
