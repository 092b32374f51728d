"""DBA in the convention of nn.MultiheadAttention."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from . import ops
from .factors import AttentionWeights, Padded, layer_factors
from .layer import DBALayer, Slots, check_dtype, check_flag, check_positive
from .sequences import Sequences, describe
from .tokens import TokenRows


def refuse_what_has_no_meaning(
    function: str, attn_mask: Tensor | None, is_causal: bool, key: Tensor | None, value: Tensor | None
) -> None:
    """What nn.MultiheadAttention may be asked for, and neither DBA nor the zoo can do."""
    if is_causal:
        raise ValueError(
            f"dba.{function}: is_causal must be False, got True; nothing here is causal, so keep nn.MultiheadAttention "
            "where the future must stay hidden"
        )
    if attn_mask is not None:
        raise ValueError(
            f"dba.{function}: attn_mask must be None, got {describe(attn_mask)}; no single pair of tokens can be "
            "masked here. Padding belongs into key_padding_mask"
        )
    if value is not None and value is not key:
        raise ValueError(
            f"dba.{function}: value must be the key tensor itself or None, got another tensor; keys and values are "
            "read from the same tokens. Add what only the keys should know (positions, say) before the attention"
        )


def refuse_options(function: str, embed_dim: int, **refused: Any) -> None:
    """Options of nn.MultiheadAttention that have no meaning here."""
    for name in ("add_bias_kv", "add_zero_attn"):
        if refused[name]:
            raise ValueError(f"dba.{function}: {name} must be False, got True; there is no row of keys to add to")
    for name in ("kdim", "vdim"):
        if refused[name] not in (None, embed_dim):
            raise ValueError(
                f"dba.{function}: {name} must be None or embed_dim, {embed_dim}, got {refused[name]}; put a linear "
                "layer in front of the keys"
            )


class MultiheadConvention(DBALayer):
    """The constructor of nn.MultiheadAttention, and the attributes that PyTorch's encoder reads of it."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        d_p: int = 16,
        d_in: int = 24,
        form: str = "paper",
        normalise: str = "softmax",
        z_dropout: float = 0.0,
        compress_width: bool = True,
        backend: str | None = None,
    ) -> None:
        name = type(self).__name__
        embed_dim, num_heads = (check_positive(name, "embed_dim", embed_dim),
                                check_positive(name, "num_heads", num_heads))
        refuse_options(name, embed_dim, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn, kdim=kdim, vdim=vdim)
        check_dtype(name, dtype)
        # Where a device is given, a default one that keeps no values (meta) has no say.
        with contextlib.nullcontext() if device is None else torch.device("cpu"):
            super().__init__(embed_dim, num_heads, d_p=d_p, d_in=d_in, form=form, normalise=normalise, dropout=dropout,
                             bias=bias, compress_width=compress_width, backend=backend)
            self.batch_first = check_flag(name, "batch_first", batch_first)
            self._add_slots(z_dropout)
        self.to(device=device, dtype=dtype)

    def _add_slots(self, z_dropout: float) -> None:
        """Registers the Z that the module owns."""
        self.slots = Slots(self.d_p, self.d, z_dropout)

    # nn.TransformerEncoderLayer and nn.TransformerEncoder read these before they take a fast path of their own, which
    # would bypass this module. Either of the last two keeps them from it.
    @property
    def embed_dim(self) -> int:
        """Width of the tokens."""
        return self.d

    @property
    def num_heads(self) -> int:
        """Heads."""
        return self.heads

    in_proj_bias = None
    _qkv_same_embed_dim = False


