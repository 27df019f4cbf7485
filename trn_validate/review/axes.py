"""Axes of a plot: where a value is drawn, and which values are written beside the axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_LANE = 16.0
"""Pixels of the lanes in which a logarithmic axis keeps zero, and what is no finite number."""

_MOST_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """Maps values onto pixels from ``start`` to ``end``, which may run either way."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; what cannot be on the axis is in a lane beside it."""
        if not math.isfinite(value):
            return self.end
        if not self.log:
            return self._between((value - self.low) / (self.high - self.low))
        if value <= 0:
            return self.start
        place = math.log10(value / self.low) / math.log10(self.high / self.low)
        return self._between(place)

    def _between(self, part: float) -> float:
        lane = math.copysign(_LANE, self.end - self.start) if self.log else 0.0
        first, last = self.start + lane, self.end - lane
        return first + min(max(part, 0.0), 1.0) * (last - first)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Pixels and texts, from the least to the largest."""
        if self.log:
            return self._log_ticks()
        step = nice(self.high - self.low)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple((self.at(n * step), short(n * step)) for n in range(first, last + 1))

    def _log_ticks(self) -> tuple[tuple[float, str], ...]:
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        every = max(1, math.ceil((last - first) / _MOST_TICKS))
        powers = ((self.at(10.0**n), f"1e{n}") for n in range(first, last + 1, every))
        return ((self.start, "0"), *powers)


def linear(values: Iterable[float], start: float, end: float, *, zero: bool = False) -> Axis:
    """A linear axis that holds every finite value, with a little room; ``zero`` starts it there."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    # Equal values need an axis too, and one that no rounding folds into a point.
    room = (high - low) * 0.06 or abs(high) * 0.5 or 1.0
    return Axis(low if zero and low == 0.0 else low - room, high + room, start, end)


def logarithmic(values: Iterable[float], start: float, end: float) -> Axis:
    """A logarithmic axis of whole powers of ten around every finite value above zero."""
    finite = [value for value in values if math.isfinite(value) and value > 0]
    if not finite:
        return Axis(0.1, 10.0, start, end, log=True)
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    return Axis(10.0**low, 10.0 ** max(high, low + 1), start, end, log=True)


def nice(span: float) -> float:
    """A round step that divides a span into a few parts."""
    power = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
    return next(n * power for n in (1, 2, 5, 10) if span / (n * power) <= _MOST_TICKS)


def short(value: float) -> str:
    """A number as briefly as it can be read."""
    if value == 0:
        return "0"
    text = f"{value:.4g}"
    if "e" in text:
        digits, _, power = text.partition("e")
        return f"{digits}e{int(power)}"
    return text
