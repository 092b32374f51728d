"""Attention layers in plain PyTorch, projections included, (B, n, d) → (B, n, d): softmax, and both forms of DBA.

The layers of DBA compute their function in three ways from the same weights: as the equations are written, by the
two-pass algebra, and by this library.
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Size(Protocol):
    """What a layer is built from."""

    d: int
    heads: int
    d_p: int
    d_in: int


def by_head(x: Tensor, heads: int) -> Tensor:
    """(B, n, H·w) → (B, H, n, w)"""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def joined(x: Tensor) -> Tensor:
    """(B, H, n, w) → (B, n, H·w)"""
    return x.transpose(-3, -2).flatten(-2)


def restored(x: Tensor, scores: nn.Linear, m: Tensor, bias: Tensor, heads: int) -> Tensor:
    """U M + b with M (B, H, d_p, d)."""
    u = torch.softmax(scores(x).unflatten(-1, (heads, -1)), -1).flatten(-2)
    return u @ m.flatten(1, 2) + bias


class SoftmaxLayer(nn.Module):
    """Softmax attention as PyTorch has it; SDPA's back end is the caller's choice."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.d, 3 * size.d)
        self.out = nn.Linear(size.d, size.d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (by_head(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        return self.out(joined(F.scaled_dot_product_attention(q, k, v)))

    def rows(self, x: Tensor, chosen: Tensor) -> Tensor:
        """The output rows `chosen` alone, without the whole map."""
        q, k, v = (by_head(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q[:, :, chosen] @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        return self.out(joined(weights @ v))


class PaperLayer(nn.Module):
    """Form `paper`, per head; e = ceil(d_in / H)."""

    form = "paper"

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.d_p = size.heads, size.d_p
        d, self.d_h, e = size.d, size.d // size.heads, -(-size.d_in // size.heads)
        self.z = nn.Parameter(torch.randn(size.d_p, d))
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d, d) for _ in range(4))
        self.r = nn.Parameter(torch.randn(size.heads, self.d_h, e) / math.sqrt(e))
        self.f_c, self.f_r = (nn.Linear(d, size.heads * size.d_p) for _ in range(2))

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """P' applied to the compressed values, (B, H, d_p, ·) each."""
        queries, keys = queries @ self.r, keys @ self.r
        return torch.softmax(queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1]), -1) @ values

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (by_head(w(x), self.heads) for w in (self.w_q, self.w_k, self.w_v))
        z = by_head(self.z, self.heads)
        scale = 1 / math.sqrt(self.d_h)
        w_r = torch.softmax(z @ q.transpose(-1, -2) * scale, -1)
        w_c = torch.softmax(z @ k.transpose(-1, -2) * scale, -1)
        w_c_prime = torch.softmax(by_head(self.f_c(x), self.heads), -2)
        w_r_prime = torch.softmax(by_head(self.f_r(x), self.heads), -1)
        mixed = self.mix(w_r @ q, w_c @ k, w_c_prime.transpose(-1, -2) @ v)
        return self.w_o(joined(w_r_prime @ mixed))

    def folded(self) -> list[Tensor]:
        """The score rows that stand for a projection followed by a product with z, (H·d_p, d) each."""
        z = by_head(self.z, self.heads) / math.sqrt(self.d_h)
        return [(z @ w.weight.unflatten(0, (self.heads, self.d_h))).flatten(0, 1) for w in (self.w_q, self.w_k)]

    def two_pass(self, x: Tensor) -> Tensor:
        """The same with the projections folded into what has no n."""
        rows = torch.cat([*self.folded(), self.f_c.weight])
        bias = torch.cat([self.f_c.bias.new_zeros(2 * self.heads * self.d_p), self.f_c.bias])
        weights = torch.softmax(F.linear(x, rows, bias).float(), -2).to(x.dtype)  # (B, n, L)
        groups = (weights.transpose(-1, -2) @ x).chunk(3, -2)

        def project(group: Tensor, w: nn.Linear) -> Tensor:
            per_head = group.unflatten(-2, (self.heads, self.d_p))
            matrix = w.weight.unflatten(0, (self.heads, self.d_h))
            return per_head @ matrix.transpose(-1, -2) + w.bias.unflatten(0, (self.heads, 1, self.d_h))

        mixed = self.mix(*(project(g, w) for g, w in zip(groups, (self.w_q, self.w_k, self.w_v))))
        out = self.w_o.weight.unflatten(1, (self.heads, self.d_h)).permute(1, 2, 0)  # (H, d_h, d)
        return restored(x, self.f_r, mixed @ out, self.w_o.bias, self.heads)

    def library(self, x: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """The same by the operators of libdba.so; begin, end (B): where the sequences lie in the B·n rows."""
        ops = torch.ops.dba
        shared, bias = ops.fold_stack(self.z, [self.w_q.weight, self.w_k.weight], [None, None], self.f_c.weight,
                                      self.f_c.bias, self.heads, 1 / math.sqrt(self.d_h))
        weights = [self.w_q.weight, self.w_q.bias, self.w_k.weight, self.w_k.bias, self.w_v.weight, self.w_v.bias,
                   self.r, None, None, None, None, self.w_o.weight, None]
        y, _ = ops.attention(x.flatten(0, 1), begin, end, None, None, shared, bias, 0, weights, self.f_r.weight,
                             self.f_r.bias, self.w_o.bias, self.heads, False, 0.0, None)
        return y.view_as(x)


class ReleasedLayer(nn.Module):
    """The authors' time-series code: one compression, projections after it, a LayerNorm in the middle."""

    form = "released"

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.d_p = size.heads, size.d_p
        d, self.e = size.d, -(-size.d_in // size.heads)
        inner = size.heads * self.e
        self.z = nn.Parameter(torch.randn(size.d_p, d))
        self.p_q, self.p_k, self.w_q, self.w_k = (nn.Linear(d, inner) for _ in range(4))
        self.p_v, self.w_v, self.w_o = (nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.w_u = nn.Linear(d, size.heads * size.d_p)

    def middle(self, c: Tensor) -> Tensor:
        """(B, d_p, d) → the normed output of the attention between slots, by head."""
        q, k, v = (by_head(w(c), self.heads) for w in (self.w_q, self.w_k, self.w_v))
        s = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.e), -1)
        return by_head(self.norm(joined(s @ v)), self.heads)

    def forward(self, x: Tensor) -> Tensor:
        z = by_head(self.p_q(self.z), self.heads)
        keys, values = (by_head(w(x), self.heads) for w in (self.p_k, self.p_v))
        a = torch.softmax(z @ keys.transpose(-1, -2) / math.sqrt(self.e), -1)
        u = torch.softmax(by_head(self.w_u(x), self.heads), -1)
        return self.w_o(joined(u @ self.middle(joined(a @ values))))

    def two_pass(self, x: Tensor) -> Tensor:
        """The same with the projections folded into what has no n."""
        z = by_head(self.p_q(self.z), self.heads) / math.sqrt(self.e)
        rows = (z @ self.p_k.weight.unflatten(0, (self.heads, self.e))).flatten(0, 1)
        weights = torch.softmax((x @ rows.t()).float(), -2).to(x.dtype)
        summary = (weights.transpose(-1, -2) @ x).unflatten(-2, (self.heads, self.d_p))
        values = self.p_v.weight.unflatten(0, (self.heads, -1)).transpose(-1, -2)
        c = joined(summary @ values) + self.p_v.bias
        out = self.w_o.weight.unflatten(1, (self.heads, -1)).permute(1, 2, 0)
        return restored(x, self.w_u, self.middle(c) @ out, self.w_o.bias, self.heads)

    def library(self, x: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """The same by the operators of libdba.so; begin, end (B): where the sequences lie in the B·n rows."""
        ops = torch.ops.dba
        shared, bias = ops.fold(self.p_q(self.z), self.p_k.weight, self.p_k.bias, self.heads, 1 / math.sqrt(self.e))
        weights = [self.w_q.weight, self.w_q.bias, self.w_k.weight, self.w_k.bias, self.w_v.weight, self.w_v.bias,
                   None, self.p_v.weight, self.p_v.bias, self.norm.weight, self.norm.bias, self.w_o.weight, None]
        y, _ = ops.attention(x.flatten(0, 1), begin, end, None, None, shared, bias, 0, weights, self.w_u.weight,
                             self.w_u.bias, self.w_o.bias, self.heads, False, 0.0, None)
        return y.view_as(x)
