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

    def attention_options(self, max_length: int) -> str:
        """`method_options`, with the longest sequence where the member needs one and the options name none."""
        named = [part.split("=")[0].strip() for part in self.method_options.split(",")]
        if not member(self.method).capabilities.needs_max_length or "max_length" in named:
            return self.method_options
        return ", ".join(filter(None, (self.method_options, f"max_length={max_length}")))
