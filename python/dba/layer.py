"""The parameters of a DBA layer, under the names they have in C++, and what the layer computes of token rows."""

from __future__ import annotations

import math
import operator
import warnings

import torch
from torch import Tensor, nn

from . import ops
from ._backend import check_backend
from .sequences import Sequences

FORMS = ("paper", "released")
NORMALISES = ("softmax", "linear")


def check_choice(function: str, argument: str, value: str, choices: tuple[str, ...]) -> str:
    """`value` itself, or ValueError."""
    if value not in choices:
        raise ValueError(f"dba.{function}: {argument} must be one of {', '.join(choices)}, got {value!r}")
    return value


def check_rate(function: str, argument: str, rate: float) -> float:
    """A dropout rate lies in [0, 1)."""
    if isinstance(rate, str) or not hasattr(rate, "__float__"):
        remedy = "write it without quotes" if isinstance(rate, str) else "0 is no dropout"
        raise ValueError(f"dba.{function}: {argument} must be a number in [0, 1), got {rate!r}; {remedy}")
    if not 0 <= rate < 1:
        raise ValueError(f"dba.{function}: {argument} must lie in [0, 1), got {rate}")
    return float(rate)


def check_flag(function: str, argument: str, value: bool) -> bool:
    """Yes or no, of any library; 1 and 0 will do."""
    if value not in (True, False):
        raise ValueError(f"dba.{function}: {argument} must be True or False, got {value!r}")
    return bool(value)


def check_dtype(function: str, dtype: torch.dtype | None) -> None:
    """None, or one of parameters: a floating one. `float` is torch's float64."""
    if dtype is None or dtype is float or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return
    meant = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else None
    known = isinstance(meant, torch.dtype) and meant.is_floating_point
    raise ValueError(f"dba.{function}: dtype must be a floating torch.dtype, got {dtype!r}; "
                     f"{f'write {meant}' if known else 'torch.float32 is one'}")


LARGEST_SIZE = 2**31
"""As of the options of the zoo in C++."""


def whole(value: object) -> str:
    """What to write instead of a size that is no integer."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "give a whole number"
    return f"write {int(number)}" if number.is_integer() else "give a whole number"


def check_positive(function: str, argument: str, value: int) -> int:
    """A size is an integer, of any library, of 1 or more."""
    try:
        size = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = None
    if size is None:
        raise ValueError(f"dba.{function}: {argument} must be an integer of 1 or more, got {value!r}; {whole(value)}")
    if size < 1:
        raise ValueError(f"dba.{function}: {argument} must be 1 or more, got {size}")
    if size > LARGEST_SIZE:
        raise ValueError(f"dba.{function}: {argument} must be at most {LARGEST_SIZE}, got {size}")
    return size


class Slots(nn.Module):
    """The first Z: one learned (d_p, d) parameter, N(0, 1/d) at first, dropped out for every sequence."""

    def __init__(self, d_p: int, d: int, dropout: float = 0.0, layer_norm: bool = False) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.empty(check_positive("Slots", "d_p", d_p), d))
        self.norm = nn.LayerNorm(d) if layer_norm else None
        self.dropout = check_rate("Slots", "dropout", dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws Z anew."""
        nn.init.normal_(self.z, std=self.z.shape[1] ** -0.5)
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(self, batch: int) -> Tensor:
        """(d_p, d), or (B, d_p, d) where dropout makes the slots of the `batch` sequences differ."""
        z = self.z if self.norm is None else self.norm(self.z)
        if not self.training or self.dropout == 0:
            return z
        return nn.functional.dropout(z.expand(batch, -1, -1), self.dropout)


