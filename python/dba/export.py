"""Trained models as AOTInductor packages, which a C++ program loads without Python: `dba export`.

A package takes packed sequences and gives logits:

    input    (N) int64 symbols, or (N, f) float32 numbers, one sequence behind the other
    offsets  (B + 1) int64: where each sequence begins, and at last N
    returns  (B, classes) float32

Models of pairs take input_1, offsets_1, input_2, offsets_2. N and B may be any, also other ones than at export. Series
are standardised inside the package as training did; gaps in them are the caller's to fill, as dba.models.Encoding does.
examples/exported.cc is a program that loads one; it needs libtorch and libdba.so, whose operators the package calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx.experimental._config
from torch import Tensor, nn

from ._library import built_with
from .models import Classifier, DualEncoder, load
from .sequences import Sequences

EXAMPLES = """Examples:
  dba export runs/first --out first.pt2      then: exported first.pt2 input.safetensors (examples/exported.cc)
Exit status: 0 done, 1 failed, 2 wrong usage."""


class PackedModel(nn.Module):
    """A model whose arguments are tensors alone."""

    def __init__(self, model: Classifier | DualEncoder) -> None:
        super().__init__()
        self.model = model
        encoding = model.encoding
        self.standardises = bool(encoding is not None and encoding.mean)
        if self.standardises:
            deviation = torch.tensor(encoding.deviation, dtype=torch.float64)
            self.register_buffer("mean", torch.tensor(encoding.mean, dtype=torch.float64))
            self.register_buffer("deviation", torch.where(deviation > 0, deviation, 1.0))

    def _sequences(self, rows: Tensor, offsets: Tensor) -> Sequences:
        """With an empty sequence behind the last, so that there are always two or more: compilers take one for a case
        of its own."""
        return Sequences(offsets, torch.cat((offsets, offsets[-1:]))[1:], rows.shape[0])

    def _without_last(self, logits: Tensor) -> Tensor:
        return logits.index_select(0, torch.arange(logits.shape[0] - 1, device=logits.device))

    def _prepared(self, rows: Tensor) -> Tensor:
        return ((rows.double() - self.mean) / self.deviation).float() if self.standardises else rows

    def forward(self, input: Tensor, offsets: Tensor) -> Tensor:
        """(N) or (N, f), (B + 1) → (B, classes)"""
        return self._without_last(self.model(self._prepared(input), self._sequences(input, offsets)))


class PackedPairs(PackedModel):
    """The same for models of pairs."""

    def forward(self, input_1: Tensor, offsets_1: Tensor, input_2: Tensor, offsets_2: Tensor) -> Tensor:
        """(N_1), (B + 1), (N_2), (B + 1) → (B, classes)"""
        sequences = self._sequences(input_1, offsets_1), self._sequences(input_2, offsets_2)
        return self._without_last(self.model(input_1, input_2, *sequences))


def _example(model: Classifier | DualEncoder) -> tuple[Tensor, Tensor]:
    """Two sequences of different lengths, so that no size is 0 or 1, which compilers take for constants."""
    longest = model.max_length or 8
    lengths = [max(1, min(7, longest)), max(1, min(5, longest))]
    device = next(model.parameters()).device
    offsets = torch.tensor([0, lengths[0], sum(lengths)], device=device)
    if model.backbone.takes_tokens:
        return torch.zeros(sum(lengths), dtype=torch.long, device=device), offsets
    return torch.randn(sum(lengths), model.backbone.features.linear.in_features, device=device), offsets


@contextlib.contextmanager
def _below_autograd() -> Iterator[None]:
    """The operators' gradients, in C++, would read symbolic sizes as numbers."""
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


