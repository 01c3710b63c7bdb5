"""Stages and tasks: stages run in order, each with tasks numbered from 0.

In:      nothing; a stage reads the results of earlier stages
Out:     a record per task (records); a task that is run again finds its record, or the same bytes
Memory:  a task is two values; a stage does not store its tasks
"""

from __future__ import annotations

from typing import Protocol

from lowtide.quickclasses import dataclass

__all__ = ["Stage", "Task"]


@dataclass(frozen=True)
class Task:
    """One piece of work: the `index`-th of a stage."""

    stage: str
    index: int

    @property
    def name(self) -> str:
        """How files and messages name it.

        >>> Task("encode", 12).name
        'encode-0000012'
        """
        return f"{self.stage}-{self.index:07d}"


class Stage(Protocol):
    """Tasks that do not depend on each other, only on all of the stages before."""

    @property
    def name(self) -> str:
        """A short word, the same in every process."""
        ...

    def count_tasks(self) -> int:
        """How many tasks there are; asked once the stages before are done."""
        ...

    def run(self, index: int) -> None:
        """Do a task and commit its result; done again, it commits the same bytes."""
        ...
