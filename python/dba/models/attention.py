"""The self-attentions that an encoder may have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..layer import DBALayer, Slots, check_choice
from ..sequences import Sequences, clear_rows
from ..zoo.layer import ZooLayer
from .full_map import full_map_attention

Z_UPDATES = ("residual_norm", "replace", "fixed", "own")


class DBASelfAttention(DBALayer):
    """DBA whose slots Z travel from layer to layer.

    z_update `residual_norm`: Z ← LayerNorm(Z + dropout(C)); `replace`: Z ← C; `fixed`: the same Z in every layer;
    `own`: a learned Z in every layer. The last layer of a stack hands nothing on and registers no Z-norm.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        z_update: str = "residual_norm",
        z_dropout: float = 0.0,
        hands_on_z: bool = True,
        **options: object,
    ) -> None:
        super().__init__(d, heads, **options)
        self.z_update = check_choice("DBASelfAttention", "z_update", z_update, Z_UPDATES)
        self.hands_on_z = hands_on_z
        self.z_dropout = z_dropout
        if self.compress_length and z_update == "own":
            self.slots = Slots(self.d_p, d, z_dropout)
        elif self.compress_length and z_update == "residual_norm" and hands_on_z:
            self.z_norm = nn.LayerNorm(d)

    @property
    def takes_slots(self) -> bool:
        """Whether `forward` needs slots from outside."""
        return self.compress_length and self.z_update != "own"

    def forward(self, x: Tensor, sequences: Sequences, z: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x (N, d), z (d_p, d) or (B, d_p, d). Returns y (N, d) and the next layer's Z."""
        if not self.compress_length:
            return self._whole_map(x, sequences), z
        slots = self.slots(sequences.count) if z is None else z
        y, c = self.attend(x, sequences, slots)
        if not self.hands_on_z or self.z_update in ("fixed", "own"):
            return y, z
        c = c.to(self.w_o.weight.dtype)
        if self.z_update == "replace":
            return y, c
        return y, self.z_norm(slots + nn.functional.dropout(c, self.z_dropout, self.training))

    def _whole_map(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Without length compression: the full n × n map over Q R and K R."""

        def narrowed(rows: Tensor) -> Tensor:
            if self.r is None:
                return rows
            return torch.matmul(rows.unflatten(1, (self.heads, -1)).transpose(0, 1), self.r).transpose(0, 1).flatten(1)

        mixed = full_map_attention(narrowed(self.w_q(x)), narrowed(self.w_k(x)), self.w_v(x), sequences, self.heads,
                                   self.rate())
        return clear_rows(self.w_o(mixed), sequences.row_mask())


class SoftmaxSelfAttention(nn.Module):
    """Multi-head softmax attention on scaled_dot_product_attention: the yardstick."""

    takes_slots = False

    def __init__(self, d: int, heads: int, *, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        for name in ("w_q", "w_k", "w_v", "w_o"):
            self.add_module(name, nn.Linear(d, d, bias=bias))

    def reset_parameters(self) -> None:
        """Linear layers as nn.Linear draws them."""
        for child in self.children():
            child.reset_parameters()

    def forward(self, x: Tensor, sequences: Sequences, z: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x (N, d). Returns y (N, d) and `z` untouched."""
        dropout = self.dropout if self.training else 0.0
        mixed = full_map_attention(self.w_q(x), self.w_k(x), self.w_v(x), sequences, self.heads, dropout)
        return clear_rows(self.w_o(mixed), sequences.row_mask()), z


class ZooSelfAttention(ZooLayer):
    """A member of the zoo in a stack; Luna's slots travel as DBA's do."""

    def forward(self, x: Tensor, sequences: Sequences, z: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x (N, d), z (d_p, d) or (B, d_p, d). Returns y (N, d) and the next layer's Z."""
        return self.attend(x, sequences, z)
