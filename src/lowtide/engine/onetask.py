"""A stage of a single task, which reads the results of all tasks of an earlier stage.

In:      a name, the records, a function `write`
Out:     one committed result
Memory:  that of `write`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.engine.outputs import OutputWriter
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task
from lowtide.quickclasses import dataclass

__all__ = ["OneTask"]


@dataclass(frozen=True)
class OneTask:
    """Commits the output of `write`, with the header that it returns."""

    name: str
    records: Records
    write: Callable[[OutputWriter], dict[str, Any]]

    def count_tasks(self) -> int:
        """One."""
        return 1

    def run(self, index: int) -> None:
        """Write and commit."""
        self.records.commit(Task(self.name, index), self.write)
