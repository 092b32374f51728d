"""A layer of the C++ library whose tensors Python owns."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from ..layer import Slots
from ..sequences import Sequences, describe
from .records import member

UNSEEN = "torch cannot look into a layer of the zoo, which C++ computes"


def refusal(error: RuntimeError) -> ValueError | None:
    """What the C++ library refuses is a wrong argument: ValueError, with its sentence. None for other errors."""
    sentence = str(error).split("\nException raised from")[0]
    at = sentence.find("dba::")
    return None if at < 0 else ValueError(sentence[at:].strip())


OF_ANOTHER_SHAPE = "of the layer must be of shape"
"""What the C++ layer says of a tensor, by its number."""


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
    own. The linear layers among the children are read and never called: their hooks do not fire, and what is put in
    place of one needs the same tensors.
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
        device: torch.device | str | None = None,
    ) -> None:
        """options: of the member, as `option_text` writes them. The slots' belong to members that carry some. device:
        of the tensors, which are drawn on the CPU; torch's default device if None."""
        super().__init__()
        self.member = member(name)
        self._recipe = (name, d, heads, float(dropout), bias, d_p, float(z_dropout), z_update, hands_on_z, options)
        tensors = self._make()
        values = {tensor_name: value for tensor_name, value, _ in tensors}
        device = torch.get_default_device() if device is None else device
        for tensor_name, value, trained in tensors:
            value = value.to(device=device)
            part, _, leaf = tensor_name.rpartition(".")
            if part and part not in self._modules:
                self.add_module(part, self._part(part, values))
            owner = self.get_submodule(part)
            if trained:
                owner.register_parameter(leaf, nn.Parameter(value))
            else:
                owner.register_buffer(leaf, value)

    def _make(self) -> list[tuple[str, Tensor, bool]]:
        """Makes the C++ layer by its recipe. Returns its tensors: name, first value and whether it is trained."""
        try:
            layer = torch.classes.dba.ZooLayer(*self._recipe)
        except RuntimeError as error:
            if (refused := refusal(error)) is None:
                raise
            raise refused from None
        # In a tuple torch.export does not find it, so that `_call` can say why it cannot be exported.
        self._held = (layer,)
        tensors = layer.take_tensors()
        self._shapes: dict[str, torch.Size | None] = {name: value.shape for name, value, _ in tensors}
        for part in [name.removesuffix("weight") for name in self._shapes if name.endswith(".weight")]:
            self._shapes.setdefault(part + "bias", None)
        # As a call reads them: name, part, the part's own name for it, and whether there must be one.
        self._places = [(name, *name.rpartition(".")[::2], shape is not None) for name, shape in self._shapes.items()]
        return tensors

    def _part(self, name: str, values: dict[str, Tensor]) -> nn.Module:
        """What the tensors of that prefix belong to; without memory, for they are put in next."""
        if f"{name}.z" in values:
            return Slots(*values[f"{name}.z"].shape, self._recipe[6])
        shape, bias = values[f"{name}.weight"].shape, f"{name}.bias" in values
        if len(shape) == 1:
            return nn.LayerNorm(shape, bias=bias, device="meta")
        return nn.Linear(shape[1], shape[0], bias, device="meta")

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws all parameters anew, and makes the buffers again, random choices as the seed has them: after `to_empty`
        the layer is as new."""
        for name, value, _ in self._make():
            self.tensor(name).copy_(value)

    @property
    def takes_slots(self) -> bool:
        """Whether `attend` needs slots from outside."""
        return self._held[0].takes_slots()

    def attend(
        self, x: Tensor, sequences: Sequences | None = None, z: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x (N, d), or a batch without padding (B, n, d) if sequences is None; z (d_p, d) or (B, d_p, d). Returns y
        like x and the next layer's slots, if there are any."""
        return self._call("attend", x, None if sequences is None else bounds_of(sequences), z)

    def attend_to(self, x: Tensor, sequences: Sequences, memory: Tensor, memory_sequences: Sequences) -> Tensor:
        """x (N, d) attends to memory (M, d). Returns y (N, d)."""
        return self._call("attend_to", x, bounds_of(sequences), memory, bounds_of(memory_sequences))

    def tensor(self, name: str) -> Tensor | None:
        """The tensor that the C++ layer has under that name; refused where it is none of its shape."""
        shape = self._shapes[name]
        part, _, leaf = name.rpartition(".")
        owner = self._modules.get(part) if part else self
        value = None if owner is None else owner._parameters.get(leaf)
        if value is None:  # a buffer, or what a parametrization computes
            try:
                value = operator.attrgetter(name)(self)
            except AttributeError:
                value = None
        if (value.shape if isinstance(value, Tensor) else value) != shape:
            wanted = "None" if shape is None else f"a tensor of shape {tuple(shape)}"
            raise ValueError(f"dba.zoo.{self.member.name}: {name} must be {wanted}, got {describe(value)}; the layer "
                             "reads the tensors of its parts, so what is put in place of one needs the same")
        return value

    # Compilers leave the graph here and come back behind it; torch.export cannot.
    @torch.compiler.disable(reason=UNSEEN)
    def _call(self, method: str, *arguments: Any) -> Any:
        if torch.compiler.is_exporting():
            raise ValueError(f"dba.zoo.{self.member.name}: {UNSEEN}; export models of dba.DBAttention")
        try:
            return getattr(self._held[0], method)(self._tensors(), self.training, *arguments)
        except RuntimeError as error:
            if (refused := refusal(error)) is None:
                raise
            if OF_ANOTHER_SHAPE in str(refused):
                refused = self._refusal_by_name() or refused
            raise refused from None

    def _tensors(self) -> list[Tensor]:
        """All that the C++ layer computes with; it looks at the shapes itself."""
        tensors = []
        for name, part, leaf, wanted in self._places:
            owner = self._modules.get(part) if part else self
            parameters = {} if owner is None else owner._parameters
            value = parameters.get(leaf)
            if wanted:
                tensors.append(self.tensor(name) if value is None else value)
            elif value is not None or leaf not in parameters:
                self.tensor(name)  # refuses one, wherever the part has it
        return tensors

    def _refusal_by_name(self) -> ValueError | None:
        """What `tensor` says of the first one of another shape."""
        try:
            for name in self._shapes:
                self.tensor(name)
        except ValueError as refused:
            return refused
        return None

    # The C++ layer is made anew from its recipe; tensors travel as those of any module.
    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_held"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        with torch.random.fork_rng(devices=[]):  # the weights that a new layer draws are not wanted
            self._make()

    def extra_repr(self) -> str:
        """The member and its options."""
        name, d, heads, *_, options = self._recipe
        return f"{name}, d={d}, heads={heads}" + (f", {options}" if options else "")