class DBALayer(nn.Module):
    """Dynamic bilinear low-rank attention over token rows, with slots Z from outside.

    With d_h = d/H and e = ceil(d_in/H), linear layers as in nn.Linear:

        form `paper`     w_q, w_k, w_v, w_o (d → d), r (H, d_h, e), f_c, f_r (d → H·d_p)
        form `released`  p_q, p_k, w_q, w_k (d → H·e), p_v, w_v, w_o (d → d), w_u (d → H·d_p), norm (d)
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        d_p: int = 16,
        d_in: int = 24,
        form: str = "paper",
        normalise: str = "softmax",
        dropout: float = 0.0,
        bias: bool = True,
        compress_length: bool = True,
        compress_width: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.d = check_positive(name, "d", d)
        self.heads = check_positive(name, "heads", heads)
        if d % heads:
            raise ValueError(f"dba.{name}: the width must be divisible by the number of heads, got {d} and {heads}")
        self.d_p = check_positive(name, "d_p", d_p)
        self.d_in = check_positive(name, "d_in", d_in)
        self.form = check_choice(name, "form", form, FORMS)
        self.normalise = check_choice(name, "normalise", normalise, NORMALISES)
        self.dropout = check_rate(name, "dropout", dropout)
        self.compress_length = check_flag(name, "compress_length", compress_length)
        self.compress_width = check_flag(name, "compress_width", compress_width)
        self.backend = None if backend is None else check_backend(name, backend)
        if self.released and (normalise != "softmax" or not compress_length or not compress_width):
            raise ValueError(
                f"dba.{name}: form released has normalise softmax and compresses length and width, got normalise "
                f"{normalise}, compress_length {compress_length}, compress_width {compress_width}; the variants are of "
                "form paper"
            )
        if compress_width and self.e * heads != d_in:
            warnings.warn(
                f"dba.{name}: d_in = {d_in} does not divide into {heads} heads; rounded up to {self.e * heads} "
                f"({self.e} per head)",
                stacklevel=3,
            )
        self.bias = check_flag(name, "bias", bias)
        self._add_parameters()

    @property
    def released(self) -> bool:
        """Whether the form is that of the authors' released code."""
        return self.form == "released"

    @property
    def e(self) -> int:
        """Width of the compressed queries and keys of one head."""
        if self.form == "paper" and not self.compress_width:
            return self.d // self.heads
        return -(-self.d_in // self.heads)

    @property
    def restoring(self) -> nn.Linear:
        """F_r or W_u."""
        return self.w_u if self.released else self.f_r

    def _linear(self, name: str, inputs: int, outputs: int) -> None:
        self.add_module(name, nn.Linear(inputs, outputs, bias=self.bias))

    def _add_parameters(self) -> None:
        d, inner, slots = self.d, self.heads * self.e, self.heads * self.d_p
        if self.released:
            for name, outputs in (("p_q", inner), ("p_k", inner), ("p_v", d), ("w_q", inner), ("w_k", inner),
                                  ("w_v", d)):
                self._linear(name, d, outputs)
            self.norm = nn.LayerNorm(d)
            self._linear("w_u", d, slots)
            self._linear("w_o", d, d)
            self.register_parameter("r", None)
            return
        for name in ("w_q", "w_k", "w_v", "w_o"):
            self._linear(name, d, d)
        self._add_width()
        if self.compress_length:
            self._linear("f_c", d, slots)
            self._linear("f_r", d, slots)

    def _add_width(self) -> None:
        self.register_parameter("r", None)
        if self.compress_width:
            self.r = nn.Parameter(torch.empty(self.heads, self.d // self.heads, self.e))
            self._reset_width()

    def _reset_width(self) -> None:
        if self.r is not None:
            nn.init.normal_(self.r, std=self.r.shape[2] ** -0.5)

    def reset_parameters(self) -> None:
        """Draws all parameters anew: linear layers as nn.Linear does, R as N(0, 1/e), slots as N(0, 1/d)."""
        for child in self.children():
            child.reset_parameters()
        self._reset_width()

    def extra_repr(self) -> str:
        """The options, as print(module) shows them."""
        return (f"{self.d}, {self.heads}, d_p={self.d_p}, d_in={self.d_in}, form={self.form}, "
                f"normalise={self.normalise}, dropout={self.dropout}")

    def core_weights(self, other: Tensor | None = None) -> ops.CoreWeights:
        """What `ops.core` needs; `other` is the compressed sequence of another stream."""
        weights = ops.CoreWeights(
            self.w_q.weight, self.w_k.weight, self.w_v.weight, self.w_o.weight,
            query_bias=self.w_q.bias, key_bias=self.w_k.bias, value_bias=self.w_v.bias, width=self.r, other=other,
        )
        if self.released:
            weights.compress_weight, weights.compress_bias = self.p_v.weight, self.p_v.bias
            weights.norm_weight, weights.norm_bias = self.norm.weight, self.norm.bias
        return weights

    def query_rows(self, z: Tensor) -> dict[str, Tensor | None]:
        """The score rows of the one compression that form `released` and cross-attention have."""
        if self.released:
            return placed(*ops.fold(self.p_q(z), [self.p_k.weight], self.heads, self.e**-0.5, biases=[self.p_k.bias]))
        # The bias of Q shifts every score of a slot alike; the softmax over tokens does not see it.
        return placed(*ops.fold(z, [self.w_q.weight], self.heads, self._paper_scale))

    @property
    def _paper_scale(self) -> float:
        return 1 / math.sqrt(self.d // self.heads)

    def self_rows(self, z: Tensor) -> dict[str, Tensor | None]:
        """The score rows of self-attention: W_r, W_c and W_c' (paper) or the one compression (released)."""
        if self.released:
            return self.query_rows(z)
        weights = [self.w_q.weight, self.w_k.weight]
        if z.dim() == 2:
            rows, bias = ops.fold(z, weights, self.heads, self._paper_scale, tail=self.f_c.weight,
                                  tail_bias=self.f_c.bias)
            return {"shared": rows, "shared_bias": bias}
        return {
            "each": ops.fold(z, weights, self.heads, self._paper_scale)[0],
            "shared": self.f_c.weight,
            "shared_bias": self.f_c.bias,
        }

    def rate(self) -> float:
        """The dropout that acts now."""
        return self.dropout if self.training else 0.0

    @property
    def linear_rows(self) -> int:
        """How many score rows pass no softmax."""
        return self.heads * self.d_p if self.normalise == "linear" else 0

    def attend(self, x: Tensor, sequences: Sequences, z: Tensor) -> tuple[Tensor, Tensor]:
        """Self-attention. x (N, d), z (d_p, d) or (B, d_p, d). Returns y (N, d) and C (B, d_p, d)."""
        return ops.attention(
            x, sequences, self.core_weights(), **self.self_rows(z), restore_rows=self.restoring.weight,
            restore_bias=self.restoring.bias, out_bias=self.w_o.bias, heads=self.heads, linear_rows=self.linear_rows,
            linear=self.normalise == "linear", dropout=self.rate(), backend=self.backend,
        )

    def project_summary(self, summary: ops.Summary, projection: nn.Linear) -> Tensor:
        """concat_h((W x)_h P_hᵀ + r_h b_h): (B, H·d_p, d) → (B, d_p, out)."""
        c = summary.c.unflatten(1, (self.heads, self.d_p))
        weight = projection.weight.to(c.dtype).unflatten(0, (self.heads, -1))
        with torch.autocast(c.device.type, enabled=False):
            projected = c @ weight.transpose(1, 2)
            if projection.bias is not None:
                bias = projection.bias.to(c.dtype).view(self.heads, 1, -1)
                projected = projected + summary.r.unflatten(1, (self.heads, self.d_p)).unsqueeze(-1) * bias
        return projected.transpose(1, 2).flatten(2).to(projection.weight.dtype)


def placed(rows: Tensor, bias: Tensor | None) -> dict[str, Tensor | None]:
    """Folded rows as arguments of `ops.compress`: of each sequence, or shared."""
    kind = "each" if rows.dim() == 3 else "shared"
    return {kind: rows, f"{kind}_bias": bias}