class DBAttention(MultiheadConvention):
    """Dynamic bilinear low-rank attention with the constructor and the call of nn.MultiheadAttention; time and memory
    grow linearly with the length.

    >>> attention = dba.DBAttention(64, 4)
    >>> y, _ = attention(torch.randn(2, 1000, 64))
    >>> y.shape
    torch.Size([2, 1000, 64])

    Args:
        embed_dim, num_heads, dropout, bias, batch_first, device, dtype: as there, but batch_first is True by default.
        d_p: slots per head, the length that sequences are compressed to.
        d_in: width of the compressed queries and keys over all heads; rounded up to a multiple of the heads.
        form: "paper", the paper's equations read per head, or "released", the authors' time-series code.
        normalise: of W_r' and W_c', "softmax" or "linear"; form paper only.
        z_dropout: on the slots Z, of which the module owns one set.
        compress_width: False leaves queries and keys at their width; form paper only.
        backend: "reference" or "fused" forces an implementation; None leaves the choice to `dba.backend`.

    Parameters have the names of dba::DBAttention in C++ with z_update `own`.

    Called with another key, the module asks that stream: W_r and W_r' are made of the queries, W_c, W_c' and the values
    of the keys, by the same parameters; where both streams are the same this is self-attention again. The paper's own
    cross-attention, in which the other stream decides how the queries are compressed, is `dba.DBACrossAttention`.

    Every output row depends on all queries of its sequence: nothing here is causal, and padded queries need a mask.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
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
        """Self-attention if `key` is None or the query itself, else cross-attention.

        query: (B, n, d), (n, B, d) with batch_first=False, (n, d) for one sequence, packed rows (N, d) with
            `cu_seqlens` (B + 1), or a nested tensor of either layout. key likewise, with `key_cu_seqlens`; value is
            key.
        key_padding_mask (B, n_key): boolean, true for padding, or floating, −inf for padding and 0 elsewhere; the real
            tokens of a sequence are contiguous. In self-attention it is the query's mask as well, otherwise that is
            `query_padding_mask` (B, n). Padded rows are never read and come out as zeros.
        need_weights: returns the factors of the map per head (average_attn_weights has no meaning for them); there is
            no n × n map.
        attn_mask, is_causal: must be None and False.

        Returns the output, shaped like query, and the factors or None.
        """
        refuse_what_has_no_meaning("DBAttention", attn_mask, is_causal, query if key is None else key, value)
        weight = self.w_o.weight
        if key is None or key is query:
            if query_padding_mask is not None or key_cu_seqlens is not None:
                raise ValueError(
                    "dba.DBAttention: self-attention has one set of sequences; give key_padding_mask or cu_seqlens, "
                    "and leave query_padding_mask and key_cu_seqlens out"
                )
            tokens = TokenRows("DBAttention", "query", query, weight, self.batch_first, key_padding_mask, cu_seqlens)
            z = self.slots(tokens.sequences.count)
            y, _ = self.attend(tokens.rows, tokens.sequences, z)
            weights = self._factors(tokens, tokens, z) if need_weights else None
            return tokens.shaped(y), weights
        asking = TokenRows("DBAttention", "query", query, weight, self.batch_first, query_padding_mask, cu_seqlens,
                           "query_padding_mask")
        asked = TokenRows("DBAttention", "key", key, weight, self.batch_first, key_padding_mask, key_cu_seqlens,
                          bounds_name="key_cu_seqlens")
        check_batches("DBAttention", asking.sequences, asked.sequences)
        z = self.slots(asking.sequences.count)
        y = self._ask(asking.rows, asking.sequences, asked.rows, asked.sequences, z)
        return asking.shaped(y), self._factors(asking, asked, z) if need_weights else None

    def _ask(self, x: Tensor, sequences: Sequences, other: Tensor, other_sequences: Sequences, z: Tensor) -> Tensor:
        """x (N, d) asks other (N_2, d)."""
        rate, backend = self.rate(), self.backend
        rng = ops.draw(rate, x.device)
        summary = ops.compress(x, sequences, **self.query_rows(z), dropout=rate, rng=rng, backend=backend)
        if self.released:
            of_other = ops.compress(other, other_sequences, **self.query_rows(z), dropout=rate, backend=backend)
            c, r = summary.c, summary.r
            weights = self.core_weights(other=self.project_summary(of_other, self.p_v))
        else:
            of_other = ops.compress(other, other_sequences, **self._key_rows(z), linear=self.linear_rows, dropout=rate,
                                    backend=backend)
            c, r = torch.cat((summary.c, of_other.c), 1), torch.cat((summary.r, of_other.r), 1)
            weights = self.core_weights()
        m = ops.core(c, r, weights, self.heads, dropout=rate, rng=rng, backend=backend).m
        return ops.restore(x, sequences, rows=self.restoring.weight, bias=self.restoring.bias, m=m,
                           out_bias=self.w_o.bias, heads=self.heads, linear=self.normalise == "linear", dropout=rate,
                           rng=rng, backend=backend)

    def _key_rows(self, z: Tensor) -> dict[str, Tensor | None]:
        """The score rows of W_c and W_c', form paper."""
        if z.dim() == 2:
            rows, bias = ops.fold(z, [self.w_k.weight], self.heads, self._paper_scale, tail=self.f_c.weight,
                                  tail_bias=self.f_c.bias)
            return {"shared": rows, "shared_bias": bias}
        each, _ = ops.fold(z, [self.w_k.weight], self.heads, self._paper_scale)
        return {"each": each, "shared": self.f_c.weight, "shared_bias": self.f_c.bias}

    def _factors(self, asking: TokenRows, asked: TokenRows, z: Tensor) -> AttentionWeights:
        x = Padded.of(asking.rows, asking.sequences)
        return layer_factors(self, x, x if asked is asking else Padded.of(asked.rows, asked.sequences), z)


def check_batches(function: str, asking: Sequences, asked: Sequences) -> None:
    """Both streams have the same number of sequences."""
    if asking.count != asked.count:
        raise ValueError(
            f"dba.{function}: key must have as many sequences as query, expected {asking.count}, got {asked.count}"
        )
