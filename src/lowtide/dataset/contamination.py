"""Find text of evaluation items in documents, and remove it unless it is a common phrase.

In:      clean blocks, a table of the items' n-grams (corpus.evaluations)
Out:     scan: one file per part, a row for each n-gram found; judge: one file, the number of
         documents with each; Contamination: what to remove from each block; decontamination.jsonl,
         and decontamination.counts, which `append` continues
Memory:  one block's rows; 8 bytes for each n-gram of the items: its count, and its item meanwhile

An n-gram that more than `COMMON` documents contain is a common phrase or part of a template, not a
sign of contamination. So nothing is removed before all documents have been scanned.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import xxhash

from lowtide import _native, files
from lowtide.arrays import np
from lowtide.corpus.evaluations import EvaluationItems
from lowtide.counts import counted
from lowtide.dataset.near.job import BlockText
from lowtide.engine.onetask import OneTask
from lowtide.engine.outputs import Output, OutputWriter
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.errors import DataError, UsageError
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import checksum_path

__all__ = [
    "COMMON",
    "REPORT_NAME",
    "SCAN_STAGE",
    "Contamination",
    "ContaminationJob",
    "PartScanner",
    "ScanStage",
    "judge_stage",
    "read_counts",
]

COMMON = 10
REPORT_NAME = "decontamination.jsonl"
COUNTS_NAME = "decontamination.counts"
"""File with the number of documents of each n-gram found: 8 bytes each, for `append`."""
SCAN_STAGE = "scan"
JUDGE_STAGE = "judge"
_STEP_BYTES = 1 << 20
_OPEN_PARTS = 64
_HIT = [(name, "<u4") for name in ("row", "gram", "line", "end", "first", "last", "whole")]
_HIT_BYTES = _native.EVAL_HIT_BYTES


@dataclass(frozen=True)
class ContaminationJob:
    """A search for items as one worker sees it."""

    items: EvaluationItems
    cuts: bool
    """Remove lines instead of documents."""
    records: Records
    scan_stage: str
    """The stage that stores the n-grams found."""
    num_parts: int
    counts_before: Path | None = None
    """File with counts of text scanned earlier: rows of an n-gram's number and its documents."""
    step_grams: int = 1 << 16
    """Number of counts that are read or written at a time."""


