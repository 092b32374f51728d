"""The sizes and choices of a model, under the names that `config.yaml` has in its section `model`."""

from __future__ import annotations

import dataclasses

from ..layer import FORMS, NORMALISES, check_choice, check_positive, check_rate
from ..zoo.records import member
from .attention import Z_UPDATES

CHOICES = {
    "form": FORMS,
    "normalise": NORMALISES,
    "z_update": Z_UPDATES,
    "norm": ("layer", "batch"),
    "activation": ("gelu", "relu"),
    "position": ("learned", "sinusoidal", "none"),
    "pooling": ("first", "mean", "flatten"),
    "pair_features": ("concatenate", "nli"),
    "head": ("linear", "mlp"),
    "initialise": ("luna", "bert", "torch_default"),
}

SEEDS_APART = 1_000_003
"""Between the seeds of two layers, as in the program (dba/zoo.h)."""


@dataclasses.dataclass
class ModelConfig:
    """Names, defaults and meanings are those of the program; docs/config.md lists them."""

    method: str = "dba"
    method_options: str = ""
    d: int = 128
    heads: int = 4
    layers: int = 2
    tied: bool = False
    d_ffn: int = 256
    d_p: int = 16
    d_in: int = 24
    form: str = "paper"
    normalise: str = "softmax"
    z_update: str = "residual_norm"
    compress_length: bool = True
    compress_width: bool = True
    bias: bool = True
    norm: str = "layer"
    norm_first: bool = False
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    position: str = "learned"
    embedding_norm: bool = True
    slots_norm: bool = True
    scale_features: bool = False
    output_activation: bool = False
    pooling: str = "mean"
    pair_features: str = "concatenate"
    head: str = "mlp"
    head_hidden: int = 0
    initialise: str = "luna"

    def __post_init__(self) -> None:
        if self.method not in ("dba", "softmax"):
            member(self.method)
        for name, choices in CHOICES.items():
            check_choice("models.ModelConfig", name, getattr(self, name), choices)
        for name in ("d", "heads", "layers", "d_ffn", "d_p", "d_in"):
            check_positive("models.ModelConfig", name, getattr(self, name))
        if self.d % self.heads:
            raise ValueError(f"dba.models.ModelConfig: d must be divisible by heads, got {self.d} and {self.heads}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            check_rate("models.ModelConfig", name, getattr(self, name))

    def attention_options(self, max_length: int, layer: int = 0) -> str:
        """`method_options`, with the longest sequence where the member needs one and the options name none, and with
        the seed of that layer's random choices."""
        parts = [part.strip() for part in self.method_options.split(",") if part.strip()]
        given = dict(part.split("=", 1) for part in parts if "=" in part)
        if member(self.method).capabilities.needs_max_length and "max_length" not in given:
            parts.append(f"max_length={max_length}")
        seed = next((option.default for option in member(self.method).options if option.name == "seed"), None)
        if layer > 0 and seed is not None:
            seed = given.get("seed", seed)
            parts = [part for part in parts if not part.startswith("seed=")]
            parts.append(f"seed={int(seed) + SEEDS_APART * layer}")
        return ", ".join(parts)
