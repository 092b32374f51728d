"""What the C++ registry says of its members."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a member."""

    name: str
    default: str | None
    """None: it must be given."""
    meaning: str
    least: int | None = None
    """The smallest value of an integer; None for one of `choices`."""
    most: int | None = None
    """The largest one."""
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What may be asked of a member."""

    exact: bool
    """Softmax attention between all tokens; else an approximation or a substitute."""
    learned_per_position: bool
    needs_max_length: bool
    """The option max_length must be given, and longer sequences are refused."""
    deterministic: bool
    """No random choices; else the option seed decides them."""
    hashes: bool
    """Hashes tokens: a rounding may change who sees whom."""
    cross_attention: bool
    """Of DBA too: the layer that `dba.zoo.make` makes of it takes another stream, unlike the one in C++."""
    masks: bool
    dropout: bool
    """Has a map that dropout acts on."""
    slots: bool
    """May carry slots from layer to layer."""
    growth: str
    """How the memory grows with the length: linear, linearithmic, sub-quadratic or quadratic."""
    complexity: str
    """Of the time in n, for one head of width 1, options in words."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A member's record."""

    name: str
    title: str
    paper: str
    about: str
    """A paragraph with its formula."""
    options: tuple[Option, ...]
    capabilities: Capabilities
    parameters: int
    """Of a layer with d = 256, four heads and, where positions have parameters, max_length = 1024."""


@functools.cache
def members() -> tuple[Member, ...]:
    """All twenty, softmax attention and DBA first."""
    with torch.random.fork_rng(devices=[]):  # parameters are counted of layers, whose weights are drawn
        text = torch.ops.dba.zoo_members()
    return tuple(_record(record) for record in json.loads(text)["members"])


def _record(record: dict[str, Any]) -> Member:
    options = tuple(Option(**{**one, "choices": tuple(one.get("choices", ()))}) for one in record["options"])
    capabilities = Capabilities(**record["capabilities"])
    if record["name"] == "dba":  # a DBAttention of Python
        capabilities = dataclasses.replace(capabilities, cross_attention=True)
    return Member(**{**record, "options": options, "capabilities": capabilities})


def names() -> list[str]:
    """The members' names."""
    return [record.name for record in members()]


def member(name: str) -> Member:
    """The record of that name; an unknown one is refused with the nearest."""
    for record in members():
        if record.name == name:
            return record
    raise ValueError(f'dba.zoo: no member is called "{name}"; the nearest known one is "{nearest_of(name, names())}", '
                     f'all are {", ".join(names())}')


def nearest_of(name: str, known: list[str]) -> str:
    """The one that the name was meant for, most likely."""
    return difflib.get_close_matches(str(name).lower(), known, 1, 0.0)[0]
