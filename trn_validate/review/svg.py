"""Plots as SVG text: lines over steps, dots in rows, and stacked bars.

Ours and small, since a page may hold 1.5 MB, must be the same bytes each time, and takes its
colours from the style sheet, by which it can be light, dark or printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from trn_validate.review.axes import Axis, linear, logarithmic

WIDTH = 420.0
"""Units of every plot; a phone shows about 360 pixels, so a text of 11 units stays legible."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 10.0, 34.0
_HEIGHT = 250.0
_ROW = 22.0
_MOST_MARKERS = 30
"""More points than that run into each other, and a line says more."""

_MARKERS = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0",
    "M-3 -3h6v6h-6z",
    "M0 -4l3.8 6.6h-7.6z",
    "M0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2z",
    "M-4 -1.2h2.8v-2.8h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8z",
    "M0 4l3.8 -6.6h-7.6z",
    "M-3.6 -1.6h7.2v3.2h-7.2z",
)


@dataclass(frozen=True)
class Series:
    """A line: its name, its points in order, and the number of its style."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: int


@dataclass(frozen=True)
class Mark:
    """A level that a plot is read against."""

    value: float
    text: str


@dataclass(frozen=True)
class Row:
    """A row of dots: those that hold, and those that stand out, each with what it is."""

    name: str
    values: tuple[float, ...]
    standing_out: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Bar:
    """A row of stacked segments."""

    name: str
    segments: tuple[float, ...]
    text: str


def lines(
    about: str,
    series: Sequence[Series],
    *,
    across: str,
    log: bool,
    limits: Sequence[Mark] = (),
    band: float | None = None,
) -> Markup:
    """Lines over steps or ranks of order; ``band`` shades that much on both sides of zero."""
    points = [point for one in series for point in one.points]
    heights = [y for _, y in points] + [mark.value for mark in limits]
    heights += [band, -band] if band is not None else []
    bottom, right = _HEIGHT - _BOTTOM, WIDTH - _RIGHT
    up = (logarithmic if log else linear)(heights, bottom, _TOP)
    along = linear([x for x, _ in points], _LEFT, right)
    parts = [*_grid_up(up), *_ticks_along(_whole(along), bottom), _along(across, _HEIGHT - 4)]
    if band is not None:
        top, height = up.at(band), up.at(-band) - up.at(band)
        shape = f'y="{_n(top)}" width="{_n(right - _LEFT)}" height="{_n(height)}"'
        parts.insert(0, f'<rect class="band" x="{_n(_LEFT)}" {shape}/>')
    parts += [_line(one, along, up) for one in series]
    parts += [part for mark in limits for part in _limit_across(mark, up, right)]
    return _svg(about, _HEIGHT, parts)


def rows(
    about: str, all_rows: Sequence[Row], *, across: str, log: bool, limits: Sequence[Mark] = ()
) -> Markup:
    """Rows of dots over one axis."""
    values = [v for row in all_rows for v in (*row.values, *(v for v, _ in row.standing_out))]
    values += [mark.value for mark in limits]
    first = 16.0 if limits else 4.0
    bottom = first + _ROW * len(all_rows) + 4
    start, end = _name_width(row.name for row in all_rows), WIDTH - 14.0
    along = logarithmic(values, start, end) if log else linear(values, start, end, zero=True)
    parts = [*_ticks_along(along.ticks(), bottom, first), _along(across, bottom + 28)]
    for number, row in enumerate(all_rows):
        y = first + _ROW * (number + 0.5)
        parts.append(_row_name(row.name, start, y))
        parts.append(f'<path class="axis" d="M{_n(start)} {_n(y)}H{_n(end)}"/>')
        parts.append(_dots(row.values, along, y))
        parts += [_cross(along.at(value), y, text) for value, text in row.standing_out]
    for mark in limits:
        x = along.at(mark.value)
        parts.append(f'<path class="limit" d="M{_n(x)} {_n(first)}V{_n(bottom)}"/>')
        parts.append(_text(x, first - 5, mark.text, "middle", "note"))
    return _svg(about, bottom + 34, parts)


def bars(about: str, all_bars: Sequence[Bar], *, across: str) -> Markup:
    """Stacked bars over one axis, each with its sum written behind it."""
    totals = [sum(bar.segments) for bar in all_bars]
    bottom = _ROW * len(all_bars) + 8
    start = _name_width(bar.name for bar in all_bars)
    along = linear(totals, start, WIDTH - 46.0, zero=True)
    parts = [*_ticks_along(along.ticks(), bottom, 4), _along(across, bottom + 28)]
    for number, bar in enumerate(all_bars):
        y, done = 4 + _ROW * number, 0.0
        parts.append(_row_name(bar.name, start, y + _ROW / 2))
        for style, amount in enumerate(bar.segments):
            left, wide = along.at(done), along.at(done + amount) - along.at(done)
            done += amount
            if wide >= 0.05:
                shape = f'x="{_n(left)}" y="{_n(y + 4)}" width="{_n(wide)}" height="{_n(_ROW - 8)}"'
                parts.append(f'<rect class="fill s{style % 7}" {shape}/>')
        parts.append(_text(along.at(done) + 4, y + _ROW / 2 + 4, bar.text))
    return _svg(about, bottom + 34, parts)


def key(style: int, *, filled: bool = False) -> Markup:
    """The sign of a style, for a legend."""
    if filled:
        shape = f'<rect class="fill s{style % 7}" x="2" y="2" width="14" height="10"/>'
    else:
        shape = f'<path class="{_line_class(style)}" d="M0 7H26"/>{_marker(13, 7, style)}'
    width = 18 if filled else 26
    frame = f'class="key" viewBox="0 0 {width} 14" width="{width}" height="14"'
    return Markup(f'<svg {frame} aria-hidden="true">{shape}</svg>')  # all is ours


def _svg(about: str, height: float, parts: Iterable[str]) -> Markup:
    frame = f'viewBox="0 0 {_n(WIDTH)} {_n(height)}" role="img" aria-label="{escape(about)}"'
    # Every text in the parts went through escape.
    return Markup(f'<svg class="plot" {frame}>{"".join(parts)}</svg>')


def _grid_up(up: Axis) -> list[str]:
    parts = []
    for y, text in up.ticks():
        parts.append(f'<path class="grid" d="M{_n(_LEFT)} {_n(y)}H{_n(WIDTH - _RIGHT)}"/>')
        parts.append(_text(_LEFT - 5, y + 4, text, "end"))
    return parts


def _whole(along: Axis) -> tuple[tuple[float, str], ...]:
    """Ticks at whole numbers alone: there is no half of a step."""
    return tuple(tick for tick in along.ticks() if "." not in tick[1])


def _ticks_along(
    ticks: Sequence[tuple[float, str]], bottom: float, top: float | None = None
) -> list[str]:
    # The lane of zero is narrower than its neighbour's text.
    crowded = len(ticks) > 1 and ticks[1][0] - ticks[0][0] < 24
    written = [tick for n, tick in enumerate(ticks) if not (crowded and n == 1)]
    parts = [_text(x, bottom + 13, text, "middle") for x, text in written]
    if top is None:
        return parts
    grid = (f"M{_n(x)} {_n(top)}V{_n(bottom)}" for x, _ in ticks)
    return [f'<path class="grid" d="{"".join(grid)}"/>', *parts]


def _along(text: str, y: float) -> str:
    return _text(WIDTH - _RIGHT, y, text, "end", "note")


def _line(series: Series, along: Axis, up: Axis) -> str:
    places = [(along.at(x), up.at(y)) for x, y in series.points]
    path = "L".join(f"{_n(x)} {_n(y)}" for x, y in places)
    drawn = f'<path class="{_line_class(series.style)}" d="M{path}"/>' if len(places) > 1 else ""
    if 0 < len(places) <= _MOST_MARKERS:
        drawn += "".join(_marker(x, y, series.style) for x, y in places)
    return f"<g><title>{escape(series.name)}</title>{drawn}</g>"


def _line_class(style: int) -> str:
    return f"line s{style % 7} d{style // 7 % 3}"


def _marker(x: float, y: float, style: int) -> str:
    shape = _MARKERS[(style + style // 7) % len(_MARKERS)]
    return f'<path class="mark s{style % 7}" transform="translate({_n(x)} {_n(y)})" d="{shape}"/>'


def _limit_across(mark: Mark, up: Axis, right: float) -> list[str]:
    y = up.at(mark.value)
    line = f'<path class="limit" d="M{_n(_LEFT)} {_n(y)}H{_n(right)}"/>'
    return [line, _text(right - 2, y - 4, mark.text, "end", "note")]


def _dots(values: Sequence[float], along: Axis, y: float) -> str:
    # Equal places are drawn once: of a thousand ranks most are alike.
    places = dict.fromkeys(f"M{_n(along.at(value))} {_n(y)}h0" for value in values)
    return f'<path class="dots" d="{"".join(places)}"/>' if places else ""


def _cross(x: float, y: float, text: str) -> str:
    shape = f"M{_n(x - 4)} {_n(y - 4)}l8 8m0 -8l-8 8"
    return f'<path class="bad-mark" d="{shape}"><title>{escape(text)}</title></path>'


def _row_name(name: str, start: float, y: float) -> str:
    return _text(start - 6, y + 4, name, "end")


def _name_width(names: Iterable[str]) -> float:
    """Room for the longest name: 6.1 units a letter of 11 units."""
    return min(190.0, 14 + 6.1 * max((len(name) for name in names), default=0))


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> str:
    place = f'x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def _n(value: float) -> str:
    """A coordinate, to a tenth of a unit."""
    text = f"{value:.1f}" if math.isfinite(value) else "0.0"
    return text.removesuffix(".0")
