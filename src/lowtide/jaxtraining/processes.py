"""Several processes of JAX: joining them, and exchanging values besides the training itself.

In:      JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in the environment
Out:     values of every process, or of the first
Memory:  the values; a broadcast array exists twice for a moment
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from lowtide import ranks
from lowtide.errors import UsageError

__all__ = ["all_say", "first_says", "join"]

_SHUTDOWN_SECONDS = 20
"""How long a process that ends waits for the others, so that a failed one does not block them."""


def join() -> bool:
    """Join the other processes, once, before anything is computed; return whether there are any."""
    if ranks.by_torchrun():
        if ranks.world_size() == 1:
            return False
        raise UsageError(
            f"torchrun has started {ranks.world_size()} processes, and --backend is jax",
            next_step=f"start them without torchrun, each with {', '.join(ranks.JAX_NAMES)}; one "
            "process takes all devices of its machine",
        )
    given = {name: os.environ[name] for name in ranks.JAX_NAMES if os.environ.get(name)}
    if not given:
        return False
    _require_whole(given)
    if ranks.world_size() == 1:
        return False
    if jax.distributed.is_initialized():
        return True
    try:
        with _stdout_kept_clean():
            jax.distributed.initialize(
                given[ranks.JAX_NAMES[0]],
                ranks.world_size(),
                ranks.rank(),
                cluster_detection_method="deactivate",
                shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            )
            all_say(None)  # CPUs connect at the first exchange
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"process {ranks.rank()} of {ranks.world_size()} could not join the others at "
            f"{given[ranks.JAX_NAMES[0]]}: {error}",
            next_step="start all of them, with the address of the first one; a program of your own "
            "must not compute with JAX before",
        ) from error
    return True


@contextlib.contextmanager
def _stdout_kept_clean() -> Generator[None]:
    """Redirect what libraries print about connections to stderr: stdout is for answers (--json)."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _require_whole(given: dict[str, str]) -> None:
    """Refuse settings that are incomplete, or not numbers."""
    missing = [name for name in ranks.JAX_NAMES if name not in given]
    if missing:
        raise UsageError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} set, "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not",
            next_step="set all three in every process, or none to train in one process",
        )
    address, count, own = (given[name] for name in ranks.JAX_NAMES)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"{ranks.JAX_NAMES[0]} is {address!r}, expected HOST:PORT of the first process",
            next_step=f"for example {ranks.JAX_NAMES[0]}=10.0.0.1:29400",
        )
    if not (count.isdecimal() and own.isdecimal() and int(own) < int(count)):
        raise UsageError(
            f"{ranks.JAX_NAMES[2]} is {own!r} and {ranks.JAX_NAMES[1]} {count!r}, expected a "
            "number from 0 and one above it",
            next_step="the first of two processes is 0 of 2, the second 1 of 2",
        )


def all_say(value: Any) -> list[Any]:
    """Gather the value of each process, by rank; all processes must call it together."""
    text = json.dumps(value).encode()
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    # A few shapes only, because each is compiled.
    room = 1 << max(6, (int(sizes.max()) - 1).bit_length())
    filled = np.frombuffer(text.ljust(room), np.uint8)
    return [json.loads(bytes(row)) for row in multihost_utils.process_allgather(filled)]


def first_says(value: Any, *, is_first: bool) -> Any:
    """Broadcast the first process's value to all: an array, or a value that fits into JSON."""
    is_array = isinstance(value, np.ndarray)
    said = {"shape": value.shape, "type": value.dtype.str} if is_array else {"value": value}
    about = all_say(said if is_first else None)[0]
    if "value" in about:
        return about["value"]
    array = value if is_first else np.zeros(about["shape"], about["type"])
    return np.asarray(multihost_utils.broadcast_one_to_all(array))
