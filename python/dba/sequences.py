"""Where the sequences of a batch lie among the rows of a token matrix."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


def require(condition: Tensor, message: str) -> None:
    """Raises ValueError where a boolean tensor () on the CPU is false. On other devices and in compiled code, where
    looking would wait or is impossible, the check runs with the computation (RuntimeError). The message names no size:
    it would become a constant of compiled code."""
    if condition.device.type == "cpu" and not torch.compiler.is_compiling():
        if not condition.item():
            raise ValueError(message)
    elif condition.device.type != "meta":
        torch._assert_async(condition, message)


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Sequence b of B owns the rows begin[b] … end[b] − 1 of N. Sequences stand in order and do not overlap; rows
    between them belong to nobody: they are never read and come out as zeros. So packed, padded and jagged batches
    are one case."""

    begin: Tensor
    """(B) int64"""
    end: Tensor
    """(B) int64"""
    rows: int
    """N"""
    plain: bool = False
    """Whether every row is known to belong to a sequence; lengths may differ all the same."""
    max_length: int | None = None
    """An upper bound of the lengths, where one is known."""

    @property
    def count(self) -> int:
        """B."""
        return self.begin.shape[0]

    def __len__(self) -> int:
        return self.count

    @property
    def lengths(self) -> Tensor:
        """(B) tokens of each sequence."""
        return self.end - self.begin

    def longest(self) -> int:
        """The largest length, read from the device if need be."""
        return int(self.lengths.max()) if self.count else 0

    @property
    def common_length(self) -> int | None:
        """The length of every sequence where all are known to have one and to fill the rows; else None."""
        # No sequence is longer than the bound, and together they are as long as if all were.
        filled = self.plain and self.max_length is not None and self.max_length * self.count == self.rows
        return self.max_length if filled else None

    def sequence_of_row(self) -> Tensor:
        """(N) the sequence each row belongs to; −1 for rows of nobody."""
        row = torch.arange(self.rows, device=self.begin.device)
        if self.count == 0:
            return torch.full_like(row, -1)
        # The first sequence that ends after the row; empty sequences end before they could own one.
        candidate = torch.searchsorted(self.end, row, right=True)
        index = candidate.clamp_max(self.count - 1)
        inside = (candidate < self.count) & (row >= self.begin.index_select(0, index))
        return torch.where(inside, index, -1)

    def position_of_row(self) -> Tensor:
        """(N) the index of each row inside its sequence; 0 for rows of nobody."""
        row = torch.arange(self.rows, device=self.begin.device)
        if self.count == 0:
            return torch.zeros_like(row)
        sequence = self.sequence_of_row()
        return torch.where(sequence >= 0, row - self.begin.index_select(0, sequence.clamp_min(0)), 0)

    def row_mask(self) -> Tensor | None:
        """(N) true for rows that lie in a sequence; None where all do."""
        return None if self.plain else self.sequence_of_row() >= 0

    @staticmethod
    def dense(batch: int, length: int, device: torch.device | str | None = None) -> Sequences:
        """A plain batch (B, n, …) without padding."""
        begin = torch.arange(batch, device=device) * length
        return Sequences(begin, begin + length, batch * length, plain=True, max_length=length)

    @staticmethod
    def packed(
        cu_seqlens: Tensor, rows: int, max_length: int | None = None, *, named: str = "Sequences.packed: cu_seqlens"
    ) -> Sequences:
        """Packed rows: sequence b is cu_seqlens[b] … cu_seqlens[b + 1] − 1. cu_seqlens (B + 1), integers.
        named: what a refusal calls them."""
        check_tensor(named, cu_seqlens)
        if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.shape[0] < 1:
            raise ValueError(
                f"dba.{named} must be int32 or int64 of shape (B + 1), got {describe(cu_seqlens)}"
            )
        bounds = cu_seqlens.long()
        require(
            (bounds[0] >= 0) & (bounds[1:] >= bounds[:-1]).all() & (bounds[-1] <= rows),
            f"dba.{named} must not be negative, not decrease and end within the rows of the batch",
        )
        return Sequences(bounds[:-1], bounds[1:], rows, max_length=max_length)

    @staticmethod
    def from_lengths(lengths: Tensor, length: int) -> Sequences:
        """A padded batch (B, n, …), n = `length`, whose sequence b has lengths[b] tokens, at the front."""
        check_tensor("Sequences.from_lengths: lengths", lengths)
        if lengths.dim() != 1 or lengths.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"dba.Sequences.from_lengths: lengths must be int32 or int64 of shape (B), got {describe(lengths)}"
            )
        require(
            ((lengths >= 0) & (lengths <= length)).all(),
            "dba.Sequences.from_lengths: lengths must lie between 0 and the length of the batch",
        )
        begin = torch.arange(lengths.shape[0], device=lengths.device) * length
        return Sequences(begin, begin + lengths, lengths.shape[0] * length, max_length=length)

    @staticmethod
    def from_mask(mask: Tensor, *, named: str = "Sequences.from_mask: mask") -> Sequences:
        """A padded batch whose mask (B, n) is true where a token is real. The real tokens of a sequence must be
        contiguous; padding may stand before and behind them. named: what a refusal calls the mask."""
        check_tensor(named, mask)
        if mask.dim() != 2 or mask.dtype != torch.bool:
            raise ValueError(
                f"dba.{named} must be boolean of shape (B, n), true where a token is real, got {describe(mask)}"
            )
        batch, length = mask.shape
        real = mask.long()
        lengths = real.sum(1)
        # Tokens of a row before its first real one: places where nothing has been counted yet.
        first = (real.cumsum(1) == 0).sum(1) * (lengths > 0)
        position = torch.arange(length, device=mask.device)
        inside = (position >= first[:, None]) & (position < (first + lengths)[:, None])
        require(
            (inside == mask).all(),
            f"dba.{named} has holes, and the real tokens of a sequence must be contiguous; gather the real tokens of "
            "each sequence first",
        )
        begin = torch.arange(batch, device=mask.device) * length + first
        return Sequences(begin, begin + lengths, batch * length, max_length=length)