class PartScanner:
    """Finds the items' n-grams in the documents of one part."""

    def __init__(self, items: EvaluationItems, scratch: Path) -> None:
        self._table = items.table
        self._scratch = scratch
        self._size = 0
        self._ends = array("q")
        os.close(files.create_file(scratch))

    def add(self, text: memoryview, documents: memoryview) -> None:
        """Scan the documents of the next block."""
        with self._scratch.open("ab") as file:
            self._size += file.write(self._table.scan(text, documents))
        self._ends.append(self._size // _HIT_BYTES)

    def write(self, output: OutputWriter) -> dict[str, Any]:
        """Write the n-grams found."""
        output.begin("eval_hits")
        with self._scratch.open("rb") as file:
            while data := file.read(_STEP_BYTES):
                output.write(data)
        output.section("eval_ends", memoryview(self._ends).cast("B"))
        return {}


class ScanStage:
    """A task for each part; used if no other stage scans for items while it reads."""

    name = SCAN_STAGE

    def __init__(
        self,
        job: ContaminationJob,
        iter_part: Callable[[int], Iterator[Callable[[], BlockText]]],
    ) -> None:
        self._job = job
        self._iter_part = iter_part

    def count_tasks(self) -> int:
        """One for each part."""
        return self._job.num_parts

    def run(self, index: int) -> Uncommitted:
        """Scan a part."""
        records = self._job.records
        with records.scratch_folder() as folder:
            scanner = PartScanner(self._job.items, folder / "hits")
            for load in self._iter_part(index):
                scanner.add(*load())
            return records.write(Task(self.name, index), scanner.write)


def _iter_hits(job: ContaminationJob) -> Iterator[Any]:
    """The rows of every block."""
    for part in range(job.num_parts):
        output = job.records.open(Task(job.scan_stage, part))
        begin = 0
        for end in output.read("eval_ends").cast("q"):
            yield _read_hits(output, begin, end)
            begin = end


def _read_hits(output: Output, begin: int, end: int) -> Any:
    data = b""
    if begin < end:
        data = output.read("eval_hits", begin=begin * _HIT_BYTES, end=end * _HIT_BYTES)
    return np.frombuffer(data, dtype=_HIT)


def _unique_pairs(first: Any, second: Any) -> Any:
    """Two rows of numbers, without repeated pairs."""
    joined = np.unique(first.astype("<u8") << np.uint64(32) | second)
    return joined >> np.uint64(32), (joined & np.uint64(0xFFFFFFFF)).astype("<i8")


def judge_stage(job: ContaminationJob) -> OneTask:
    """A stage of one task: counts the documents of each n-gram, then of each item."""
    return OneTask(JUDGE_STAGE, job.records, lambda output: _judge(job, output))


def _judge(job: ContaminationJob, output: OutputWriter) -> dict[str, Any]:
    items = job.items
    counts: Any = np.zeros(len(items.table), dtype="<u4")
    for hits in _iter_hits(job):
        grams = _unique_pairs(hits["row"], hits["gram"])[1]
        np.add.at(counts, grams, 1)
    found = int(np.count_nonzero(counts))
    if job.counts_before is not None:
        _add_counts(counts, job.counts_before, job.step_grams)
    owners = np.frombuffer(items.table.items(), dtype="<u4")
    documents = np.zeros(items.first_items[-1], dtype="<u4")
    hit = 0
    for hits in _iter_hits(job):
        good = hits[counts[hits["gram"]] <= COMMON]
        rows = _unique_pairs(good["row"], owners[good["gram"]])
        np.add.at(documents, rows[1], 1)
        hit += len(np.unique(rows[0]))
    del owners
    output.section("counts", memoryview(counts))
    output.section("documents", documents.tobytes())
    return {
        "ngrams": len(counts),
        "found": found,
        "common": int((counts > COMMON).sum()),
        "documents": hit,
        "items_hit": int((documents > 0).sum()),
    }


def _add_counts(counts: Any, path: Path, step_grams: int) -> None:
    with path.open("rb") as file:
        while data := file.read(8 * step_grams):
            rows = np.frombuffer(data, dtype="<u4").reshape(-1, 2)
            counts[rows[:, 0]] += rows[:, 1]


class Contamination:
    """The removals from each block."""

    def __init__(self, job: ContaminationJob) -> None:
        self._job = job
        # Blocks are requested in order, by all workers at nearby positions.
        self._part = lru_cache(_OPEN_PARTS)(self._open_part)

    @cached_property
    def _judged(self) -> Output:
        return self._job.records.open(Task(JUDGE_STAGE, 0))

    @cached_property
    def _counts(self) -> Any:
        return np.frombuffer(self._judged.read("counts"), dtype="<u4")

    @cached_property
    def _starts(self) -> array[int]:
        """The index of each part's first block in the corpus, and the number of all blocks."""
        starts = array("q", [0])
        for part in range(self._job.num_parts):
            output = self._job.records.open(Task(self._job.scan_stage, part))
            starts.append(starts[-1] + output.size("eval_ends") // 8)
        return starts

    def _open_part(self, part: int) -> Output:
        output = self._job.records.open(Task(self._job.scan_stage, part))
        return replace(output, header={})  # keep only the offsets

    def _hits(self, block: int) -> Any:
        part = int(np.searchsorted(self._starts, block, side="right")) - 1
        output = self._part(part)
        number = block - self._starts[part]
        ends = output.read("eval_ends", begin=8 * max(number - 1, 0), end=8 * (number + 1)).cast(
            "q"
        )
        hits = _read_hits(output, ends[0] if number else 0, ends[-1])
        return hits[self._counts[hits["gram"]] <= COMMON]

    def marks(self, block: int) -> bytes:
        """Documents and lines to leave out of a block, in the form that encoding expects."""
        hits = self._hits(block)
        is_cut = (hits["whole"] == 0) | self._job.cuts  # parts of documents only lose lines
        lines = [np.arange(row["line"], row["end"], dtype="<u4") for row in hits[is_cut]]
        cut = np.unique(np.concatenate([np.zeros(0, "<u4"), *lines])) | np.uint32(_native.CUT_MARK)
        rows = np.unique(hits["row"][~is_cut]) | np.uint32(_native.CONTAMINATED_MARK)
        return cut.astype("<u4").tobytes() + rows.astype("<u4").tobytes()

    def leave_out(self, block: int, hashes: memoryview) -> memoryview:
        """Hashes of a block without those of removed documents."""
        if self._job.cuts or not len(hashes):
            return hashes
        hits = self._hits(block)
        if not len(hits):
            return hashes
        gone = np.unique(hits[hits["whole"] == 1][["row", "first", "last"]])
        left = np.stack([gone["row"], gone["first"], gone["last"]], axis=1)
        return _native.leave_out(hashes, np.ascontiguousarray(left, "<u4").tobytes())

    def notices(self) -> list[str]:
        """Notices for the user."""
        short = self._job.items.num_short
        if not short:
            return []
        return [f"decontamination: {counted(short, 'item')} without eight words in a row left out"]

    def write_report(
        self, root: Path, name: str = REPORT_NAME, counts_name: str = COUNTS_NAME
    ) -> dict[str, Any]:
        """Write which items were found, and all counts; return a row for the metadata."""
        items = self._job.items
        documents = np.frombuffer(self._judged.read("documents"), dtype="<u4")
        digest = xxhash.xxh3_128()
        with files.atomic_file(root / name) as file:
            for item in np.flatnonzero(documents).tolist():
                path, row = items.name(item)
                line = {"file": path, "row": row, "documents": int(documents[item])}
                text = json.dumps(line).encode() + b"\n"
                digest.update(text)
                file.write(text)
        counts_digest = xxhash.xxh3_128()
        with files.atomic_file(root / counts_name) as file:
            for rows in self._iter_counts():
                counts_digest.update(rows)
                file.write(rows)
        return {
            "files": list(items.files),
            "items": items.first_items[-1],
            **self._judged.header,
            "file": name,
            "xxh3_128": digest.hexdigest(),
            "counts": {
                "file": counts_name,
                "xxh3_128": counts_digest.hexdigest(),
                "table": _checksum_table(items),
            },
        }

    def _iter_counts(self) -> Iterator[bytes]:
        """Rows of each n-gram found and its number of documents, some at a time."""
        step = self._job.step_grams
        for begin in range(0, len(self._counts), step):
            counts = self._counts[begin : begin + step]
            met = np.flatnonzero(counts)
            yield np.stack([met + begin, counts[met]], axis=1).astype("<u4").tobytes()


def _checksum_table(items: EvaluationItems) -> str:
    """A checksum of the table's n-grams in order, because counts refer to them by number."""
    return xxhash.xxh3_128_hexdigest(items.table.items())


def read_counts(root: Path, known: Mapping[str, Any], items: EvaluationItems) -> Path:
    """The path of a dataset's counts, for `append`; damaged ones and those of other items are
    refused."""
    row = known.get("counts")
    if row is None or row["table"] != _checksum_table(items):
        raise UsageError(
            "this dataset was prepared with --decontaminate by another version, and does not say "
            "how often it met the n-grams of the items",
            path=root,
            next_step="lowtide prepare all of it anew, with the new files after the old ones",
        )
    path = root / row["file"]
    if not path.is_file() or checksum_path(path) != row["xxh3_128"]:
        raise DataError(
            "the counts of n-grams of evaluation items are missing or damaged",
            path=path,
            next_step=f"bring the file back; see all of it with lowtide verify {root}",
        )
    return path
