"""The factors of one layer of a trained model, and `dba plot weights`, which draws them for one example."""

from __future__ import annotations

import json
import pathlib
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..factors import AttentionWeights, Padded, layer_factors
from ..layer import DBALayer
from ..models import Classifier, DualEncoder, Repairs, load
from ..sequences import Sequences
from . import weights as pictures
from .series_files import read_series, series_format


def layer_weights(model: Classifier | DualEncoder, examples: Sequence[Any], layer: int = 0) -> AttentionWeights:
    """The factors of layer `layer`, counted from 0, when the model reads the examples; without dropout.

    examples: as `model.predict` takes them; of pairs, the first text of each is read. A UserWarning says where they are
        longer than the model takes, and cut.
    Returns w_r, w_c (B, H, d_p, n), p (B, H, d_p, d_p), w_c_prime, w_r_prime (B, H, n, d_p); None where there is none.
    """
    encoder = model.backbone.encoder
    if not 0 <= layer < encoder.depth:
        raise ValueError(f"dba.figures.layer_weights: layer must lie in [0, {encoder.depth}), got {layer}")
    attention = encoder.layers[layer % len(encoder.layers)].attention
    if not isinstance(attention, DBALayer) or not attention.compress_length:
        raise ValueError("dba.figures.layer_weights: the model must have DBA with length compression, got "
                         f"{type(attention).__name__}; there are no slots to draw")
    calls: list[tuple[Tensor, Sequences, Tensor | None]] = []
    hook = attention.register_forward_pre_hook(lambda _, arguments: calls.append(arguments))
    repairs = Repairs()
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            encoding = model.known_encoding()
            batch = encoding.batch(examples, next(model.parameters()).device, repairs)
            if repairs.sequences_cut:
                cut = Repairs(repairs.sequences, sequences_cut=repairs.sequences_cut).sentence()
                warnings.warn(f"dba.figures.layer_weights: {cut}", UserWarning, stacklevel=2)
            model.backbone(*(batch[::2] if encoding.kind == "pairs" else batch))
            # Tied layers are called once for every place of the stack.
            x, sequences, z = calls[layer // len(encoder.layers)]
            tokens = Padded.of(x, sequences)
            return layer_factors(attention, tokens, tokens, attention.slots(len(sequences)) if z is None else z)
    finally:
        hook.remove()
        model.train(was_training)


def read_example(path: str, index: int, data: dict[str, Any] | None = None) -> Any:
    """Example `index` of a file in the form that `model.predict` takes: text, pair of texts, numbers, or a series of
    JSON lines; a series of a `.ts` file or long CSV. data: the configuration's section, which names columns and
    format."""
    data = data or {}
    if path != "-" and pathlib.Path(path).is_file() and series_format(path, data) in ("ts", "csv_long"):
        series, _ = read_series(path, data)
        if not 0 <= index < len(series):
            raise ValueError(f"{path}: --index must lie in [0, {len(series)}), got {index}")
        return series[index]
    text_column, second_text_column = data.get("text_column") or "text", data.get("second_text_column") or ""
    lines = sys.stdin if path == "-" else pathlib.Path(path).read_text().splitlines()
    line = next((line for number, line in enumerate(filter(str.strip, lines)) if number == index), None)
    if line is None:
        raise ValueError(f"{path}: --index {index} is beyond its last example")
    try:
        record = json.loads(line)
        first, second = (text_column, second_text_column) if second_text_column else ("text1", "text2")
        if second in record:
            return record[first], record[second]
        if "series" in record:
            return [[float("nan") if value is None else value for value in row] for row in record["series"]]
        return next(record[key] for key in (text_column, "text", "tokens", "pixels") if key in record)
    except (ValueError, KeyError, TypeError, StopIteration) as reason:
        raise ValueError(f"{path}: example {index} must be a JSON object with text, tokens, pixels, series, or text1 "
                         f"and text2, got {line[:60]!r}; examples are read from JSON lines, and series from .ts files "
                         "and long CSV (with columns case and time) too") from reason


def draw_weights(run: pathlib.Path, input: str, index: int, layer: int, head: int | None, which: str,
                 side: int | None) -> Any:
    """The figure of one factor for one example of a file."""
    model = load(run)
    example = read_example(input, index, (model.settings or {}).get("data", {}))
    factors = layer_weights(model, [example], layer)
    if side is not None:
        if model.encoding.tokeniser.leave_out:
            raise ValueError("dba plot weights: the model leaves out symbols (data.leave_out), so that tokens are no "
                             "grid; draw them without --side")
        factors = _pixels(factors, model.encoding.tokeniser.cls, side * side)
    if which == "w_r_prime":
        axes = pictures.reconstruction(factors, head=head, side=side)
    else:
        axes = pictures.compression(factors, which, head=head, side=side)
    return axes[0].figure if side is not None else axes.figure


def _pixels(factors: AttentionWeights, first: int, count: int) -> AttentionWeights:
    """Without the symbols that the tokeniser put before and behind the pixels."""
    by_slot = [None if factor is None else factor[..., first : first + count] for factor in factors[:2]]
    by_token = [None if factor is None else factor[:, :, first : first + count] for factor in factors[3:]]
    return AttentionWeights(*by_slot, factors.p, *by_token)