def check_tensor(named: str, value: object) -> None:
    """named: the function and its argument."""
    if not isinstance(value, Tensor):
        remedy = "" if value is None else "; make one with torch.as_tensor"
        raise ValueError(f"dba.{named} must be a tensor, got {describe(value)}{remedy}")


def describe(tensor: object) -> str:
    """'float32 (3, 4) on cpu'; of what is no tensor, its type."""
    if not isinstance(tensor, Tensor):
        return "None" if tensor is None else type(tensor).__name__
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"


def as_rows(
    function: str, argument: str, x: Tensor, sequences: Sequences | None, dimensions: int = 3
) -> tuple[Tensor, Sequences]:
    """Tokens as rows (N, …), and where their sequences lie. x is a batch (B, n, …) of `dimensions` dimensions, padded
    as `sequences` says or plain without them; or rows already."""
    check_tensor(f"{function}: {argument}", x)
    batched = x.dim() == dimensions
    if sequences is None:
        if not batched:
            raise ValueError(
                f"dba.{function}: {argument} without sequences must be a plain batch (B, n, …) of {dimensions} "
                f"dimensions, got {describe(x)}; packed or padded rows come with a dba.Sequences"
            )
        sequences = Sequences.dense(x.shape[0], x.shape[1], x.device)
    rows = x.flatten(0, 1) if batched else x
    if rows.shape[0] != sequences.rows:
        raise ValueError(
            f"dba.{function}: {argument} must have the rows that `sequences` speaks of, expected {sequences.rows}, got "
            f"{rows.shape[0]} of {describe(x)}; make the dba.Sequences for this batch"
        )
    return rows, sequences


def clear_rows(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros in the rows of nobody, whatever stood there (NaN too), and no gradient to them. rows (N, …), mask (N)."""
    if mask is None:
        return rows
    return torch.where(mask.view(-1, *[1] * (rows.dim() - 1)), rows, 0)
