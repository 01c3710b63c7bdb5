"""Stages and tasks: stages run in order, each with tasks numbered from 0.

In:      nothing; a stage reads the results of earlier stages
Out:     a record per task (records); a repeated task finds its record, or gives the same bytes
Memory:  two values per task; a stage does not store its tasks
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Protocol

from lowtide.quickclasses import dataclass

__all__ = ["Stage", "Task", "Uncommitted", "run_task"]


@dataclass(frozen=True)
class Task:
    """One piece of work: the `index`-th of a stage."""

    stage: str
    index: int

    @property
    def name(self) -> str:
        """The name in files and messages.

        >>> Task("encode", 12).name
        'encode-0000012'
        """
        return f"{self.stage}-{self.index:07d}"


@dataclass(frozen=True)
class Uncommitted:
    """The results of a task, written but not committed: committing mostly waits for the disk."""

    steps: Sequence[Callable[[], None]] = ()
    """Flush and name the results, then create the record."""
    files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Unnamed files and folders, removed after the last step or on `discard`."""

    def commit(self) -> None:
        """Run all steps, in order."""
        with self.files:
            for step in self.steps:
                step()

    def discard(self) -> None:
        """Remove what was written."""
        self.files.close()


class Stage(Protocol):
    """Tasks that do not depend on each other, only on all earlier stages."""

    @property
    def name(self) -> str:
        """A short name, the same in every process."""
        ...

    def count_tasks(self) -> int:
        """The number of tasks; called once the earlier stages are done."""
        ...

    def run(self, index: int) -> Uncommitted | None:
        """Do a task; a repeated task gives the same bytes.

        Returns what is left to commit, which the engine does while the next task runs, or None if
        the task has committed its result itself.
        """
        ...


def run_task(stage: Stage, index: int) -> None:
    """Do a task and commit its result."""
    uncommitted = stage.run(index)
    if uncommitted is not None:
        uncommitted.commit()
