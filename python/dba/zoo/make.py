"""A layer by its name."""

from __future__ import annotations

import inspect

import torch

from ..attention import DBAttention
from .attention import ZooAttention
from .records import member, nearest_of


def make(
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
) -> ZooAttention | DBAttention:
    """A new layer of the member of that name, with the constructor's arguments and the call of `dba.DBAttention`.

    options: those of the member, as `dba.zoo.member(name).options` has them; Luna also has d_p and z_dropout, and DBA
    those of `dba.DBAttention`, which its layer is. Weights come from torch's default generator; random choices (hashes,
    random features, random blocks) from the option seed alone.

    >>> dba.zoo.make("longformer", 64, 4, window=128, globals=2)
    """
    shared = (embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype)
    if member(name).name != "dba":
        return ZooAttention(name, *shared, **options)
    known = [p.name for p in inspect.signature(DBAttention).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f'dba.zoo: dba has the options {", ".join(known)}, got "{unknown[0]}"; '
                         f'the nearest known one is "{nearest_of(unknown[0], known)}"')
    return DBAttention(*shared, **options)
