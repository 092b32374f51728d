"""How far a column is from float64, and what is too far to be timed."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from layer_table.columns import Column
from layer_table.layers import SoftmaxLayer

# A relative error above these is wrong, whatever plain PyTorch manages in the same precision.
LARGEST_ERROR = {torch.bfloat16: 0.25, torch.float16: 0.1, torch.float32: 1e-3, torch.float64: 1e-9}
# Of the output, and the worst of the gradients where these are wanted.
Errors = tuple[float, float | None]


def error_of(actual: Tensor, expected: Tensor) -> float:
    """The relative error, by norm."""
    error = (actual.double() - expected).norm()
    return float(error / expected.norm().clamp_min(1e-300)) if torch.isfinite(actual).all() else math.inf


def worst_gradient_error(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """A small gradient counts relative to a hundredth of all; one that float64 shows to be zero, relative to all."""
    total = math.sqrt(sum(float(g.norm()) ** 2 for g in expected if g is not None))
    worst = 0.0
    for got, wanted in zip(actual, expected, strict=True):
        if wanted is None or got is None:
            continue
        if not torch.isfinite(got).all():
            return math.inf
        norm = float(wanted.norm())
        scale = total if norm < 1e-10 * total else max(norm, 1e-2 * total)
        worst = max(worst, float((got.double() - wanted).norm()) / scale)
    return worst


class Truth:
    """float64 values of a layer for the first and the last sequence; of a long softmax layer for some rows."""

    def __init__(self, layer: nn.Module, x: Tensor, gradients: bool) -> None:
        self.chosen = sorted({0, x.shape[0] - 1})
        length = x.shape[1]
        softmax = isinstance(layer, SoftmaxLayer)
        few = softmax and length > 8192
        self.rows = torch.linspace(0, length - 1, 64, device=x.device).long() if few else slice(None)
        exact = copy.deepcopy(layer).double()
        x64 = x[self.chosen].detach().double().requires_grad_(gradients)
        with torch.set_grad_enabled(gradients), sdpa_kernel(SDPBackend.MATH):
            y = exact.rows(x64, self.rows) if few else exact(x64)
        self.dy = None
        if gradients:
            self.dy = torch.zeros_like(x)
            noise = torch.randn(y.shape, device=x.device, dtype=x.dtype)
            self.dy[torch.tensor(self.chosen, device=x.device)[:, None],
                    torch.arange(length, device=x.device)[self.rows]] = noise
            self.gradients = torch.autograd.grad(y, [x64, *exact.parameters()], noise.double(), allow_unused=True)
        self.y = y.detach()

    def errors(self, column: Column, x: Tensor) -> Errors:
        """Of the output and, where wanted, the worst of the gradients."""
        if self.dy is None:
            y = column.forward(x)
            gradients = None
        else:
            y, dx, *others = column.gradients(x, self.dy)
            gradients = worst_gradient_error([dx[self.chosen], *others], self.gradients)
        return error_of(y[self.chosen][:, self.rows], self.y), gradients


def judge(errors: Errors, plain: Errors, dtype: torch.dtype) -> str | None:
    """None, or a sentence on what is wrong: more than four times as far from the truth as plain PyTorch."""
    for what, error, yardstick in zip(("output", "gradient"), errors, plain):
        if error is None:
            continue
        allowed = min(max(4 * yardstick, torch.finfo(dtype).eps), LARGEST_ERROR[dtype])
        if not error <= allowed:
            return f"wrong {what}: relative error {error:.2e}, allowed {allowed:.2e}"
    return None
