"""Swaps the attention of models that are made of PyTorch's own layers."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor, nn

from .attention import DBAttention
from .cross_attention import DBACrossAttention


@dataclasses.dataclass
class ReplaceReport:
    """What `replace_attention` did, by the names of the modules; print it."""

    swapped: dict[str, str] = dataclasses.field(default_factory=dict)
    """name → what stands there now"""
    left: dict[str, str] = dataclasses.field(default_factory=dict)
    """name → why it was left alone"""

    def __str__(self) -> str:
        lines = [f"swapped {len(self.swapped)}, left {len(self.left)}"]
        lines += [f"  {name}: {what}" for name, what in self.swapped.items()]
        lines += [f"  {name}: left alone, {why}" for name, why in self.left.items()]
        return "\n".join(lines)


class _DecoderLayer(nn.TransformerDecoderLayer):
    """A decoder layer whose cross-attention is told which queries are padding, because every output depends on all of
    them."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As nn.TransformerDecoderLayer, with a target that is not causal."""
        if tgt_is_causal:
            raise ValueError(
                "dba.replace_attention: this decoder layer's cross-attention was replaced on the word that its queries "
                "are not causal, but it is called with a causal target; its outputs would show the future"
            )

        def ask_self(x: Tensor) -> Tensor:
            return self._sa_block(x, tgt_mask, tgt_key_padding_mask)

        def ask_memory(x: Tensor) -> Tensor:
            answer, _ = self.multihead_attn(
                x, memory, memory, key_padding_mask=memory_key_padding_mask, attn_mask=memory_mask,
                is_causal=memory_is_causal, query_padding_mask=tgt_key_padding_mask,
            )
            return self.dropout2(answer)

        x = tgt
        for ask, norm in ((ask_self, self.norm1), (ask_memory, self.norm2), (self._ff_block, self.norm3)):
            x = x + ask(norm(x)) if self.norm_first else norm(x + ask(x))
        return x


def replace_attention(model: nn.Module, *, queries_are_causal: bool = True, **options: Any) -> ReplaceReport:
    """Puts DBA in the place of the attention of every nn.TransformerEncoderLayer in `model`, in place, with fresh
    parameters of the old ones' width, heads, dropout, bias, device and type. Train the model, or go on training it,
    afterwards: the map that the old weights made is gone.

    Causal self-attention (that of nn.TransformerDecoderLayer) is left alone, because every output of DBA depends on all
    tokens. So is the cross-attention of decoder layers, unless `queries_are_causal=False` says that the target's future
    is no secret there; it becomes `dba.DBACrossAttention`, and the layer hands it the target's padding mask. Other
    nn.MultiheadAttention modules are left alone too, because nobody knows how they are called.

    options: those of `dba.DBAttention` (d_p, d_in, form, normalise, …).

    >>> layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    >>> encoder = torch.nn.TransformerEncoder(layer, 2)
    >>> print(dba.replace_attention(encoder, d_p=16))
    swapped 2, left 0
      layers.0.self_attn: DBAttention
      layers.1.self_attn: DBAttention
    """
    report = ReplaceReport()
    known: set[nn.Module] = set()
    for name, module in list(model.named_modules()):
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.TransformerEncoderLayer):
            _swap(module, "self_attn", DBAttention, prefix, report, known, options)
        elif isinstance(module, nn.TransformerDecoderLayer):
            known.add(module.self_attn)
            report.left[prefix + "self_attn"] = "it is causal self-attention"
            if queries_are_causal:
                known.add(module.multihead_attn)
                report.left[prefix + "multihead_attn"] = "its queries are causal (queries_are_causal=False says no)"
            elif type(module) in (nn.TransformerDecoderLayer, _DecoderLayer):
                _swap(module, "multihead_attn", DBACrossAttention, prefix, report, known, options)
                module.__class__ = _DecoderLayer
            else:
                known.add(module.multihead_attn)
                report.left[prefix + "multihead_attn"] = (
                    f"{type(module).__name__} has a forward of its own, which would not hand on query_padding_mask"
                )
        elif isinstance(module, nn.MultiheadAttention) and module not in known:
            report.left[name] = "it belongs to no nn.TransformerEncoderLayer; put a dba.DBAttention there by hand"
    for module in model.modules():
        # Decided when the encoder was built, and read in eval(): it would turn the tokens into nested ones for a kernel
        # of PyTorch's own.
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(getattr(layer, "self_attn", None), DBAttention) for layer in module.layers
        ):
            module.use_nested_tensor = False
    return report


def _swap(
    layer: nn.Module,
    attribute: str,
    kind: type[DBAttention] | type[DBACrossAttention],
    prefix: str,
    report: ReplaceReport,
    known: set[nn.Module],
    options: dict[str, Any],
) -> None:
    old = getattr(layer, attribute)
    known.add(old)
    if not isinstance(old, nn.MultiheadAttention):
        report.left[prefix + attribute] = f"it is a {type(old).__name__} already"
        return
    if old.kdim != old.embed_dim or old.vdim != old.embed_dim:
        report.left[prefix + attribute] = "its keys have a width of their own (kdim, vdim)"
        return
    if old.bias_k is not None or old.add_zero_attn:
        report.left[prefix + attribute] = "it adds rows of its own to the keys (add_bias_kv, add_zero_attn)"
        return
    weight = old.out_proj.weight
    settings = {"dropout": old.dropout, "bias": old.in_proj_bias is not None, **options}
    new = kind(old.embed_dim, old.num_heads, batch_first=old.batch_first, device=weight.device, dtype=weight.dtype,
               **settings)
    new.train(old.training)
    setattr(layer, attribute, new)
    report.swapped[prefix + attribute] = kind.__name__
