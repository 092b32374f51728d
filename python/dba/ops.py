"""The operators of the two streaming passes, for attentions of one's own.

    compress   S = rows xᵀ + bias    W = normalise over tokens(S)    c = W x,  r = W 1,  lse     x is read once
    core       everything between the passes, on the compressed rows
    restore    U = normalise over slots(x rowsᵀ + bias)              y = U m + out_bias           x is read once

Sizes: N rows in all, B sequences, width d, H heads, d_p slots per head, L score rows. Tokens are rows (N, d) with a
`Sequences` that says where each sequence lies, or a plain batch (B, n, d) without one. Everything is differentiable
once, on CPU and GPU, and inside `torch.compile`, `torch.export` and `torch.func.grad`. Sums are accumulated in float32
for float16 and bfloat16 tokens; every operand but the tokens may be of the tokens' type or of the accumulation type.
`docs/mathematics.md` derives all of it.

The same `torch.ops.dba.*` lie underneath; these functions only spare their callers the absent arguments.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from . import _nodes
from ._fold import fold
from .sequences import Sequences, as_rows

__all__ = ["CoreResult", "CoreWeights", "Summary", "attention", "compress", "core", "draw", "fold", "merge", "restore"]


class Summary(NamedTuple):
    """What `compress` says of every sequence, in the accumulation type."""

    c: Tensor
    """(B, L, d) weighted sums of the tokens"""
    r: Tensor
    """(B, L) sums of the weights: 1 for softmax rows without dropout, 0 for an empty sequence"""
    lse: Tensor
    """(B, L) log-sum-exp of the scores; log of the length for linear rows; −inf for an empty sequence"""


class CoreResult(NamedTuple):
    """What `core` makes of a summary."""

    m: Tensor
    """(B, H·d_p, d_out) what `restore` mixes"""
    c: Tensor
    """(B, d_p, d) the compressed sequence"""


@dataclasses.dataclass
class CoreWeights:
    """The parameters of `core`. Linear layers as in nn.Linear: weight (out, in), bias (out). With `compress_weight` the
    form is `released`, without it `paper`."""

    query_weight: Tensor
    """W_Q (paper) or W_q (released)"""
    key_weight: Tensor
    value_weight: Tensor
    out_weight: Tensor
    """W_O (d_out, d)"""
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    width: Tensor | None = None
    """R (H, d_h, e), paper only; absent: R = I"""
    compress_weight: Tensor | None = None
    """P_v, released only"""
    compress_bias: Tensor | None = None
    norm_weight: Tensor | None = None
    """the LayerNorm in front of the restoration (d), released only"""
    norm_bias: Tensor | None = None
    other: Tensor | None = None
    """(B, d_p, d) the compressed sequence of another stream: cross-attention"""

    def as_list(self) -> list[Tensor | None]:
        """In the order of the operator's schema."""
        return [self.query_weight, self.query_bias, self.key_weight, self.key_bias, self.value_weight, self.value_bias,
                self.width, self.compress_weight, self.compress_bias, self.norm_weight, self.norm_bias,
                self.out_weight, self.other]


def draw(dropout: float, device: torch.device) -> Tensor | None:
    """(2) int64, seed and offset of a fresh dropout mask from PyTorch's generator; None without dropout."""
    return torch.randint(2**63 - 1, (2,), device=device) if dropout > 0 else None


