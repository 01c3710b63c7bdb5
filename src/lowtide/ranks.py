"""The rank of this process in a group that trains together; 0 of 1 without any settings.

In:      RANK, WORLD_SIZE and LOCAL_RANK in the environment, which torchrun sets; or JAX_PROCESS_ID
         and JAX_NUM_PROCESSES, which the user sets for several processes of JAX (docs/jax.md)
Out:     numbers; an environment without them, for a subprocess that is not part of the group
"""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = [
    "JAX_NAMES",
    "alone",
    "by_torchrun",
    "is_first",
    "is_launched",
    "local_rank",
    "rank",
    "world_size",
]

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
JAX_NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
"""The variables of JAX: address of the first process, number of processes, this one's rank."""


def by_torchrun() -> bool:
    """True under torchrun, also with one process."""
    return "RANK" in os.environ or "WORLD_SIZE" in os.environ


def is_launched() -> bool:
    """True if this process was started as one of a group."""
    return by_torchrun() or JAX_NAMES[1] in os.environ


def rank() -> int:
    """The number of this process among all of them."""
    return int(os.environ.get("RANK", "0")) if by_torchrun() else _jax_number(JAX_NAMES[2], 0)


def is_first() -> bool:
    """True for the process that writes files and messages for all."""
    return rank() == 0


def world_size() -> int:
    """The number of processes, on all machines."""
    if by_torchrun():
        return int(os.environ.get("WORLD_SIZE", "1"))
    return _jax_number(JAX_NAMES[1], 1)


def local_rank() -> int:
    """The number of this process on its machine, and of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a subprocess outside of any group."""
    names = (*_NAMES, *JAX_NAMES)
    return {name: value for name, value in environment.items() if name not in names}


def _jax_number(name: str, otherwise: int) -> int:
    """A number from the environment, or `otherwise`; `join` rejects a malformed one."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else otherwise
