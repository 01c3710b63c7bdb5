"""How the threads of OpenMP, which torch uses, wait for each other.

Threads that wait by spinning starve each other as soon as anything else runs on the same cores.
Thirty small steps beside ten other jobs took 22.1 s of processor time and 203 s by the clock, and
with threads that sleep 3.9 s and 67 s (two cores, 17 November 2026).
"""

from __future__ import annotations

import os

__all__ = ["sleep_while_waiting"]


def sleep_while_waiting() -> None:
    """Make threads sleep while they wait, unless the user has set this; call before torch loads.

    OpenMP reads the environment once, when torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