def _autocast(x: Tensor) -> Tensor:
    """As the operators do it in C++: under autocast the tokens are cast and nothing else."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def _refuse_forced_compilation(function: str, backend: str | None) -> None:
    if backend is not None and torch.compiler.is_compiling():
        raise ValueError(
            f"dba.ops.{function}: backend must be None in compiled code, got {backend!r}; put `with dba.backend("
            f"{backend!r}):` around the call of the compiled function"
        )


def compress(
    x: Tensor,
    sequences: Sequences | None = None,
    *,
    shared: Tensor | None = None,
    shared_bias: Tensor | None = None,
    each: Tensor | None = None,
    each_bias: Tensor | None = None,
    linear: int = 0,
    dropout: float = 0.0,
    rng: Tensor | None = None,
    backend: str | None = None,
) -> Summary:
    """Weighted sums of the tokens of every sequence: attention with the score rows as queries and one head whose keys
    and values are the tokens themselves.

    x (N, d) or (B, n, d). The L score rows are those of each sequence, `each` (B, L1, d) with bias (B, L1), then those
    that all share, `shared` (L2, d) with bias (L2). The last `linear` of them are divided by the sequence's length
    instead of passing a softmax over the tokens.

    Perceiver-style pooling of sequences of any length to 4 vectors, by learned queries:

    >>> x = torch.randn(2, 100, 16)
    >>> queries = torch.randn(4, 16, requires_grad=True)
    >>> pooled = dba.ops.compress(x, shared=queries / 16**0.5).c
    >>> pooled.shape
    torch.Size([2, 4, 16])

    Luna's pack: a memory of each sequence asks the tokens.

    >>> memory = torch.randn(2, 8, 16)
    >>> packed = dba.ops.compress(x, each=memory / 16**0.5).c
    >>> packed.shape
    torch.Size([2, 8, 16])
    """
    rows, sequences = as_rows("ops.compress", "x", x, sequences)
    begin, end = sequences.begin, sequences.end
    rng = draw(dropout, x.device) if rng is None else rng
    if backend is not None or _nodes.in_python():
        _refuse_forced_compilation("compress", backend)
        operands = (_autocast(rows), each, each_bias, shared, shared_bias)
        return Summary(*_nodes.Compress.apply(begin, end, linear, dropout, rng, backend, *operands))
    return Summary(*torch.ops.dba.compress.default(rows, begin, end, each, each_bias, shared, shared_bias, linear,
                                                   dropout, rng))


def merge(a: Summary, b: Summary) -> Summary:
    """The summary of a sequence from the summaries of two of its parts: exact, in any order of the parts. A sequence
    may so be compressed piece by piece, or on several machines.

    >>> x = torch.randn(1, 10, 4, dtype=torch.double)
    >>> queries = torch.randn(3, 4, dtype=torch.double)
    >>> whole = dba.ops.compress(x, shared=queries)
    >>> parts = [dba.ops.compress(part, shared=queries) for part in (x[:, :7], x[:, 7:])]
    >>> torch.allclose(dba.ops.merge(*parts).c, whole.c)
    True
    """
    lse = torch.logaddexp(a.lse, b.lse)
    # Two empty parts: no weight to divide, and the sums are zeros already.
    finite = torch.where(lse == -torch.inf, torch.zeros_like(lse), lse)
    of_a, of_b = (a.lse - finite).exp(), (b.lse - finite).exp()
    return Summary(of_a[..., None] * a.c + of_b[..., None] * b.c, of_a * a.r + of_b * b.r, lse)


def core(
    c: Tensor,
    r: Tensor,
    weights: CoreWeights,
    heads: int,
    *,
    dropout: float = 0.0,
    rng: Tensor | None = None,
    backend: str | None = None,
) -> CoreResult:
    """Everything between the two passes, on d_p rows: projections, R, softmax over slots, W_O.

    c (B, L, d) and r (B, L) hold the row groups (W_r, W_c, W_c') in form `paper`, L = 3·H·d_p; one group, L = H·d_p, in
    form `released` and in cross-attention.

    Set attention with 3 inducing points per head: the points ask the set, attend to each other, and answer every
    member; the cost is linear in the size of the set, and the order of its members does not matter.

    >>> d, heads, points = 16, 2, 3
    >>> members = torch.randn(2, 50, d)
    >>> linear = lambda: torch.randn(d, d) / d**0.5
    >>> rows = torch.randn(3 * heads * points, d)
    >>> summary = dba.ops.compress(members, shared=rows)
    >>> weights = dba.ops.CoreWeights(linear(), linear(), linear(), linear())
    >>> points_say = dba.ops.core(summary.c, summary.r, weights, heads).m
    >>> dba.ops.restore(members, rows=torch.randn(heads * points, d), m=points_say, heads=heads).shape
    torch.Size([2, 50, 16])
    """
    rng = draw(dropout, c.device) if rng is None else rng
    if backend is not None or _nodes.in_python():
        _refuse_forced_compilation("core", backend)
        return CoreResult(*_nodes.Core.apply(heads, dropout, rng, backend, c, r, *weights.as_list()))
    return CoreResult(*torch.ops.dba.core.default(c, r, weights.as_list(), heads, dropout, rng))


def restore(
    x: Tensor,
    sequences: Sequences | None = None,
    *,
    rows: Tensor,
    m: Tensor,
    bias: Tensor | None = None,
    out_bias: Tensor | None = None,
    heads: int = 1,
    linear: bool = False,
    dropout: float = 0.0,
    rng: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Every token mixes the rows of `m` of its sequence: U = normalise over the slots of each head (x rowsᵀ + bias),
    y = U m + out_bias. With `linear`, U is x rowsᵀ + bias itself.

    x (N, d) or (B, n, d); rows (H·d_p, d) with bias (H·d_p), or rows (B, H·d_p, d) with bias (B, H·d_p); m (B, H·d_p,
    d_out); out_bias (d_out). Returns (N, d_out) or (B, n, d_out) of x's type; zeros in rows of nobody.

    Luna's unpack: every token asks the packed memory of its sequence, whose keys are folded into the score rows.

    >>> x, packed = torch.randn(2, 100, 16), torch.randn(2, 8, 16)
    >>> w_q, w_k, w_v = (torch.nn.Linear(16, 16) for _ in range(3))
    >>> keys, scale = w_k(packed), 16**-0.5
    >>> y = dba.ops.restore(x, rows=scale * keys @ w_q.weight, bias=scale * keys @ w_q.bias, m=w_v(packed))
    >>> plain = torch.nn.functional.scaled_dot_product_attention(w_q(x), keys, w_v(packed))
    >>> torch.allclose(y, plain, atol=1e-5)
    True
    """
    tokens, sequences = as_rows("ops.restore", "x", x, sequences)
    begin, end = sequences.begin, sequences.end
    rng = draw(dropout, x.device) if rng is None else rng
    if backend is not None or _nodes.in_python():
        _refuse_forced_compilation("restore", backend)
        y = _nodes.Restore.apply(begin, end, heads, linear, dropout, rng, backend, _autocast(tokens), rows, bias, m,
                                 out_bias)
    else:
        y = torch.ops.dba.restore.default(tokens, begin, end, rows, bias, m, out_bias, heads, linear, dropout, rng)
    return y.unflatten(0, x.shape[:2]) if x.dim() == 3 else y


def attention(
    x: Tensor,
    sequences: Sequences,
    weights: CoreWeights,
    *,
    restore_rows: Tensor,
    heads: int,
    shared: Tensor | None = None,
    shared_bias: Tensor | None = None,
    each: Tensor | None = None,
    each_bias: Tensor | None = None,
    linear_rows: int = 0,
    restore_bias: Tensor | None = None,
    out_bias: Tensor | None = None,
    linear: bool = False,
    dropout: float = 0.0,
    rng: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """compress, core and restore as one autograd node: the gradient of x (N, d) is written once.

    Arguments as those three take them. Returns y (N, d_out) and the compressed sequence (B, d_p, d).
    """
    begin, end = sequences.begin, sequences.end
    rng = draw(dropout, x.device) if rng is None else rng
    if backend is not None or _nodes.in_python():
        _refuse_forced_compilation("attention", backend)
        result = _nodes.Attention.apply(begin, end, linear_rows, heads, linear, dropout, rng, backend, _autocast(x),
                                        each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias,
                                        *weights.as_list())
        return result[0], result[1]
    return torch.ops.dba.attention.default(x, begin, end, each, each_bias, shared, shared_bias, linear_rows,
                                           weights.as_list(), restore_rows, restore_bias, out_bias, heads, linear,
                                           dropout, rng)
