"""From raw inputs to token rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._shapes import accumulation_dtype
from ..sequences import Sequences, clear_rows, describe, require


class TokenEmbedding(nn.Module):
    """One learned vector per symbol."""

    def __init__(self, vocabulary: int, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 1/d)."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """tokens (N), integers in [0, vocabulary) in real rows and anything elsewhere → (N, d)."""
        if tokens.is_floating_point():
            raise ValueError(f"dba.models.TokenEmbedding: tokens must hold integers, got {describe(tokens)}; "
                             "real-valued inputs belong to a model with `features`")
        real = clear_rows(tokens.long(), mask)
        require(((real >= 0) & (real < self.weight.shape[0])).all(),
                f"dba.models.TokenEmbedding: tokens must lie in [0, {self.weight.shape[0]}); enlarge `vocabulary` or "
                "map unknown symbols to one of it")
        return functional.embedding(real, self.weight.to(_dtype_of_rows(self.weight)))


def _dtype_of_rows(weight: Tensor) -> torch.dtype:
    """Under autocast what it asks for: what follows is a norm, and the rows of a large batch outweigh the model."""
    device = weight.device.type
    narrow = weight.dtype == torch.float32 and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if narrow else weight.dtype


class FeatureEmbedding(nn.Module):
    """A linear map of real-valued features, multiplied by √d if wanted."""

    def __init__(self, features: int, d: int, scale: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(features, d)
        self.scale = math.sqrt(d) if scale else None

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (N, features), anything in rows of nobody → (N, d)."""
        embedded = self.linear(clear_rows(x, mask))
        return embedded if self.scale is None else embedded * self.scale


class PositionEmbedding(nn.Module):
    """Adds to every token what its position says, counted inside its sequence unless it is given."""

    def __init__(self, d: int, kind: str, max_length: int = 0) -> None:
        super().__init__()
        self.kind = kind
        if kind == "learned":
            if max_length < 1:
                raise ValueError(f"dba.models.PositionEmbedding: learned positions need a positive max_length, got "
                                 f"{max_length}; give the length of the longest sequence, or use sinusoidal positions")
            self.weight = nn.Parameter(torch.empty(max_length, d))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Learned vectors N(0, 1/d)."""
        if self.kind == "learned":
            nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor, sequences: Sequences, given: Tensor | None = None) -> Tensor:
        """x (N, d). given (N): positions of the tokens, for sequences of which parts were left out."""
        position = sequences.position_of_row() if given is None else self._checked(given, sequences)
        if self.kind == "sinusoidal":
            return x + _sinusoids(position, x.shape[1], x.dtype)
        length = self.weight.shape[0]
        require((position < length).all(),
                f"dba.models.PositionEmbedding: sequences must have at most {length} tokens (max_length"
                f"{'' if given is None else '; left-out ones count'}); cut the "
                "sequences, enlarge max_length or use sinusoidal positions")
        return x + functional.embedding(position.clamp_max(length - 1), self.weight.to(x.dtype))

    def _checked(self, given: Tensor, sequences: Sequences) -> Tensor:
        """(N) int64, 0 in rows of nobody."""
        integral = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
        if given.shape != (sequences.rows,) or not integral:
            raise ValueError(f"dba.models.PositionEmbedding: positions must be an integer for each of the "
                             f"{sequences.rows} rows, got {describe(given)}")
        position = clear_rows(given.long(), sequences.row_mask())
        require((position >= 0).all(), "dba.models.PositionEmbedding: positions must count from 0, got a negative one")
        return position


def _sinusoids(position: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    """(N, d): sin(p/10000^(2i/d)) in column 2i, the cosine in column 2i + 1."""
    wide = accumulation_dtype(dtype)
    pairs = (d + 1) // 2
    frequency = (torch.arange(pairs, dtype=wide, device=position.device) * (-2.0 * math.log(10000.0) / d)).exp()
    angle = position.to(wide).unsqueeze(1) * frequency
    return torch.stack((angle.sin(), angle.cos()), 2).view(-1, 2 * pairs)[:, :d].to(dtype)
