"""Attention whose cost is linear in the sequence length: dynamic bilinear low-rank attention (DBA) for PyTorch."""

from ._library import built_with, load_library

LIBRARY = load_library()

from . import _shapes  # noqa: E402

_shapes.register()

from . import models, ops, zoo  # noqa: E402
from ._backend import backend, get_backend, set_backend  # noqa: E402
from .attention import DBAttention  # noqa: E402
from .cross_attention import DBACrossAttention  # noqa: E402
from .factors import AttentionWeights  # noqa: E402
from .models import load  # noqa: E402
from .replace import ReplaceReport, replace_attention  # noqa: E402
from .sequences import Sequences  # noqa: E402

__version__: str = built_with().get("version") or "unknown"

__all__ = [
    "AttentionWeights",
    "DBACrossAttention",
    "DBAttention",
    "ReplaceReport",
    "Sequences",
    "backend",
    "get_backend",
    "load",
    "models",
    "ops",
    "replace_attention",
    "set_backend",
    "zoo",
]
