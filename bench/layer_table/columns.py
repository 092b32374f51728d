"""The columns of the table: one way to compute a layer each."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from layer_table.layers import PaperLayer, ReleasedLayer, Size, SoftmaxLayer

SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
USUAL = ["flash", "cudnn", "written", "written-compiled", "two-pass-compiled", "dba"]
NAMES = [*SDPA, *USUAL[2:], "two-pass"]


def find_library(named: pathlib.Path) -> pathlib.Path:
    """libdba.so, by its own name or by that of its folder. Raises FileNotFoundError with what to do."""
    file = named / "libdba.so" if named.is_dir() else named
    if not file.is_file():
        where = f"the folder {named} holds no libdba.so" if named.is_dir() else f"there is no {named}"
        raise FileNotFoundError(f"{where}; build the library, or name libdba.so or its folder with --library")
    if not file.name.startswith("libdba.so"):
        raise FileNotFoundError(f"{named} is not libdba.so; name that file or its folder with --library")
    return file


def load_library(file: pathlib.Path) -> bool:
    """Loads the operators for the column `dba`; returns whether kernels for a GPU were beside them."""
    torch.ops.load_library(str(file))
    cuda_library = file.with_name("libdba_cuda.so")
    if not cuda_library.exists():
        return False
    torch.ops.load_library(str(cuda_library))
    torch.ops.dba.set_cuda_kernels("auto")
    return True


class Column:
    """One way to compute one layer: `call(x)` gives y."""

    def __init__(self, name: str, layer: nn.Module, call: Callable[[Tensor], Tensor],
                 scope: Callable[[], AbstractContextManager] = contextlib.nullcontext) -> None:
        self.name, self.layer, self.call, self.scope = name, layer, call, scope

    def forward(self, x: Tensor) -> Tensor:
        with self.scope(), torch.no_grad():
            return self.call(x)

    def gradients(self, x: Tensor, dy: Tensor) -> list[Tensor | None]:
        """y, dX and the gradients of the parameters."""
        with self.scope():
            leaves = [x, *self.layer.parameters()]
            y = self.call(x)
            return [y.detach(), *torch.autograd.grad(y, leaves, dy, allow_unused=True)]


def columns_of(form: str, size: Size, batch: int, length: int, names: Sequence[str], device: str, dtype: torch.dtype,
               compiler: Callable | None) -> Iterator[Column]:
    """The named columns with the same weights each time; those of torch.compile need a compiler."""
    torch.manual_seed(1)
    softmax = SoftmaxLayer(size).to(device, dtype)
    layer = (PaperLayer if form == "paper" else ReleasedLayer)(size).to(device, dtype)
    starts = torch.arange(0, batch * length, length, device=device)
    ends = starts + length
    for name in names:
        if name in SDPA:
            yield Column(name, softmax, softmax, lambda backend=SDPA[name]: sdpa_kernel(backend))
        elif name == "written":
            yield Column(name, layer, layer)
        elif name == "two-pass":
            yield Column(name, layer, layer.two_pass)
        elif name == "dba":
            yield Column(name, layer, lambda x: layer.library(x, starts, ends))
        elif compiler and name == "written-compiled":
            yield Column(name, layer, compiler(layer.forward))
        elif compiler and name == "two-pass-compiled":
            yield Column(name, layer, compiler(layer.two_pass))
