"""How often a job reports its progress.

Out:     Intervals, for Progress
Memory:  a few numbers
"""

from __future__ import annotations

from lowtide.quickclasses import dataclass

__all__ = ["USUAL_INTERVALS", "Intervals"]


@dataclass(frozen=True)
class Intervals:
    """Seconds between two reports of each kind."""

    refresh_seconds: float = 0.2
    """Between two polls of the phase, and two updates of a bar."""
    metrics_seconds: float = 1.0
    """Between two rows of metrics."""
    line_seconds: float = 10.0
    """Between two lines, if there is no bar."""


USUAL_INTERVALS = Intervals()
