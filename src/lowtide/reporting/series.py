"""Downsample curves of any length to a fixed number of points.

In:      points in order, from a metrics file
Out:     at most `limit` buckets: the mean, and the smallest and largest value in each
Memory:  `limit` buckets, whatever the number of points
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from lowtide.quickclasses import dataclass

__all__ = ["Bucket", "Series", "SpacedItems", "finite_number", "round_number"]


@dataclass
class Bucket:
    """Neighbouring points of a curve, merged."""

    places: tuple[float, ...]
    """Its end on each axis (step, time)."""
    total: float
    low: float
    high: float
    count: int

    def join(self, later: Bucket) -> None:
        """Merge the following bucket into this one."""
        self.places = later.places
        self.total += later.total
        self.low = min(self.low, later.low)
        self.high = max(self.high, later.high)
        self.count += later.count


class Series:
    """One curve; when it has too many buckets, neighbours are merged and buckets hold twice more.

    Spikes stay visible, since every bucket keeps its extremes.

    >>> series = Series(limit=4)
    >>> for step in range(8):
    ...     series.add(step, places=(step,))
    >>> series.as_json(["step"])
    {'step': [1, 3, 5, 7], 'y': [0.5, 2.5, 4.5, 6.5], 'low': [0, 2, 4, 6], 'high': [1, 3, 5, 7]}
    """

    def __init__(self, limit: int = 480) -> None:
        self._limit = limit
        self._points_per_bucket = 1
        self._buckets: list[Bucket] = []
        self.first: float | None = None
        self.last: float | None = None
        self.low = math.inf
        self.high = -math.inf

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def add(self, value: Any, *, places: Sequence[float]) -> None:
        """Add a point; values that are not finite numbers are ignored."""
        if (value := finite_number(value)) is None:
            return
        self.first = value if self.first is None else self.first
        self.last = value
        self.low, self.high = min(self.low, value), max(self.high, value)
        bucket = Bucket(tuple(places), value, value, value, 1)
        if self._buckets and self._buckets[-1].count < self._points_per_bucket:
            self._buckets[-1].join(bucket)
            return
        if len(self._buckets) == self._limit:
            self._halve()
        self._buckets.append(bucket)

    def _halve(self) -> None:
        for left, right in zip(self._buckets[::2], self._buckets[1::2], strict=False):
            left.join(right)
        self._buckets = self._buckets[::2]
        self._points_per_bucket *= 2

    def as_json(self, axes: Sequence[str]) -> dict[str, list[float]]:
        """Return the columns of the curve: each axis, y, and the extremes where they differ."""
        columns: dict[str, list[float]] = {
            axis: [round_number(bucket.places[number]) for bucket in self._buckets]
            for number, axis in enumerate(axes)
        }
        columns["y"] = [round_number(bucket.total / bucket.count) for bucket in self._buckets]
        if self._points_per_bucket > 1:
            columns["low"] = [round_number(bucket.low) for bucket in self._buckets]
            columns["high"] = [round_number(bucket.high) for bucket in self._buckets]
        return columns


class SpacedItems:
    """Keeps the first item, the last, and evenly spaced ones between, `limit` at most.

    >>> items = SpacedItems(limit=4)
    >>> for number in range(100):
    ...     items.add(number)
    >>> items.items
    [0, 64, 99]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: list[Any] = []
        self._last: Any = None
        self._stride = 1
        self.count = 0

    def add(self, item: Any) -> None:
        """Add an item."""
        if self.count % self._stride == 0:
            if len(self._kept) == self._limit - 1:
                self._kept = self._kept[::2]
                self._stride *= 2
            if self.count % self._stride == 0:
                self._kept.append(item)
        self._last = item
        self.count += 1

    @property
    def items(self) -> list[Any]:
        """The kept items, in order."""
        if self.count and (self.count - 1) % self._stride:
            return [*self._kept, self._last]
        return list(self._kept)


def finite_number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Not isfinite: whole numbers in JSON have no limit, and larger ones are no floats.
    return value if abs(value) <= sys.float_info.max else None


def round_number(value: float, digits: int = 6) -> float:
    """Return a number with few digits, so that a page stays small.

    >>> round_number(3.14159265), round_number(1234567.8), round_number(12.0)
    (3.14159, 1234568, 12)
    """
    if value == 0 or not math.isfinite(value):
        return 0
    if abs(value) >= 10**digits:
        return round(value)
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
