"""Find what `append` removes from new text: near copies of existing text, and evaluation items.

In:      clean blocks of the new text; the dataset's own documents, decoded, and its stored counts
Out:     Findings: removals, block by block; separate log files for each append
Memory:  as in near/ and contamination.py

New documents are compared with the documents stored in the dataset. The stored ones are always
kept: nothing in a dataset is ever moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.corpus.blocktable import BlockTable
from lowtide.corpus.evaluations import load_items
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset.removed import Finder, list_finders
from lowtide.dataset.settings import PrepareSettings
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from lowtide.dataset.contamination import Contamination
    from lowtide.dataset.near.removedcopies import NearRemovals

__all__ = ["AddedText", "Findings", "log_names", "read_stored_counts"]


def log_names(number: int) -> tuple[str, str, str]:
    """Names of an append's files: near copies, found items, counts of their n-grams."""
    name = f"decontamination_{number:05d}"
    return f"near_duplicates_{number:05d}.jsonl", f"{name}.jsonl", f"{name}.counts"


def read_stored_counts(root: Path, metadata: Mapping[str, Any], stored: PrepareSettings) -> Path:
    """The dataset's own file of n-gram counts of evaluation items; an error if there is none."""
    from lowtide.dataset.contamination import read_counts  # imported only if it is used

    rows = [metadata, *metadata.get("appended", [])]
    last = next((row for row in reversed(rows) if "decontamination" in row), {})
    return read_counts(
        root,
        last.get("decontamination", {}),
        load_items(stored.item_files, stored),
    )


@dataclass(frozen=True)
class Findings:
    """What was found in the new text; blocks are those of the new text, from 0 on."""

    near: NearRemovals | None
    contamination: Contamination | None

    @property
    def finders(self) -> list[Finder]:
        """The finders that were used."""
        return list_finders(self.near, self.contamination)

    def notices(self) -> list[str]:
        """Notices for the user."""
        return list(chain(*(finder.notices() for finder in self.finders)))

    def write_logs(self, root: Path, number: int) -> dict[str, Any]:
        """Write what was found; return the rows for the event's metadata."""
        logs: dict[str, Any] = {}
        near_name, report_name, counts_name = log_names(number)
        if self.near is not None:
            logs["near_duplicates"] = self.near.write_log(root, near_name)
        if self.contamination is not None:
            logs["decontamination"] = self.contamination.write_report(
                root, report_name, counts_name
            )
        return logs


@dataclass(frozen=True)
class AddedText:
    """New text for a dataset, clean."""

    table: BlockTable
    stored: PrepareSettings
    """The settings that the dataset was prepared with."""
    root: Path
    metadata: Mapping[str, Any]
    folder: Path
    table_bytes: int

    def find(
        self, load_existing: Callable[[], BlockTable], pool: WorkerPool, progress: Progress
    ) -> Findings:
        """Find near copies and evaluation items; `load_existing` decodes the dataset."""
        near = contamination = None
        if self.stored.near is not None:
            near = self._find_near_copies(load_existing(), pool, progress)
        if self.stored.decontaminate:
            contamination = self._find_contamination(pool, progress)
        return Findings(near, contamination)

    def _find_near_copies(
        self, there: BlockTable, pool: WorkerPool, progress: Progress
    ) -> NearRemovals:
        from lowtide.dataset.near.running import find_near_copies  # imported only if it is used

        assert self.stored.near is not None
        return find_near_copies(
            self.table.after(there),
            self.folder,
            self.stored.near,
            pool,
            progress,
            table_bytes=self.table_bytes,
            leave_copies=self.stored.dedup,
            first_block=len(there),
        )

    def _find_contamination(self, pool: WorkerPool, progress: Progress) -> Contamination:
        from lowtide.dataset.near.running import find_contamination

        return find_contamination(
            self.table,
            self.folder,
            load_items(self.stored.item_files, self.stored),
            pool,
            progress,
            cuts=self.stored.decontaminate_by == "cut",
            counts_before=read_stored_counts(self.root, self.metadata, self.stored),
        )
