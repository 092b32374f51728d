"""Names at the points they belong to, none over another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# All in points. Around a name stays GAP of room; places are tried every STEP from the point in so many directions, and
# of those that no other name takes so many are compared.
GAP, STEP, DIRECTIONS, NEAREST = 1.5, 4.0, 24, 240
# What a name is drawn at, between 0 and 1 of the length of a line and of the width of a name.
ALONG = numpy.linspace(0, 1, 9)
# A line shorter than this is not drawn.
SHORTEST = 3.0
# A place costs the length of its line and this share of the way to the point, for every name that its line meets and
# every line that the name meets so many points, and so many for lying on circles of others altogether.
OFF_CENTRE, MEETING, ON_OTHERS = 0.3, 60.0, 40.0
# After the first of them no name is over another, if there is room; the others find cheaper places.
PASSES = 6


def label_points(ax: Axes, names: Sequence[str], points: Sequence[tuple[float, float]], areas: Sequence[float],
                 fontsize: float = 6.5) -> None:
    """Writes every name at its point, given in data, or near it with a thin line to it: no name over another or beyond
    the axes while there is room, and away from the circles of other points where that costs little.

    areas: of the circles around the points, points². All else has been drawn by now, for it decides on the room.
    """
    figure = ax.figure
    figure.draw_without_rendering()  # settles limits and layout
    scale = 72 / figure.dpi
    centres = ax.transData.transform(points) * scale
    texts = [ax.text(0, 0, name, fontsize=fontsize) for name in names]
    halves = numpy.array([text.get_window_extent().size for text in texts]) * scale / 2 + GAP
    for text in texts:
        text.remove()
    placed = _places(centres, halves, numpy.sqrt(numpy.asarray(areas) / numpy.pi), ax.bbox.extents * scale)
    for name, point, centre, half, place in zip(names, points, centres, halves, placed):
        begin = _nearest(centre, place, half)
        line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.35", "shrinkA": 0, "shrinkB": 0, "patchA": None,
                "relpos": (begin - place + half) / (2 * half)}
        ax.annotate(name, point, place - centre, textcoords="offset points", fontsize=fontsize, ha="center",
                    va="center", arrowprops=line if numpy.hypot(*(centre - begin)) > SHORTEST else None)


def _nearest(point: numpy.ndarray, middle: numpy.ndarray, half: numpy.ndarray) -> numpy.ndarray:
    """Of a name, to the point: where the line between them begins."""
    return numpy.clip(point, middle - half, middle + half)


def _places(centres: numpy.ndarray, halves: numpy.ndarray, radii: numpy.ndarray, room: numpy.ndarray) -> numpy.ndarray:
    """Middles of the names, (n, 2). centres, halves (of width and height) (n, 2), radii (n); room: left, bottom, right,
    top. Each name in turn takes the cheapest place beside all others, until none moves."""
    reach = float(numpy.hypot(room[2] - room[0], room[3] - room[1]))
    angles = 2 * numpy.pi * numpy.arange(DIRECTIONS) / DIRECTIONS
    rings = numpy.arange(STEP, reach, STEP)[:, None, None] * numpy.stack((numpy.cos(angles), numpy.sin(angles)), 1)
    offsets = numpy.concatenate((numpy.zeros((1, 2)), rings.reshape(-1, 2)))
    clipped = [numpy.clip(centre + offsets, room[:2] + half, numpy.maximum(room[2:] - half, room[:2] + half))
               for centre, half in zip(centres, halves)]
    placed = numpy.stack([tried[0] for tried in clipped])
    for _ in range(PASSES):
        before = placed.copy()
        for index, tried in enumerate(clipped):
            others = numpy.arange(len(placed)) != index
            apart = numpy.abs(tried[:, None] - placed[others]) - (halves[index] + halves[others])
            overlap = numpy.clip(-apart, 0, None).prod(-1).sum(1)  # (k), points²
            free = tried[overlap == 0][:NEAREST]
            placed[index] = tried[numpy.argmin(overlap)] if len(free) == 0 else \
                free[numpy.argmin(_costs(index, free, placed, centres, halves, radii))]
        if numpy.array_equal(before, placed):
            break
    return placed


def _costs(index: int, tried: numpy.ndarray, placed: numpy.ndarray, centres: numpy.ndarray, halves: numpy.ndarray,
           radii: numpy.ndarray) -> numpy.ndarray:
    """Of every place tried (k, 2) for one name, the others being where they are."""
    others = numpy.arange(len(placed)) != index
    centre, half = centres[index], halves[index]
    # Its line through other names, and other lines through it. Without a line, a point is what is covered.
    own = _nearest(centre, tried, half) - centre
    own_line = centre + ALONG[:, None] * own[:, None]  # (k, 9, 2)
    through = (numpy.abs(own_line[:, :, None] - placed[others]) < halves[others]).all(-1).any(1).sum(1)
    lines = centres[others, None] + ALONG[:, None] * (_nearest(centres, placed, halves) - centres)[others, None]
    under = (numpy.abs(lines - tried[:, None, None]) < half).all(-1).any(2).sum(1)

    across = numpy.stack(numpy.meshgrid(2 * ALONG - 1, (-1, 0, 1)), -1).reshape(-1, 2) * half  # over the name
    spots = tried[:, None] + across
    away = numpy.linalg.norm(spots[:, :, None] - centres[others], axis=-1)  # (k, spots, others)
    on_others = (away < radii[others]).any(2).mean(1)
    return (numpy.hypot(*own.T) + OFF_CENTRE * numpy.hypot(*(tried - centre).T) + MEETING * (through + under)
            + ON_OTHERS * on_others)
