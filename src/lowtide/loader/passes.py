"""Which pass of a dataset a worker of torch's DataLoader begins.

In:      a worker's number, how many there are, their seed
Out:     the number of the pass, the same in all workers
Memory:  three numbers for each worker, which all processes share

Each worker takes its own part of a pass, so all of them have to begin the same one, whoever has
read the dataset before: another number of workers, the process itself, or some of the workers of a
loop that was left before all had begun. (Each counted its own passes at first: after a look at one
window, 29 of 100 windows were left out and as many came twice.)

Workers of one DataLoader are told apart from those of another by the seed that torch draws for
them. The first of them begins the pass after all that were begun, and the others join it. A worker
that stays for another pass has begun with this seed before, and counts on.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Passes"]


class Worker(Protocol):
    """What torch tells a worker about itself."""

    @property
    def id(self) -> int: ...
    @property
    def num_workers(self) -> int: ...
    @property
    def seed(self) -> int: ...


class Passes:
    """Counts passes in a table [rows, workers + 1]: a tensor of zeros in shared memory.

    Its last column is for a process without workers.
    """

    rows = 3

    def __init__(self, table: Any) -> None:
        self._table = table  # not as an array, of which a worker that is spawned gets a copy

    def set_next(self, number: int) -> None:
        """Make pass `number` the next one."""
        following, joined, _ = self._table.numpy()
        following[:], joined[:] = number, 0

    def begin(self, worker: Worker | None) -> int:
        """The number of the pass that a worker begins, or the process itself (None)."""
        following, joined, keys = self._table.numpy()
        if worker is None:
            number = int(following.max())
            following[-1] = number + 1
            return number
        place, key = worker.id, hash((worker.seed - worker.id, worker.num_workers))
        if joined[place] and keys[place] == key:
            number = int(following[place])
        else:
            # Read before the others are looked for: whoever has counted this pass is found then.
            number = int(following.max())
            others = joined[(keys == key) & (joined > 0)]
            number = int(others[0]) - 1 if len(others) else number
            joined[place] = 0  # until the key is its own
            keys[place], joined[place] = key, number + 1
        following[place] = number + 1
        return number
