"""How the examples of a data set become numbers: the tokeniser, the labels and the statistics that a trained model
carries in its file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..sequences import Sequences
from .repairs import Repairs

CLS, EOS, UNKNOWN, FIRST_BYTE, FIRST_WORD = 0, 1, 2, 2, 3
WHITE_SPACE = " \t\n\v\f\r"


@dataclasses.dataclass
class Tokeniser:
    """Symbols of texts and integers.

    byte        0 CLS, 1 EOS, byte b is b + 2: always 258 symbols
    whitespace  0 CLS, 1 EOS, 2 unknown, word w of the vocabulary is w + 3
    integer     the number itself; CLS and EOS, where wanted, come after the largest
    """

    scheme: str = "byte"
    cls: bool = False
    eos: bool = False
    max_length: int = 0
    too_long: str = "cut"
    min_count: int = 1
    max_words: int = 0
    integers: int = 0
    vocabulary: list[str] = dataclasses.field(default_factory=list)
    leave_out: list[int] = dataclasses.field(default_factory=list)
    """bytes or numbers that are no tokens; the others keep their positions in the whole sequence"""

    def __post_init__(self) -> None:
        self._numbers = {word: number for number, word in enumerate(self.vocabulary)}
        first = FIRST_BYTE if self.scheme == "byte" else 0
        end = {"byte": 256, "integer": self.integers}.get(self.scheme, 0)
        if any(not 0 <= number < end for number in self.leave_out):
            raise ValueError(f"dba.models.Tokeniser: leave_out must hold symbols below {end} (scheme {self.scheme}), "
                             f"got {self.leave_out}")
        self._left_out = {first + number for number in self.leave_out}

    def size(self) -> int:
        """How many symbols there are."""
        if self.scheme == "byte":
            return FIRST_BYTE + 256
        return FIRST_WORD + len(self.vocabulary) if self.scheme == "whitespace" else self.integers + self.cls + self.eos

    def encode(self, example: str | bytes | Sequence[int]) -> list[int]:
        """The symbols of a text, or of integers; what is too long is cut or refused as training did."""
        return self._encode(example)[0]

    def tokens(self, example: str | bytes | Sequence[int]) -> tuple[list[int], list[int], bool]:
        """The symbols that are not left out, their positions in the whole sequence, and whether it was cut."""
        symbols, cut = self._encode(example)
        if not self._left_out:
            return symbols, list(range(len(symbols))), cut
        kept = [(symbol, i) for i, symbol in enumerate(symbols) if symbol not in self._left_out]
        return [symbol for symbol, _ in kept], [position for _, position in kept], cut

    def _encode(self, example: str | bytes | Sequence[int]) -> tuple[list[int], bool]:
        ids = [self._cls_id()] if self.cls else []
        ids += self._content(example)
        length = len(ids) + self.eos
        cut = 0 < self.max_length < length
        if cut:
            self._refuse_long(length)
            del ids[self.max_length - self.eos :]
        return [*ids, self._eos_id()] if self.eos else ids, cut

    def _refuse_long(self, length: int) -> None:
        if self.too_long == "refuse":
            raise ValueError(f"dba.models.Tokeniser: a sequence of {length} symbols, more than max_length "
                             f"{self.max_length}; cut it, or train with a larger one")

    def _cls_id(self) -> int:
        return self.integers if self.scheme == "integer" else CLS

    def _eos_id(self) -> int:
        return self.integers + self.cls if self.scheme == "integer" else EOS

    def _content(self, example: str | bytes | Sequence[int]) -> list[int]:
        if isinstance(example, str | bytes):
            text = example.encode() if isinstance(example, str) else example
            if self.scheme == "byte":
                return [FIRST_BYTE + byte for byte in text]
            # str.split() would take the white space of all alphabets.
            words = text.translate(bytes.maketrans(WHITE_SPACE.encode(), b" " * len(WHITE_SPACE))).split(b" ")
            words = [word.decode(errors="surrogateescape") for word in words if word]
            if self.scheme == "whitespace":
                return [FIRST_WORD + self._numbers[w] if w in self._numbers else UNKNOWN for w in words]
            try:
                example = [int(word) for word in words]
            except ValueError as reason:
                raise ValueError("dba.models.Tokeniser: a text of scheme integer must hold integers alone: "
                                 f"{reason}") from reason
        elif self.scheme != "integer":
            raise ValueError(f"dba.models.Tokeniser: an example of scheme {self.scheme} must be a text, got "
                             f"{type(example).__name__}")
        for number in example:
            if not 0 <= number < self.integers:
                raise ValueError(f"dba.models.Tokeniser: the number {number} must lie in [0, {self.integers})")
        return [int(number) for number in example]


@dataclasses.dataclass
class Encoding:
    """kind `tokens`: examples are texts (or integers); `pairs`: pairs of texts; `series`: arrays (time, channels)."""

    kind: str
    labels: list[str]
    channels: int = 0
    tokeniser: Tokeniser = dataclasses.field(default_factory=Tokeniser)
    mean: list[float] = dataclasses.field(default_factory=list)
    """of every channel, where series are standardised"""
    deviation: list[float] = dataclasses.field(default_factory=list)

    def batch(self, examples: Sequence[Any], device: torch.device | str = "cpu",
              repairs: Repairs | None = None) -> tuple[Tensor | Sequences, ...]:
        """Examples, packed one behind the other, as the model takes them: input and sequences; for pairs input_1,
        input_2, sequences_1, sequences_2. Where symbols are left out, positions (N) of the tokens follow. What was
        missing or cut is added to `repairs`."""
        cut: set[int] = set()
        packed = self._batch(examples, device, cut)
        if repairs is not None:
            repairs.sequences += len(examples)
            repairs.sequences_cut += len(cut)
            for example in examples if self.kind == "series" else ():
                repairs.add_missing(np.asarray(example, dtype=np.float32).reshape(-1, self.channels))
        return packed

    def _batch(self, examples: Sequence[Any], device: torch.device | str,
               cut: set[int]) -> tuple[Tensor | Sequences, ...]:
        if self.kind == "pairs":
            for example in examples:
                if isinstance(example, str | bytes) or len(example) != 2:
                    raise ValueError("dba.models.Encoding: an example must be a pair of texts, got "
                                     f"{repr(example)[:60]}")
            sides = [self._packed([example[side] for example in examples], device, cut) for side in (0, 1)]
            return tuple(part for both in zip(*sides, strict=True) for part in both)
        return self._packed(examples, device, cut)

    def _packed(self, examples: Sequence[Any], device: torch.device | str,
                cut: set[int]) -> tuple[Tensor | Sequences, ...]:
        """Rows and sequences, and positions where symbols are left out. The places of examples that are too long are
        added to `cut`."""
        positions: list[list[int]] = []
        if self.kind == "series":
            parts = [self._series(example) for example in examples]
            cut.update(place for place, example in enumerate(examples) if 0 < self.tokeniser.max_length < len(example))
        else:
            parts = []
            for place, example in enumerate(examples):
                symbols, places, too_long = self.tokeniser.tokens(example)
                parts.append(torch.tensor(symbols).long())
                positions.append(places)
                if too_long:
                    cut.add(place)
        bounds = torch.tensor([0, *(part.shape[0] for part in parts)]).cumsum(0)
        rows = torch.cat(parts)
        packed = rows.to(device), Sequences.packed(bounds.to(device), rows.shape[0])
        if not self.tokeniser.leave_out:
            return packed
        return *packed, torch.tensor([p for part in positions for p in part], device=device).long()

    def _series(self, example: Any) -> Tensor:
        """(time, channels) float32, standardised."""
        given = np.array(example, dtype=np.float32)
        if given.ndim == 1 and self.channels == 1:
            given = given[:, np.newaxis]
        if given.ndim != 2 or given.shape[1] != self.channels or given.shape[0] == 0:
            raise ValueError(f"dba.models.Encoding: a series must have shape (time, {self.channels}) and at least one "
                             f"time step, got {given.shape}")
        if np.isinf(given).any():
            raise ValueError("dba.models.Encoding: a series must hold finite numbers, got infinity, or a number too "
                             "large for float32; NaN stands for a missing value")
        values = torch.from_numpy(fill_missing(given))
        longest = self.tokeniser.max_length
        if longest and values.shape[0] > longest:
            self.tokeniser._refuse_long(values.shape[0])
            values = values[:longest]
        if self.mean:
            mean, deviation = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.deviation))
            values = ((values.double() - mean) / torch.where(deviation > 0, deviation, 1.0)).float()
        return torch.where(values.isnan(), 0.0, values)  # a channel that the series has no value of

    def to_json(self) -> str:
        """As the program stores it."""
        tokeniser = dataclasses.asdict(self.tokeniser)
        if not self.tokeniser.leave_out:
            del tokeniser["leave_out"]
        return json.dumps({"kind": self.kind, "channels": self.channels, "tokeniser": tokeniser,
                           "labels": self.labels})

    @staticmethod
    def from_json(text: str) -> Encoding:
        """From what the program stores."""
        stored = json.loads(text)
        return Encoding(stored["kind"], stored["labels"], stored["channels"], Tokeniser(**stored["tokeniser"]))


def fill_missing(values: np.ndarray) -> np.ndarray:
    """Numbers in the place of NaN in values (time, channels), to the bit as the program fills them: on the line between
    the neighbours in time, the nearest value at either end. A channel without any value stays NaN, and
    becomes 0 once the others are standardised."""
    filled = values.copy()
    steps = np.arange(len(values))
    for channel in np.flatnonzero(np.isnan(values).any(0)):
        column = values[:, channel]
        known = np.flatnonzero(~np.isnan(column))
        if known.size == 0:
            continue
        right = np.searchsorted(known, steps).clip(0, known.size - 1)
        left = np.where(known[right] > steps, right - 1, right).clip(0)
        first, last = column[known[left]].astype(np.float64), column[known[right]].astype(np.float64)
        share = (steps - known[left]) / np.maximum(known[right] - known[left], 1)
        filled[:, channel] = np.where(known[left] == known[right], first, first + (last - first) * share)
    return filled
