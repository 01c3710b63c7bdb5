"""Compute the MinHash signatures of a part: bands of minima of every whole document.

In:      clean blocks of a part
Out:     two sections of a task's result, by partition of the keys; the numbers of documents that
         were signed, and that could not be
Memory:  one block's rows: up to 13 of 16 bytes per document, at the usual threshold
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.dataset.near.job import NEAR_SECTIONS, NearJob
from lowtide.dataset.near.likeness import Likeness
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.partitions import PartitionedRows
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.engine.taskscratch import HeldBytes

__all__ = ["SIGN_STAGE", "PartSigner", "SignStage"]

SIGN_STAGE = "near-sign"


class PartSigner:
    """The signatures of one part."""

    def __init__(
        self, options: Likeness, borders: Sequence[tuple[int, int]], waiting: HeldBytes
    ) -> None:
        self._signer = options.signer()
        self._rows = PartitionedRows(NEAR_SECTIONS, borders, waiting)
        self._signed = self._skipped = 0

    def add(self, text: memoryview, documents: memoryview) -> None:
        """Sign the documents of the next block."""
        self._signer.sign(text, documents)
        self._rows.add(self._signer.rows, self._signer.radix_ends)
        self._signed += self._signer.num_signed
        self._skipped += self._signer.num_skipped

    def write(self, output: OutputWriter) -> dict[str, Any]:
        """Write the signatures; return their entries of the result's header."""
        self._rows.write(output)
        return {"near": {"signed": self._signed, "skipped": self._skipped}}


class SignStage:
    """A task for each part; used if no other stage signs documents while it reads."""

    name = SIGN_STAGE

    def __init__(self, job: NearJob, borders: Sequence[tuple[int, int]]) -> None:
        self._job = job
        self._borders = borders

    def count_tasks(self) -> int:
        """One for each part."""
        return self._job.num_parts

    def run(self, index: int) -> Uncommitted:
        """Sign a part."""
        records = self._job.records
        with records.scratch() as scratch:
            signer = PartSigner(self._job.options, self._borders, scratch.hold())
            for load in self._job.iter_part(index):
                signer.add(*load())
            return records.write(Task(self.name, index), signer.write)
