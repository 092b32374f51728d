"""Shape functions of the operators for compilers, which know sizes as symbols: the library's own, in C++, read them as
numbers, and code compiled with those would be compiled again for every length.

Operators whose gradient in C++ reads sizes as numbers too have a twin without one, `torch.ops.dba_python.*`, which the
gradients in Python (_nodes.py) call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Operand = Tensor | None


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for float16 and bfloat16, else the type itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _like(operands: Sequence[Operand]) -> list[Tensor]:
    return [torch.empty_like(operand) for operand in operands if operand is not None]


def _like_or_none(operand: Operand) -> Operand:
    return None if operand is None else torch.empty_like(operand)


def _tokens_like(x: Tensor, width: int) -> Tensor:
    return x.new_empty(x.shape[0], width)


def _wide(x: Tensor, *shape: int) -> Tensor:
    return x.new_empty(shape, dtype=accumulation_dtype(x.dtype))


def _compress(
    x: Tensor, begin: Tensor, end: Tensor, each: Operand, each_bias: Operand, shared: Operand, shared_bias: Operand,
    linear: int, dropout: float, rng: Operand,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (0 if each is None else each.shape[1]) + (0 if shared is None else shared.shape[0])
    batch = begin.shape[0]
    return _wide(x, batch, rows, x.shape[1]), _wide(x, batch, rows), _wide(x, batch, rows)


def _compress_backward(
    x: Tensor, begin: Tensor, end: Tensor, each: Operand, each_bias: Operand, shared: Operand, shared_bias: Operand,
    linear: int, dropout: float, rng: Operand, c: Tensor, r: Tensor, lse: Tensor, dc: Operand, dr: Operand,
    dlse: Operand,
) -> tuple[Operand, ...]:
    operands = (each, each_bias, shared, shared_bias)
    return (torch.empty_like(x, memory_format=torch.contiguous_format), *map(_like_or_none, operands))


def _core(
    c: Tensor, r: Tensor, weights: Sequence[Operand], heads: int, dropout: float, rng: Operand
) -> tuple[Tensor, Tensor]:
    released, cross = weights[7] is not None, weights[12] is not None
    d_p = c.shape[1] // (heads if released or cross else 3 * heads)
    width = weights[7].shape[0] if released else weights[0].shape[0]
    return c.new_empty(c.shape[0], heads * d_p, weights[11].shape[0]), c.new_empty(c.shape[0], d_p, width)


def _core_backward(
    c: Tensor, r: Tensor, weights: Sequence[Operand], heads: int, dropout: float, rng: Operand, dm: Operand,
    dcompressed: Operand,
) -> list[Tensor]:
    return _like((c, r, *weights))


def _restore(
    x: Tensor, begin: Tensor, end: Tensor, rows: Tensor, bias: Operand, m: Tensor, out_bias: Operand, heads: int,
    linear: bool, dropout: float, rng: Operand,
) -> Tensor:
    return _tokens_like(x, m.shape[2])


def _restore_backward(
    x: Tensor, begin: Tensor, end: Tensor, rows: Tensor, bias: Operand, m: Tensor, out_bias: Operand, heads: int,
    linear: bool, dropout: float, rng: Operand, dy: Tensor,
) -> tuple[Operand, ...]:
    return (_tokens_like(x, x.shape[1]), torch.empty_like(rows), _like_or_none(bias), torch.empty_like(m),
            _like_or_none(out_bias))


def _attention_forward(
    x: Tensor, begin: Tensor, end: Tensor, each: Operand, each_bias: Operand, shared: Operand, shared_bias: Operand,
    linear_rows: int, weights: Sequence[Operand], restore_rows: Tensor, restore_bias: Operand, out_bias: Operand,
    heads: int, linear: bool, dropout: float, rng: Operand,
) -> tuple[Tensor, ...]:
    c, r, lse = _compress(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, dropout, rng)
    m, compressed = _core(c, r, weights, heads, dropout, rng)
    if x.is_cuda:
        m = m.to(x.dtype)  # as the kernels read it
    return _tokens_like(x, m.shape[2]), compressed, c, r, lse, m


def _attention(*arguments: Any) -> tuple[Tensor, ...]:
    return _attention_forward(*arguments)[:2]


def _attention_backward(
    x: Tensor, begin: Tensor, end: Tensor, each: Operand, each_bias: Operand, shared: Operand, shared_bias: Operand,
    linear_rows: int, weights: Sequence[Operand], restore_rows: Tensor, restore_bias: Operand, out_bias: Operand,
    heads: int, linear: bool, dropout: float, rng: Operand, c: Tensor, r: Tensor, lse: Tensor, m: Tensor, dy: Tensor,
    dcompressed: Operand,
) -> list[Tensor]:
    rest = (each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights)
    return [_tokens_like(x, x.shape[1]), *_like(rest)]


SHAPES = {
    "compress": _compress,
    "compress_backward": _compress_backward,
    "core": _core,
    "core_backward": _core_backward,
    "restore": _restore,
    "restore_backward": _restore_backward,
    "attention": _attention,
    "attention_forward": _attention_forward,
    "attention_backward": _attention_backward,
}

TWINS = torch.library.Library("dba_python", "DEF")


def _add_twin(name: str) -> None:
    operator = getattr(torch.ops.dba, name).default

    def call(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    TWINS.define(str(operator._schema).removeprefix("dba::"), tags=torch.Tag.pt2_compliant_tag)
    TWINS.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dba_python::{name}", SHAPES[name], lib=TWINS)


def register() -> None:
    """Once, after the library is loaded."""
    for name, shape in SHAPES.items():
        torch.library.register_fake(f"dba::{name}", shape, allow_override=True)
    for name in ("compress", "core", "restore"):
        _add_twin(name)
