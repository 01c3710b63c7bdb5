"""Which of the processes that torchrun started this is; without torchrun it is alone.

In:      RANK, WORLD_SIZE and LOCAL_RANK in the environment
Out:     numbers; an environment without them, for a process that is to be alone
"""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["alone", "is_first", "is_launched", "local_rank", "rank", "world_size"]

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def is_launched() -> bool:
    """True under torchrun, also with one process."""
    return "RANK" in os.environ


def rank() -> int:
    """The number of this process among all of them."""
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """True for the process that speaks and writes for all."""
    return rank() == 0


def world_size() -> int:
    """How many processes there are, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The number of this process on its machine, which is that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that belongs to no group, whatever started this one."""
    return {name: value for name, value in environment.items() if name not in _NAMES}
