"""A layer of the C++ library whose tensors Python owns."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..layer import Slots
from ..sequences import Sequences
from .records import member


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """What the C++ library refuses is a wrong argument: ValueError, with its sentence."""
    try:
        yield
    except RuntimeError as error:
        sentence = str(error).split("\nException raised from")[0]
        at = sentence.find("dba::")
        if at < 0:
            raise
        raise ValueError(sentence[at:].strip()) from None


def bounds_of(sequences: Sequences) -> tuple[Tensor, Tensor, list[int]]:
    """As the C++ layer takes them."""
    common = sequences.common_length
    longest = -1 if sequences.max_length is None else sequences.max_length
    padded = -1 if common is None else common
    return sequences.begin, sequences.end, [sequences.rows, padded, longest, common is not None]


def option_text(options: dict[str, int | str | bool]) -> str:
    """'window=128, globals=2', as configurations write options."""
    for name, value in options.items():
        if isinstance(value, str) and ("," in value or "=" in value):
            raise ValueError(f'dba.zoo: option {name} must be one value, got "{value}"; name every option by itself')
    return ", ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}"
                     for name, value in options.items())


class ZooLayer(nn.Module):
    """The layer of a member. Parameters and buffers have the names and shapes of the layer in C++.

    They are ordinary ones: the C++ layer holds no tensors between calls and is handed these at each, so moving,
    casting, replacing and differentiating them works as for any module, and gradients come from the C++ operations'
    own.
    """

    def __init__(
        self,
        name: str,
        d: int,
        heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        d_p: int = 16,
        z_dropout: float = 0.0,
        z_update: str = "own",
        hands_on_z: bool = False,
        options: str = "",
    ) -> None:
        """options: of the member, as `option_text` writes them. The slots' belong to members that carry some."""
        super().__init__()
        self.member = member(name)
        self._recipe = (name, d, heads, float(dropout), bias, d_p, float(z_dropout), z_update, hands_on_z, options)
        with sentences():
            self._layer = torch.classes.dba.ZooLayer(*self._recipe)
        tensors = self._layer.take_tensors()
        values = {tensor_name: value for tensor_name, value, _ in tensors}
        for tensor_name, value, trained in tensors:
            part, _, leaf = tensor_name.rpartition(".")
            if part and part not in self._modules:
                self.add_module(part, self._part(part, values))
            owner = self.get_submodule(part)
            if trained:
                owner.register_parameter(leaf, nn.Parameter(value))
            else:
                owner.register_buffer(leaf, value)
        self._names = list(values)

    def _part(self, name: str, values: dict[str, Tensor]) -> nn.Module:
        """What the tensors of that prefix belong to; without memory, for they are put in next."""
        if f"{name}.z" in values:
            return Slots(*values[f"{name}.z"].shape, self._recipe[6])
        shape, bias = values[f"{name}.weight"].shape, f"{name}.bias" in values
        if len(shape) == 1:
            return nn.LayerNorm(shape, bias=bias, device="meta")
        return nn.Linear(shape[1], shape[0], bias, device="meta")

    @property
    def takes_slots(self) -> bool:
        """Whether `attend` needs slots from outside."""
        return self._layer.takes_slots()

    def attend(self, x: Tensor, sequences: Sequences, z: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x (N, d), z (d_p, d) or (B, d_p, d). Returns y (N, d) and the next layer's slots, if there are any."""
        return self._call("attend", x, bounds_of(sequences), z)

    def attend_to(self, x: Tensor, sequences: Sequences, memory: Tensor, memory_sequences: Sequences) -> Tensor:
        """x (N, d) attends to memory (M, d). Returns y (N, d)."""
        return self._call("attend_to", x, bounds_of(sequences), memory, bounds_of(memory_sequences))

    # Compilers cannot look into the C++ layer: they leave the graph here and come back behind it.
    @torch.compiler.disable
    def _call(self, method: str, *arguments: Any) -> Any:
        tensors = [operator.attrgetter(name)(self) for name in self._names]
        with sentences():
            return getattr(self._layer, method)(tensors, self.training, *arguments)

    # The C++ layer is made anew from its recipe; tensors travel as those of any module.
    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_layer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        with torch.random.fork_rng(devices=[]):  # the weights that a new layer draws are not wanted
            self._layer = torch.classes.dba.ZooLayer(*self._recipe)
        self._layer.take_tensors()

    def extra_repr(self) -> str:
        """The member and its options."""
        name, d, heads, *_, options = self._recipe
        return f"{name}, d={d}, heads={heads}" + (f", {options}" if options else "")
