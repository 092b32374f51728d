"""The operators' gradients as autograd functions in Python, over the same kernels, for `torch.compile`, `torch.export`
and `torch.func`. Called as usual, the operators bring their gradients along in C++, which is quicker; but compilers
would read sizes as numbers there, and the transforms of `torch.func` refuse functions in C++.

A gradient that is to be differentiated itself is refused, as in C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ._backend import backend

Gradients = tuple[Tensor | None, ...]
"""One for each argument of `forward`, None for the settings."""


def in_python() -> bool:
    """Whether the gradient has to be defined in Python: while a compiler looks on, and inside torch.func."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


class _Gradient(torch.autograd.Function):
    """Calls a backward operator; its own gradient is a sentence."""

    @staticmethod
    def forward(name: str, forced: str | None, *arguments: Any) -> Gradients:
        return tuple(_call(name + "_backward", forced, *_regrouped(arguments)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        raise RuntimeError(
            f"dba::{ctx.name}: double backward is not supported (the gradient was asked to be differentiated); use "
            "torch.nn.MultiheadAttention where second derivatives are needed"
        )


class _List(int):
    """How many of the arguments behind it belong into a list."""


def _regrouped(arguments: Sequence[Any]) -> list[Any]:
    result: list[Any] = []
    index = 0
    while index < len(arguments):
        if isinstance(arguments[index], _List):
            count = int(arguments[index])
            result.append(list(arguments[index + 1 : index + 1 + count]))
            index += count
        else:
            result.append(arguments[index])
        index += 1
    return result


def _call(name: str, forced: str | None, *arguments: Any) -> Any:
    library = torch.ops.dba_python if name in ("compress", "core", "restore") else torch.ops.dba
    operator = getattr(library, name).default
    if forced is None:
        return operator(*arguments)
    with backend(forced):
        return operator(*arguments)


def _gradients(name: str, forced: str | None, *arguments: Any) -> list[Tensor | None]:
    """The results of the backward operator; lists among the arguments are of tensors."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return list(_call(name + "_backward", forced, *arguments))
    flat: list[Any] = []
    for argument in arguments:
        flat += [_List(len(argument)), *argument] if isinstance(argument, list) else [argument]
    return list(_Gradient.apply(name, forced, *flat))


def _taken(gradients: Iterator[Tensor | None], operands: Sequence[Tensor | None]) -> list[Tensor | None]:
    """One gradient for each operand that is present, None for the others."""
    return [None if operand is None else next(gradients) for operand in operands]


class Compress(torch.autograd.Function):
    """Settings: begin, end, linear, dropout, rng, forced. Operands: x, each, each_bias, shared, shared_bias."""

    @staticmethod
    def forward(
        begin: Tensor, end: Tensor, linear: int, dropout: float, rng: Tensor | None, forced: str | None,
        *operands: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, *rows = operands
        return _call("compress", forced, x, begin, end, *rows, linear, dropout, rng)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        begin, end, ctx.linear, ctx.dropout, rng, ctx.forced, *operands = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(begin, end, rng, *output, *operands)

    @staticmethod
    def backward(ctx: Any, dc: Tensor | None, dr: Tensor | None, dlse: Tensor | None) -> Gradients:
        begin, end, rng, c, r, lse, x, *rows = ctx.saved_tensors
        gradients = _gradients("compress", ctx.forced, x, begin, end, *rows, ctx.linear, ctx.dropout, rng, c, r, lse,
                               dc, dr, dlse)
        return (None,) * 6 + tuple(gradients)


class Core(torch.autograd.Function):
    """Settings: heads, dropout, rng, forced. Operands: c, r, weights."""

    @staticmethod
    def forward(
        heads: int, dropout: float, rng: Tensor | None, forced: str | None, *operands: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        c, r, *weights = operands
        return _call("core", forced, c, r, weights, heads, dropout, rng)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.heads, ctx.dropout, rng, ctx.forced, *operands = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rng, *operands)

    @staticmethod
    def backward(ctx: Any, dm: Tensor | None, dcompressed: Tensor | None) -> Gradients:
        rng, *operands = ctx.saved_tensors
        c, r, *weights = operands
        gradients = iter(_gradients("core", ctx.forced, c, r, weights, ctx.heads, ctx.dropout, rng, dm, dcompressed))
        return (None,) * 4 + tuple(_taken(gradients, operands))


class Restore(torch.autograd.Function):
    """Settings: begin, end, heads, linear, dropout, rng, forced. Operands: x, rows, bias, m, out_bias."""

    @staticmethod
    def forward(
        begin: Tensor, end: Tensor, heads: int, linear: bool, dropout: float, rng: Tensor | None, forced: str | None,
        *operands: Tensor | None,
    ) -> Tensor:
        x, *rest = operands
        return _call("restore", forced, x, begin, end, *rest, heads, linear, dropout, rng)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        begin, end, ctx.heads, ctx.linear, ctx.dropout, rng, ctx.forced, *operands = inputs
        ctx.save_for_backward(begin, end, rng, *operands)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        begin, end, rng, x, *rest = ctx.saved_tensors
        gradients = _gradients("restore", ctx.forced, x, begin, end, *rest, ctx.heads, ctx.linear, ctx.dropout, rng,
                               dy)
        return (None,) * 7 + tuple(gradients)


class Attention(torch.autograd.Function):
    """Settings: begin, end, linear_rows, heads, linear, dropout, rng, forced. Operands: x, each, each_bias, shared,
    shared_bias, restore_rows, restore_bias, out_bias, weights. Returns y and compressed, then what backward needs."""

    @staticmethod
    def forward(
        begin: Tensor, end: Tensor, linear_rows: int, heads: int, linear: bool, dropout: float, rng: Tensor | None,
        forced: str | None, *operands: Tensor | None,
    ) -> tuple[Tensor, ...]:
        x, each, each_bias, shared, shared_bias, rows, bias, out_bias, *weights = operands
        return _call("attention_forward", forced, x, begin, end, each, each_bias, shared, shared_bias, linear_rows,
                     weights, rows, bias, out_bias, heads, linear, dropout, rng)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        begin, end, ctx.linear_rows, ctx.heads, ctx.linear, ctx.dropout, rng, ctx.forced, *operands = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(begin, end, rng, *output[2:], *operands)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dcompressed: Tensor | None, *_: Tensor | None) -> Gradients:
        begin, end, rng, c, r, lse, m, *operands = ctx.saved_tensors
        x, each, each_bias, shared, shared_bias, rows, bias, out_bias, *weights = operands
        if dy is None:
            dy = x.new_zeros(x.shape[0], m.shape[2])
        gradients = iter(
            _gradients("attention", ctx.forced, x, begin, end, each, each_bias, shared, shared_bias, ctx.linear_rows,
                       weights, rows, bias, out_bias, ctx.heads, ctx.linear, ctx.dropout, rng, c, r, lse, m, dy,
                       dcompressed)
        )
        return (None,) * 8 + tuple(_taken(gradients, operands))
