"""A member of the zoo in the convention of nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention import check_batches, refuse_options, refuse_what_has_no_meaning
from ..layer import check_dtype, check_flag, check_positive, check_rate
from ..sequences import check_tensor
from ..tokens import TokenRows, check_tokens
from .layer import ZooLayer, option_text
from .records import member, nearest_of

LUNAS_OWN = ("d_p", "z_dropout")


def check_lunas(options: dict[str, Any]) -> dict[str, Any]:
    """Takes those of Luna's options out that its layer has beside the member's record."""
    known = [*LUNAS_OWN, *(option.name for option in member("luna").options)]
    for name in options:
        if name not in known:
            raise ValueError(f'dba.zoo: luna has the options {", ".join(known)}, got "{name}"; the nearest known one is '
                             f'"{nearest_of(name, known)}"')
    own = {name: options.pop(name) for name in LUNAS_OWN if name in options}
    if "d_p" in own:
        own["d_p"] = check_positive("zoo.luna", "d_p", own["d_p"])
    if "z_dropout" in own:
        own["z_dropout"] = check_rate("zoo.luna", "z_dropout", own["z_dropout"])
    return own


class ZooAttention(ZooLayer):
    """Attention of one member with the constructor's arguments and the call of `dba.DBAttention`; `dba.zoo.make` makes
    it. There is no map to return, no attn_mask, and nothing is causal.
    """

    def __init__(
        self,
        name: str,
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
        **options: int | str | bool,
    ) -> None:
        embed_dim, num_heads = (check_positive(f"zoo.{name}", "embed_dim", embed_dim),
                                check_positive(f"zoo.{name}", "num_heads", num_heads))
        check_rate(f"zoo.{name}", "dropout", dropout)
        bias, batch_first = (check_flag(f"zoo.{name}", "bias", bias),
                             check_flag(f"zoo.{name}", "batch_first", batch_first))
        refuse_options(f"zoo.{name}", embed_dim, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn, kdim=kdim,
                       vdim=vdim)
        check_dtype(f"zoo.{name}", dtype)
        slots = check_lunas(options) if name == "luna" else {}
        super().__init__(name, embed_dim, num_heads, dropout=dropout, bias=bias, options=option_text(options),
                         device=device, **slots)
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.to(dtype=dtype)

    # nn.TransformerEncoderLayer reads these before it takes a fast path of its own, which would bypass this module.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def _tokens(self, argument: str, x: Tensor, mask: Tensor | None, bounds: Tensor | None,
                mask_name: str = "key_padding_mask", bounds_name: str = "cu_seqlens") -> TokenRows:
        return TokenRows(f"zoo.{self.member.name}", argument, x, self._weight_for(argument, x), self.batch_first, mask,
                         bounds, mask_name, bounds_name, narrower=False)

    def _is_plain_batch(self, x: object) -> bool:
        """Whether x is (B, n, d) in the library's own order of axes."""
        return self.batch_first and isinstance(x, Tensor) and not x.is_nested and x.dim() == 3

    def _fits(self, x: Tensor) -> bool:
        """Whether a plain batch has the parameters' width, type and device, and needs no further look."""
        w_o = self._modules.get("w_o")
        if w_o is None:
            return x.shape[2] == self.embed_dim and x.is_floating_point()
        weight = w_o._parameters.get("weight")
        return (weight is not None and x.shape[2] == self.embed_dim and x.dtype == weight.dtype
                and x.device == weight.device)

    def _weight_for(self, argument: str, x: Tensor) -> Tensor:
        """What the tokens are held against: a weight, on whose device they are."""
        function = f"zoo.{self.member.name}"
        check_tensor(f"{function}: {argument}", x)
        weight = self.tensor("w_o.weight") if "w_o" in self._modules else self._stand_in(argument, x)
        if x.device != weight.device:
            got = "a nested tensor" if x.is_nested else tuple(x.shape)
            raise ValueError(f"dba.{function}: {argument} must be on the device of the parameters, {weight.device}, "
                             f"got {got} on {x.device}; move the tokens or the layer with .to()")
        return weight

    def _stand_in(self, argument: str, x: Tensor) -> Tensor:
        """For the weights that a member without parameters (FNet) lacks: it takes tokens of any floating type. Nested
        tensors can make no new ones."""
        if not x.is_floating_point():
            raise ValueError(f"dba.zoo.{self.member.name}: {argument} must be of a floating type, got {x.dtype}; cast "
                             "the tokens with .to()")
        return torch.empty(0, self.embed_dim, dtype=x.dtype, device=x.device)

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
    ) -> tuple[Tensor, None]:
        """Self-attention if `key` is None or the query itself, else cross-attention, which not every member has.

        query: (B, n, d), (n, B, d) with batch_first=False, (n, d) for one sequence, packed rows (N, d) with
            `cu_seqlens` (B + 1), or a nested tensor. key likewise, with `key_cu_seqlens`; value is key.
        key_padding_mask (B, n_key), query_padding_mask (B, n): as for `dba.DBAttention`.
        need_weights: must be False.

        Returns the output, shaped like query, and None.
        """
        function = f"zoo.{self.member.name}"
        by_itself = (key is None or key is query) and (value is None or value is query)
        without_more = (attn_mask is None and key_padding_mask is None and query_padding_mask is None
                        and cu_seqlens is None and key_cu_seqlens is None and not is_causal and not need_weights)
        if by_itself and without_more and self._is_plain_batch(query):  # the shortest way, for calls of microseconds
            if not self._fits(query):
                check_tokens(function, "query", query, self._weight_for("query", query), narrower=False)
            return self.attend(query)[0], None
        refuse_what_has_no_meaning(function, attn_mask, is_causal, query if key is None else key, value)
        if need_weights:
            raise ValueError(f"dba.{function}: need_weights must be False, got True; there is no map to show")
        if key is None or key is query:
            if query_padding_mask is not None or key_cu_seqlens is not None:
                raise ValueError(
                    f"dba.{function}: self-attention has one set of sequences; give key_padding_mask or cu_seqlens, "
                    "and leave query_padding_mask and key_cu_seqlens out"
                )
            tokens = self._tokens("query", query, key_padding_mask, cu_seqlens)
            return tokens.shaped(self.attend(tokens.rows, tokens.sequences)[0]), None
        asking = self._tokens("query", query, query_padding_mask, cu_seqlens, "query_padding_mask")
        asked = self._tokens("key", key, key_padding_mask, key_cu_seqlens, bounds_name="key_cu_seqlens")
        check_batches(function, asking.sequences, asked.sequences)
        return asking.shaped(self.attend_to(asking.rows, asking.sequences, asked.rows, asked.sequences)), None