def export_program(model: nn.Module, inputs: tuple[Any, ...] | None = None,
                   dynamic_shapes: Any = None) -> torch.export.ExportedProgram:
    """A model as one graph, as it computes in eval mode.

    model: of dba.models, then N and B are symbolic; or any module, then `inputs` are example arguments of its forward
    and `dynamic_shapes` says which of their sizes may change, as torch.export has it.
    """
    if inputs is None:
        model, inputs, dynamic_shapes = _packed(model)
    # Without looking whether a size is 1, which would be made a case of its own.
    training = {module for module in model.modules() if module.training}
    try:
        with _below_autograd(), torch.fx.experimental._config.patch(backed_size_oblivious=True):
            return torch.export.export(model.eval(), inputs, dynamic_shapes=dynamic_shapes)
    finally:
        for module in training:
            module.training = True


def _packed(model: nn.Module) -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    """The arguments of torch.export for a model of dba.models."""
    if not isinstance(model, (Classifier, DualEncoder)):
        raise TypeError("dba.export: model must be a run, or a Classifier or DualEncoder of dba.models, got "
                        f"{type(model).__name__}; any other module needs `inputs`, example arguments of its forward")
    if model.config.method != "dba" or not model.config.compress_length:
        raise ValueError("dba.export: the model must be of method dba with compress_length, whose operators take "
                         f"packed sequences of any lengths, got method {model.config.method}")
    if model.encoding is not None and model.encoding.tokeniser.leave_out:
        raise ValueError("dba.export: the model leaves out symbols (data.leave_out), and a package counts the "
                         "positions of the symbols that it is given; train one that leaves out none")
    rows, offsets = _example(model)
    bounds = torch.export.Dim("bounds", min=2)
    shapes = ({0: torch.export.Dim("rows", min=1)}, {0: bounds})
    if isinstance(model, DualEncoder):
        shapes = (*shapes, {0: torch.export.Dim("rows_2", min=1)}, {0: bounds})
        return PackedPairs(model), (rows, offsets, rows.clone(), offsets.clone()), shapes
    return PackedModel(model), (rows, offsets), shapes


def export_package(model: nn.Module | str | pathlib.Path, out: str | pathlib.Path,
                   inputs: tuple[Any, ...] | None = None, dynamic_shapes: Any = None) -> pathlib.Path:
    """Writes an AOTInductor package for the device that the model lies on, and returns its path.

    model: a run's folder, a safetensors file of one, a module of dba.models, or any module that holds dba.DBAttention,
        with `inputs` and `dynamic_shapes` as in export_program.
    out: the package, NAME.pt2. For a run, its metadata say what the classes are called.
    """
    out = pathlib.Path(out)
    if out.suffix != ".pt2":
        raise ValueError(f"dba.export: out must end in .pt2, got {str(out)!r}")
    if not out.parent.is_dir():
        raise ValueError(f"dba.export: {out.parent} is no folder; make it first")
    if isinstance(model, (str, pathlib.Path)):
        model = load(model)
    metadata = {"dba": built_with().get("version") or "unknown"}
    if getattr(model, "encoding", None) is not None:
        metadata.update(classes=json.dumps(model.labels), max_length=str(model.max_length))
    program = export_program(model, inputs, dynamic_shapes)
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise RuntimeError("dba.export: a package is compiled, and neither g++ nor clang++ is on the PATH; install one")
    with _below_autograd():
        torch._inductor.aoti_compile_and_package(program, package_path=str(out.resolve()),
                                                 inductor_configs={"aot_inductor.metadata": metadata})
    return out


def main(words: Sequence[str] | None = None) -> int:
    """`dba export`."""
    parser = argparse.ArgumentParser(prog="dba export", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="a run's folder, or a model.safetensors")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the package to write, NAME.pt2")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where it is to run; %(default)s")
    arguments = parser.parse_args(words)
    if arguments.device == "cpu":
        # A pool of compilers costs more time than it brings for one module of C++.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        if arguments.device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("--device cuda needs a GPU that torch can use, and finds none; take cpu")
        export_package(load(arguments.run, arguments.device), arguments.out)
    except (OSError, ValueError, RuntimeError) as reason:
        print(f"dba export: {reason}", file=sys.stderr)
        return 1
    print(arguments.out)
    return 0
