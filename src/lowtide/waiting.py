"""How the OpenMP threads of torch wait for each other.

Threads that wait by spinning slow each other down as soon as anything else runs on the same cores.
Thirty small steps beside ten other jobs took 22.1 s of processor time and 203 s of wall time; with
threads that sleep, 3.9 s and 67 s (two cores, 17 November 2026).
"""

from __future__ import annotations

import os

__all__ = ["sleep_while_waiting"]


def sleep_while_waiting() -> None:
    """Make threads sleep while they wait, unless the user has set this; call before torch loads.

    OpenMP reads the environment once, when torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
