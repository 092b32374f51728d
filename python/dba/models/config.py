"""The sizes and choices of a model, under the names that `config.yaml` has in its section `model`."""

from __future__ import annotations

import dataclasses

from ..layer import FORMS, NORMALISES, check_choice, check_flag, check_positive, check_rate
from ..zoo.layer import option_text
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
LARGEST_SEED = 2**53
"""Beyond it the seeds of layers begin at 0 again, as there."""


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
        for field in dataclasses.fields(self):
            if isinstance(field.default, bool):
                check_flag("models.ModelConfig", field.name, getattr(self, field.name))
        self.option_values()

    def option_values(self) -> dict[str, str]:
        """`method_options` by name, read as the program reads them. Which names and values there are, the member
        knows."""
        text = self.method_options
        if not isinstance(text, str):
            remedy = f'write "{option_text(text)}"' if isinstance(text, dict) else "write name=value"
            raise ValueError(f"dba.models.ModelConfig: method_options must be a text, got {text!r}; {remedy}")
        values: dict[str, str] = {}
        for part in text.removesuffix(",").split(",") if text else ():
            name, equals, value = (word.strip() for word in part.partition("="))
            if not equals or not name:
                raise ValueError("dba.models.ModelConfig: method_options must be written name=value, with commas "
                                 f'between, got "{text}"')
            if name in values:
                raise ValueError(f'dba.models.ModelConfig: option {name} is given twice in "{text}"; leave one out')
            values[name] = value
        if values and self.method in ("dba", "softmax"):
            raise ValueError(f'dba.models.ModelConfig: method "{self.method}" has no options of its own, got '
                             f'"{text}"; leave method_options empty')
        return values

    def attention_options(self, max_length: int, layer: int = 0) -> str:
        """`method_options`, with the longest sequence where the member needs one and the options name none, and with
        the seed of that layer's random choices."""
        values = self.option_values()
        if self.method in ("dba", "softmax"):
            return ""
        if member(self.method).capabilities.needs_max_length and "max_length" not in values:
            if max_length == 0:
                raise ValueError(f"dba.models.Encoder: method {self.method} has parameters for every position; give "
                                 "max_length, the longest sequence")
            values["max_length"] = str(check_positive("models.Encoder", "max_length", max_length))
        seed = next((option.default for option in member(self.method).options if option.name == "seed"), None)
        if layer > 0 and seed is not None:
            first = int(values.get("seed", seed))
            values["seed"] = str((first + SEEDS_APART * layer) % (LARGEST_SEED + 1))
        return option_text(values)
