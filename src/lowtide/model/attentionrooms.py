"""Memory that attention takes on a CPU for every thread, by shape; without torch.

In:      GPTConfig, rows and their length, threads
Out:     bytes beside the tensors that are counted elsewhere
"""

from __future__ import annotations

import os

from lowtide import _native
from lowtide.memory import usable_cores
from lowtide.model.config import GPTConfig

__all__ = ["MOST_ROOM_BYTES", "computing_threads", "further_rooms_bytes"]

MOST_ROOM_BYTES = 4 << 20
"""Of the backward pass of a thread, which grows with the row: 2,048 tokens of heads of 96 numbers.
Longer rows are left to torch, whose attention takes the same for any number of threads."""
# What activations are estimated by was fitted to peaks on two cores.
_FITTED_THREADS = 2


def computing_threads() -> int:
    """The threads that torch computes with if nobody sets their number, before it is imported."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(given) if given.isdecimal() and int(given) > 0 else usable_cores()


def further_rooms_bytes(
    config: GPTConfig,
    *,
    rows: int,
    tokens: int,
    trains: bool,
    logits_bytes: int,
    half: bool = False,
    cpu_threads: int | None = None,
) -> int:
    """Bytes that attention takes for threads after the second, with rows of so many tokens.

    A pass of a thread has copies of one head's keys and values, where the logits (`logits_bytes`)
    were or will be: with 8,192 tokens in rows of 2,048 and heads of 64 numbers 32 threads took 84
    MiB more than two, of 829, where the vocabulary had 200 tokens, and 28 of 862 with 4,000.
    """
    if half or (trains and config.dropout and config.family.attention_dropout):
        return 0  # torch's attention
    heads, kv_heads = config.num_heads, config.num_kv_heads
    sizes = (rows, tokens, tokens, heads, kv_heads, config.head_dim, 0)
    backward = _native.attention_room_bytes(sizes, True)
    if backward > MOST_ROOM_BYTES:
        return 0
    threads = computing_threads() if cpu_threads is None else cpu_threads

    def further(tasks: int, room: int) -> int:
        return max(0, min(threads, tasks) - _FITTED_THREADS) * room

    forward = further(rows * heads, _native.attention_room_bytes(sizes, False))
    rooms = max(forward, further(rows * kv_heads, backward)) if trains else forward
    return max(0, rooms - logits_bytes)
