"""A stack of encoder layers over token rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .. import _nodes, ops
from ..layer import Slots
from ..sequences import Sequences, as_rows, clear_rows
from .attention import DBASelfAttention, SoftmaxSelfAttention, ZooSelfAttention
from .config import ModelConfig

EPS = 1e-5


class TokenNorm(nn.Module):
    """Normalises token rows: every row by itself (`layer`), or every column over all real rows (`batch`)."""

    def __init__(self, d: int, kind: str = "layer", momentum: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d))
        self.kind, self.momentum = kind, momentum
        if kind == "batch":
            self.register_buffer("running_mean", torch.zeros(d))
            self.register_buffer("running_var", torch.ones(d))

    def reset_parameters(self) -> None:
        """The identity."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        if self.kind == "batch":
            self.running_mean.zero_()
            self.running_var.fill_(1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (N, d); mask (N), true for real rows, or None where all are."""
        if self.kind == "layer":
            return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, EPS)
        wide = x.to(self.running_mean.dtype)
        if not self.training:
            scale = self.weight * (self.running_var + EPS).rsqrt()
            return ((wide - self.running_mean) * scale + self.bias).to(x.dtype)
        mask = torch.ones(x.shape[0], dtype=torch.bool, device=x.device) if mask is None else mask
        count = mask.sum().to(wide.dtype)
        divisor = count.clamp_min(1)
        mean = clear_rows(wide, mask).sum(0) / divisor
        centred = clear_rows(wide - mean, mask)
        variance = centred.square().sum(0) / divisor
        with torch.no_grad():
            # A batch without a single token leaves the running statistics alone.
            momentum = (count > 0).to(wide.dtype) * self.momentum
            unbiased = variance * divisor / (count - 1).clamp_min(1)
            self.running_mean += (mean - self.running_mean) * momentum
            self.running_var += (unbiased - self.running_var) * momentum
        return (centred * (self.weight * (variance + EPS).rsqrt()) + self.bias).to(x.dtype)

    def in_one_pass(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same in the type of x, by the library's operator where there is one for it."""
        if self.kind == "batch" or _nodes.in_python():
            return self(x, mask).to(x.dtype)
        return torch.ops.dba.residual_norm.default(x, None, None, self.weight, self.bias, EPS, 0.0, None, False,
                                                   None)[1]


class ResidualBlock(nn.Module):
    """All of a layer but its attention: residuals, norms and the feed-forward network. Tokens are rows (N, d).

    The sums, norms and activations are operators of the library, one pass each; compiled code gets plain ones, which
    compilers fuse themselves.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = TokenNorm(config.d, config.norm)
        self.linear_1 = nn.Linear(config.d, config.d_ffn)
        self.linear_2 = nn.Linear(config.d_ffn, config.d)
        self.ffn_norm = TokenNorm(config.d, config.norm)
        self.dropout, self.activation_dropout = config.dropout, config.activation_dropout
        self.norm_first, self.activation = config.norm_first, config.activation

    def attention_input(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What the attention reads of the tokens."""
        return self.attention_norm.in_one_pass(x, mask) if self.norm_first else x

    def forward(self, x: Tensor, attention_output: Tensor, mask: Tensor | None) -> Tensor:
        """The next tokens, from the tokens and what the attention said of them."""
        bias = self.linear_2.bias
        if self.norm_first:
            total, y = self._add_and_norm(x, attention_output, None, self.ffn_norm, mask, keep_sum=True)
            return self._add(total, self._feed_forward(y), bias)
        _, normed = self._add_and_norm(x, attention_output, None, self.attention_norm, mask, keep_sum=False)
        return self._add_and_norm(normed, self._feed_forward(normed), bias, self.ffn_norm, mask, keep_sum=False)[1]

    def _add(self, residual: Tensor, branch: Tensor, bias: Tensor | None) -> Tensor:
        """residual + dropout(branch + bias)."""
        if _nodes.in_python():
            branch = branch if bias is None else branch + bias
            return residual + functional.dropout(branch, self.dropout, self.training).to(residual.dtype)
        rate = self.dropout if self.training else 0.0
        return torch.ops.dba.residual_sum.default(residual, branch, bias, rate, ops.draw(rate, residual.device))

    def _add_and_norm(
        self, residual: Tensor, branch: Tensor, bias: Tensor | None, norm: TokenNorm, mask: Tensor | None,
        keep_sum: bool,
    ) -> tuple[Tensor, Tensor]:
        """The sum, where it is kept, and its norm."""
        # A norm over the batch needs the whole sum first.
        if norm.kind == "batch" or _nodes.in_python():
            total = self._add(residual, branch, bias)
            return total, norm(total, mask).to(branch.dtype)
        rate = self.dropout if self.training else 0.0
        return torch.ops.dba.residual_norm.default(residual, branch, bias, norm.weight, norm.bias, EPS, rate,
                                                   ops.draw(rate, residual.device), keep_sum, None)[:2]

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Without the bias of linear_2, which joins where the residual is added."""
        hidden = functional.linear(x, self.linear_1.weight)
        rate = self.activation_dropout if self.training else 0.0
        if _nodes.in_python():
            act = functional.gelu if self.activation == "gelu" else functional.relu
            active = functional.dropout(act(hidden + self.linear_1.bias), rate, self.training)
        else:
            active = torch.ops.dba.activate.default(hidden, self.linear_1.bias, self.activation, rate,
                                                    ops.draw(rate, x.device))
        return functional.linear(active, self.linear_2.weight)


class EncoderLayer(nn.Module):
    """Attention and feed-forward network, each with residual and norm."""

    def __init__(self, config: ModelConfig, hands_on_z: bool = True, max_length: int = 0, index: int = 0) -> None:
        """index: of the layer in its stack, which random choices differ by."""
        super().__init__()
        options = config.attention_options(max_length, index)
        if config.method not in ("dba", "softmax"):
            self.attention: nn.Module = ZooSelfAttention(
                config.method, config.d, config.heads, dropout=config.attention_dropout, bias=config.bias,
                d_p=config.d_p, z_dropout=config.dropout, z_update=config.z_update, hands_on_z=hands_on_z,
                options=options,
            )
        elif config.method == "softmax":
            self.attention = SoftmaxSelfAttention(config.d, config.heads, dropout=config.attention_dropout,
                                                  bias=config.bias)
        else:
            self.attention = DBASelfAttention(
                config.d, config.heads, d_p=config.d_p, d_in=config.d_in, form=config.form, normalise=config.normalise,
                dropout=config.attention_dropout, bias=config.bias, compress_length=config.compress_length,
                compress_width=config.compress_width, z_update=config.z_update, z_dropout=config.dropout,
                hands_on_z=hands_on_z,
            )
        self.block = ResidualBlock(config)

    def forward(
        self, x: Tensor, sequences: Sequences, z: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """x (N, d), finite in rows of nobody. Returns the next tokens and the next layer's Z."""
        y, z = self.attention(self.block.attention_input(x, mask), sequences, z)
        return self.block(x, y, mask), z


class Encoder(nn.Module):
    """A stack of encoder layers. Attentions that carry slots get the first Z from `slots`; each layer's Z goes to the
    next. With pre-norm layers a last norm follows. Rows of nobody may hold anything; they come out as zeros."""

    def __init__(self, config: ModelConfig, max_length: int = 0) -> None:
        """max_length: the longest sequence, for attentions with parameters for every position."""
        super().__init__()
        self.depth = config.layers
        count = 1 if config.tied else config.layers
        # The last layer's Z goes nowhere. A tied layer is the last one and the ones before it.
        follows = [config.layers > 1 if config.tied else index + 1 < count for index in range(count)]
        layers = nn.ModuleList(EncoderLayer(config, hands_on_z, max_length, index)
                               for index, hands_on_z in enumerate(follows))
        takes_slots = layers[0].attention.takes_slots
        self.slots = Slots(config.d_p, config.d, config.dropout, config.slots_norm) if takes_slots else None
        self.layers = layers
        self.norm = TokenNorm(config.d, config.norm) if config.norm_first else None

    def forward(self, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """x (N, d) with `sequences`, or (B, n, d); the result has x's shape."""
        rows, sequences = as_rows("models.Encoder", "x", x, sequences)
        mask = sequences.row_mask()
        tokens = clear_rows(rows, mask)
        z = None if self.slots is None else self.slots(sequences.count)
        for index in range(self.depth):
            tokens, z = self.layers[index % len(self.layers)](tokens, sequences, z, mask)
        if self.norm is not None:
            tokens = self.norm(tokens, mask)
        return clear_rows(tokens, mask).view(x.shape)
