"""Which implementation the operators use."""

from __future__ import annotations

from types import TracebackType

import torch

BACKENDS = ("auto", "reference", "fused")


def check_backend(function: str, name: str) -> str:
    """`name` itself, or ValueError."""
    if name not in BACKENDS:
        raise ValueError(f"dba.{function}: backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    return name


def get_backend() -> str:
    """The backend of the whole process: "auto", "reference" or "fused"."""
    return torch.ops.dba.backend()


def set_backend(name: str) -> None:
    """Sets the backend for the whole process.

    auto       a fused kernel where one exists for the device, type and shape, else the reference
    reference  plain ATen everywhere: the truth that the others are compared with
    fused      a fused kernel, or an error that says what is missing
    """
    torch.ops.dba.set_backend(check_backend("set_backend", name))


class backend:  # noqa: N801 (reads as a statement)
    """Sets the backend of the whole process for the length of a `with` block; the gradient is computed by whatever
    is set when backward runs.

    >>> with dba.backend("reference"):
    ...     y, _ = attention(x)
    """

    def __init__(self, name: str) -> None:
        self.name = check_backend("backend", name)
        self.previous: list[str] = []

    def __enter__(self) -> backend:
        self.previous.append(get_backend())
        set_backend(self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_backend(self.previous.pop())
