"""The factors of DBA as pictures: what the slots take of the tokens, and what the tokens take of the slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from .look import as_array, axes_or_new, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Factors that stand as (tokens, slots); the others stand as (slots, tokens).
_BY_TOKEN = ("w_c_prime", "w_r_prime")
_TITLES = {"w_r": "W_r: compression of the queries", "w_c": "W_c: compression of the keys",
           "w_c_prime": "W_c': compression of the values", "w_r_prime": "W_r': reconstruction of the tokens"}


def compression(weights: Any, which: str = "w_r", sequence: int = 0, head: int | None = None,
                length: int | None = None, side: int | tuple[int, int] | None = None,
                ax: Axes | None = None) -> Axes | numpy.ndarray:
    """Draws how much each slot takes of each token of one sequence.

    weights: what `DBAttention(…, need_weights=True)` returns, or one factor as a tensor: W_r, W_c (B, H, d_p, n), W_c'
        (B, H, n, d_p).
    which: "w_r" (queries), "w_c" (keys) or "w_c_prime" (values; with linear normalisation it may be negative).
    sequence: which of the batch. head: one of the heads; default: the mean over them.
    length: how many tokens the sequence has, where the batch is padded.
    side: for pixels, the image's side or (rows, columns): each slot becomes a picture.

    Returns the axes of a map (slots over tokens), or an array of axes, one per slot, for pixels.
    """
    if which not in ("w_r", "w_c", "w_c_prime"):
        raise ValueError(f"dba.figures.compression: which must be w_r, w_c or w_c_prime, got {which!r}; "
                         "dba.figures.reconstruction draws w_r_prime")
    return _picture("compression", weights, which, sequence, head, length, side, ax)


def reconstruction(weights: Any, sequence: int = 0, head: int | None = None, length: int | None = None,
                   side: int | tuple[int, int] | None = None, ax: Axes | None = None) -> Axes | numpy.ndarray:
    """Draws how much each token of one sequence takes of each slot: W_r', (B, H, n, d_p). Arguments as compression."""
    return _picture("reconstruction", weights, "w_r_prime", sequence, head, length, side, ax)


def _factor(function: str, weights: Any, which: str, sequence: int, head: int | None,
            length: int | None) -> numpy.ndarray:
    """(slots, tokens) of one sequence."""
    if isinstance(weights, dict):
        factor = weights.get(which)
    else:
        factor = getattr(weights, which, weights if hasattr(weights, "shape") else None)
    if factor is None:
        raise ValueError(f"dba.figures.{function}: weights must hold the factor {which!r}, got "
                         f"{type(weights).__name__}; call the attention with need_weights=True (form released has w_r "
                         "and w_r_prime alone)")
    factor = as_array(factor)
    if factor.ndim != 4:
        raise ValueError(f"dba.figures.{function}: {which} must be of shape (B, H, d_p, n) or (B, H, n, d_p), got "
                         f"{factor.shape}")
    if not 0 <= sequence < factor.shape[0] or not (head is None or 0 <= head < factor.shape[1]):
        raise ValueError(f"dba.figures.{function}: sequence and head must lie within ({factor.shape[0]}, "
                         f"{factor.shape[1]}), got ({sequence}, {head})")
    one = factor[sequence].mean(axis=0) if head is None else factor[sequence, head]
    one = one.T if which in _BY_TOKEN else one
    return one if length is None else one[:, :length]


def _picture(function: str, weights: Any, which: str, sequence: int, head: int | None, length: int | None,
             side: int | tuple[int, int] | None, ax: Axes | None) -> Axes | numpy.ndarray:
    factor = _factor(function, weights, which, sequence, head, length)
    title = _TITLES[which] + (", mean over heads" if head is None else f", head {head}")
    largest = float(numpy.abs(factor).max(initial=0)) or 1.0
    colours = {"cmap": "viridis", "vmin": 0, "vmax": largest}
    if factor.min(initial=0) < 0:
        colours = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    if side is not None:
        return _images(function, factor, side, title, colours, ax)
    ax = axes_or_new(ax, (8.0, 1.2 + 0.16 * len(factor)))
    image = ax.imshow(factor, aspect="auto", interpolation="nearest", **colours)
    ax.set_xlabel("token")
    ax.set_ylabel("slot")
    ax.set_title(title, fontsize="medium")
    ax.figure.colorbar(image, ax=ax, label="weight")
    return ax


def _images(function: str, factor: numpy.ndarray, side: int | tuple[int, int], title: str, colours: dict,
            ax: Axes | None) -> numpy.ndarray:
    rows, columns = (side, side) if isinstance(side, int) else side
    if rows * columns != factor.shape[1]:
        raise ValueError(f"dba.figures.{function}: side must make a picture of {factor.shape[1]} pixels, got "
                         f"{rows} × {columns}; a symbol put before or behind the pixels is no pixel")
    if ax is not None:
        raise ValueError(f"dba.figures.{function}: ax must be absent where side is given: each slot has its own axes")
    slots = len(factor)
    wide = min(slots, 8)
    tall = -(-slots // wide)
    figure, grid = pyplot().subplots(tall, wide, figsize=(1.3 * wide + 0.8, 1.4 * tall + 0.5), squeeze=False,
                                     layout="constrained")
    for place in grid.flat:
        place.set_axis_off()
    shown = grid.flatten()[:slots]
    for slot, place in enumerate(shown):
        image = place.imshow(factor[slot].reshape(rows, columns), interpolation="nearest", **colours)
        place.set_title(f"slot {slot}", fontsize="x-small")
    figure.suptitle(title, fontsize="medium")
    figure.colorbar(image, ax=list(grid.flat), label="weight", shrink=0.8)
    return shown
