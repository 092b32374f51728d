"""The paper's cross-attention in the convention of nn.MultiheadAttention."""

from __future__ import annotations

from torch import Tensor, nn

from . import ops
from .attention import MultiheadConvention, check_batches, refuse_what_has_no_meaning
from .factors import AttentionWeights, Padded, between_slots, by_head, compression, restoration
from .layer import DBALayer, Slots, placed
from .sequences import Sequences
from .tokens import TokenRows


class Compressor(DBALayer):
    """The compressed sequence of a stream before any cross-attention has made one:

    paper     C = concat_h( softmax over tokens(Z_h Q_hᵀ/√d_h) Q_h ),  Q = X W_Q + b_Q
    released  C = concat_h( softmax over tokens((Z P_q)_h (X P_k)_hᵀ/√e) (X P_v)_h )

    Parameters: slots, and w_q (paper) or p_q, p_k, p_v (released).
    """

    def __init__(self, d: int, heads: int, *, z_dropout: float = 0.0, **options: object) -> None:
        super().__init__(d, heads, **options)
        self.slots = Slots(self.d_p, d, z_dropout)

    def _add_parameters(self) -> None:
        self.register_parameter("r", None)
        if self.released:
            for name, outputs in (("p_q", self.heads * self.e), ("p_k", self.heads * self.e), ("p_v", self.d)):
                self._linear(name, self.d, outputs)
        else:
            self._linear("w_q", self.d, self.d)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """x (N, d) → C (B, d_p, d)."""
        z = self.slots(sequences.count)
        summary = ops.compress(x, sequences, **self.query_rows(z), dropout=self.rate(), backend=self.backend)
        return self.project_summary(summary, self.p_v if self.released else self.w_q)


class DBACrossAttention(MultiheadConvention):
    """The query stream asks the key stream, which is known by its compressed sequence C_2 alone (section 3.4 of the
    paper): C_2 decides how the queries are compressed (Z_1 = C_2 W_Z), and P' relates the two compressed sequences.

    >>> attention = dba.DBACrossAttention(64, 4)
    >>> y, _ = attention(torch.randn(2, 1000, 64), torch.randn(2, 30, 64))
    >>> y.shape
    torch.Size([2, 1000, 64])

    Constructor as `dba.DBAttention`. Parameters have the names of dba::DBACrossAttention in C++ and, in front of the
    names of dba::Compressor, `compressor`. Every output row depends on all queries of its sequence: nothing here is
    causal, and padded queries need `query_padding_mask`.
    """

    def _add_parameters(self) -> None:
        if self.released:
            super()._add_parameters()
            return
        for name in ("w_z", "w_q", "w_k", "w_v"):
            self._linear(name, self.d, self.d)
        self._add_width()
        self._linear("f_r", self.d, self.heads * self.d_p)
        self._linear("w_o", self.d, self.d)

    def _add_slots(self, z_dropout: float) -> None:
        self.compressor = Compressor(
            self.d, self.heads, d_p=self.d_p, d_in=self.e * self.heads, form=self.form, dropout=self.dropout,
            bias=self.bias, z_dropout=z_dropout, backend=self.backend,
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        key_cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, AttentionWeights | None]:
        """Arguments as those of `dba.DBAttention` in cross-attention. The factors are w_r, p and w_r_prime."""
        name = "DBACrossAttention"
        refuse_what_has_no_meaning(name, attn_mask, is_causal, key, value)
        weight = self.w_o.weight
        asking = TokenRows(name, "query", query, weight, self.batch_first, query_padding_mask, cu_seqlens,
                           "query_padding_mask")
        asked = TokenRows(name, "key", key, weight, self.batch_first, key_padding_mask, key_cu_seqlens,
                          bounds_name="key_cu_seqlens")
        check_batches(name, asking.sequences, asked.sequences)
        c_2 = self.compressor(asked.rows, asked.sequences)
        y, _ = self.ask(asking.rows, asking.sequences, c_2)
        return asking.shaped(y), self._cross_factors(asking, c_2) if need_weights else None

    def ask(self, x: Tensor, sequences: Sequences, c_2: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, d) asks the stream that was compressed to c_2 (B, d_p, d). Returns y (N, d) and C_1 (B, d_p, d), which
        the other stream's next layer is handed."""
        y, c = ops.attention(
            x, sequences, self.core_weights(other=c_2), **self._rows(c_2), restore_rows=self.restoring.weight,
            restore_bias=self.restoring.bias, out_bias=self.w_o.bias, heads=self.heads,
            linear=self.normalise == "linear", dropout=self.rate(), backend=self.backend,
        )
        return y, c.to(self.w_o.weight.dtype)

    def _rows(self, c_2: Tensor) -> dict[str, Tensor | None]:
        if self.released:
            return self.query_rows(c_2)
        return placed(*ops.fold(self.w_z(c_2), [self.w_q.weight], self.heads, self._paper_scale))

    def _cross_factors(self, asking: TokenRows, c_2: Tensor) -> AttentionWeights:
        heads = self.heads
        x = Padded.of(asking.rows, asking.sequences)
        scored: nn.Linear = self.p_k if self.released else self.w_q
        w_r = compression(x, (self.p_q if self.released else self.w_z)(c_2), scored.weight, scored.bias, heads)
        queries = w_r @ by_head((self.p_v if self.released else self.w_q)(x.x), heads)
        if self.released:
            queries = by_head(self.w_q(queries.transpose(1, 2).flatten(2)), heads)
        p = between_slots(queries, by_head(self.w_k(c_2), heads), self.r)
        restoring = restoration(x, self.restoring.weight, self.restoring.bias, heads, self.normalise)
        return AttentionWeights(w_r, None, p, None, restoring)
