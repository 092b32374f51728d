"""What callers hand to an attention, as token rows: batches in either order, single sequences, packed rows, nested
tensors; with padding masks as PyTorch's modules pass them."""

from __future__ import annotations

import torch
from torch import Tensor

from ._shapes import accumulation_dtype
from .sequences import Sequences, check_tensor, describe, require


def real_tokens(function: str, argument: str, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A padding mask of nn.MultiheadAttention, boolean (true: padding) or floating (−inf: padding, 0: real), as a
    boolean one that is true for real tokens."""
    check_tensor(f"{function}: {argument}", mask)
    if tuple(mask.shape) != shape:
        raise ValueError(f"dba.{function}: {argument} must have shape {shape}, got {describe(mask)}")
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise ValueError(f"dba.{function}: {argument} must be boolean or floating, got {describe(mask)}")
    real = mask == 0
    require(
        (real | (mask == -torch.inf)).all(),
        f"dba.{function}: a floating {argument} must hold 0 (real) and −inf (padding) alone; other values would weigh "
        "single keys, which cannot be done here",
    )
    return real


CAST = (torch.float32, torch.float16, torch.bfloat16)
"""The types that autocast casts."""


def check_type(function: str, argument: str, x: Tensor, weight: Tensor, narrower: bool) -> None:
    """narrower: the module takes half types beside float32 parameters."""
    if weight.dtype in (x.dtype, accumulation_dtype(x.dtype) if narrower else x.dtype):
        return
    cast = x.dtype in CAST and weight.dtype in CAST
    # autocast knows no meta tensors.
    if (cast or narrower) and not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return
    got = f"nested {x.dtype}" if x.is_nested else f"{x.dtype} {tuple(x.shape)}"
    raise ValueError(
        f"dba.{function}: {argument} must be of the parameters' type, {weight.dtype}, got {got}; cast the tokens or "
        f"the layer with .to(){', or use torch.autocast' if cast else ''}"
    )


def check_tokens(function: str, argument: str, x: Tensor, weight: Tensor, narrower: bool = True) -> None:
    """Tokens x (…, d) fit a module with the parameter weight (d, d)."""
    check_tensor(f"{function}: {argument}", x)
    width = weight.shape[1]
    if x.is_nested and x.dim() != 3:
        raise ValueError(f"dba.{function}: a nested {argument} must be of shape (B, n, {width}), got {x.dim()} dimensions")
    if x.dim() not in (2, 3):
        raise ValueError(f"dba.{function}: {argument} must have 2 dimensions (n, {width}) or 3, got {describe(x)}")
    if x.size(-1) != width:
        raise ValueError(f"dba.{function}: {argument} must have width {width}, got width {x.size(-1)}")
    check_type(function, argument, x, weight, narrower)


class TokenRows:
    """rows (N, d) of one argument, its sequences, and the way back to the argument's shape."""

    def __init__(
        self,
        function: str,
        argument: str,
        x: Tensor,
        weight: Tensor,
        batch_first: bool,
        mask: Tensor | None,
        cu_seqlens: Tensor | None,
        mask_name: str = "key_padding_mask",
        bounds_name: str = "cu_seqlens",
        narrower: bool = True,
    ) -> None:
        """weight (d, d): a parameter of the module that reads the tokens; mask_name and bounds_name: what its caller
        calls `mask` and `cu_seqlens`; narrower: whether it takes half types beside float32 parameters."""
        check_tokens(function, argument, x, weight, narrower)
        self.x, self.batch_first = x, batch_first
        if (x.is_nested or cu_seqlens is not None) and mask is not None:
            raise ValueError(
                f"dba.{function}: {argument} must come without {mask_name} where it is nested or packed "
                f"({bounds_name}), because its sequences are known already"
            )
        if x.is_nested:
            if cu_seqlens is not None:
                raise ValueError(f"dba.{function}: {argument} is nested and knows its bounds; leave {bounds_name} out")
            self._take_nested()
        elif cu_seqlens is not None:
            if x.dim() != 2:
                raise ValueError(
                    f"dba.{function}: {argument} with {bounds_name} must be packed rows (N, d), got {describe(x)}"
                )
            self.rows = x
            self.sequences = Sequences.packed(cu_seqlens, x.shape[0], named=f"{function}: {bounds_name}")
        else:
            batch = x.unsqueeze(0) if x.dim() == 2 else x if batch_first else x.transpose(0, 1)
            self.rows = batch.reshape(-1, x.shape[-1])
            if mask is None:
                self.sequences = Sequences.dense(batch.shape[0], batch.shape[1], x.device)
            else:
                real = real_tokens(function, mask_name, mask, tuple(batch.shape[x.dim() == 2 : 2]))
                self.sequences = Sequences.from_mask(real.view(batch.shape[:2]), named=f"{function}: {mask_name}")

    def _take_nested(self) -> None:
        if self.x.layout == torch.jagged:
            self.rows, bounds, lengths = self.x.values(), self.x.offsets(), self.x.lengths()
            if lengths is None:
                self.sequences = Sequences.packed(bounds, self.rows.shape[0])
            else:
                begin = bounds[:-1].long()
                self.sequences = Sequences(begin, begin + lengths, self.rows.shape[0])
        else:
            parts = self.x.unbind()
            self.rows = torch.cat(parts)
            self.parts = [part.shape[0] for part in parts]
            bounds = torch.tensor([0, *self.parts], device=self.rows.device).cumsum(0)
            self.sequences = Sequences.packed(bounds, self.rows.shape[0])

    def shaped(self, y: Tensor) -> Tensor:
        """y (N, width) in the shape that the argument had."""
        x = self.x
        if x.is_nested:
            if x.layout == torch.jagged:
                return torch.nested.nested_tensor_from_jagged(y, x.offsets(), x.lengths())
            return torch.nested.as_nested_tensor(list(y.split(self.parts)))
        if x.dim() == 2:
            return y
        if self.batch_first:
            return y.view(x.shape[0], x.shape[1], y.shape[1])
        return y.view(x.shape[1], x.shape[0], y.shape[1]).transpose(0, 1)
