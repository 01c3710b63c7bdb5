"""The stages that find candidate pairs: documents that share a MinHash key.

In:      signatures of all parts
Out:     buckets: for each partition of the keys, pairs of documents that share a key, and the list
         of these documents; pairs: the same for all partitions together, each once, in order
Memory:  `table_bytes`: rows are sorted in runs on disk and merged
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowtide import _native, files
from lowtide.arrays import np
from lowtide.dataset.near.job import NEAR_SECTIONS, NearJob
from lowtide.engine.localcopies import LocalCopies
from lowtide.engine.onetask import OneTask
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.partitions import PartitionReader
from lowtide.engine.tasks import Task, Uncommitted

__all__ = ["PAIR_STAGE", "BucketStage", "pair_stage"]

BUCKET_STAGE = "near-buckets"
PAIR_STAGE = "near-pairs"

Run = tuple[Path, int, int]


class _RunFile:
    """Sorted runs of rows, stored consecutively in a scratch file."""

    def __init__(self, path: Path, row_bytes: int) -> None:
        self._path = path
        self._row_bytes = row_bytes
        self._size = 0
        self.runs: list[Run] = []
        os.close(files.create_file(path))

    def add(self, rows: memoryview) -> None:
        if len(rows):
            self.runs.append((self._path, self._size, len(rows) // self._row_bytes))
            with self._path.open("ab", buffering=0) as file:
                while len(rows):
                    count = file.write(rows)
                    self._size += count
                    rows = rows[count:]


class BucketStage:
    """A task for each partition of the keys."""

    name = BUCKET_STAGE

    def __init__(self, job: NearJob) -> None:
        self._job = job

    def count_tasks(self) -> int:
        """One for each partition."""
        return self._job.num_partitions

    def run(self, index: int) -> Uncommitted:
        """Find the pairs of a partition."""
        with self._job.records.scratch_folder() as folder:
            pairs = _RunFile(folder / "pairs", _native.PLACE_PAIR_BYTES)
            wanted = _RunFile(folder / "wanted", _native.PLACE_PAIR_BYTES)
            buckets = self._find_pairs(index, folder, pairs, wanted)

            def write(output: OutputWriter) -> dict[str, Any]:
                for name, found in (("pairs", pairs), ("wanted", wanted)):
                    output.begin(name)
                    for data in _merge(self._job, found.runs, self._job.table_bytes // 4):
                        output.write(data)
                return {
                    "capped": buckets.num_capped,
                    "largest": buckets.largest,
                }

            return self._job.records.write(Task(self.name, index), write)

    def _find_pairs(
        self, index: int, folder: Path, pairs: _RunFile, wanted: _RunFile
    ) -> _native.NearBuckets:
        buckets = _native.NearBuckets()
        most = max(
            self._job.table_bytes // 8 // _native.PLACE_PAIR_BYTES, self._job.limits.least_rows
        )

        def spill() -> None:
            buckets.sort()
            pairs.add(buckets.pairs)
            wanted.add(buckets.wanted)

        for rows in self._iter_sorted(index, folder):
            at = 0
            while at < len(rows):
                at += _native.BUCKET_ROW_BYTES * buckets.add(rows[at:], most)
                if at < len(rows):
                    spill()
        buckets.finish()
        spill()
        return buckets

    def _iter_sorted(self, index: int, folder: Path) -> Iterator[memoryview]:
        """The rows of a partition, by key and place."""
        job = self._job
        signed = PartitionReader(
            job.records,
            job.sign_stage,
            NEAR_SECTIONS,
            num_tasks=job.num_parts,
            partition=index,
        )
        room = max(job.table_bytes // 2 // _native.BUCKET_ROW_BYTES, job.limits.least_rows)
        held = _native.BucketRows(max(min(room, signed.num_rows), 1))
        runs = _RunFile(folder / "rows", _native.BUCKET_ROW_BYTES)
        for block, rows in enumerate(signed.iter_blocks()):
            first, count = 0, len(rows) // _native.NEAR_ROW_BYTES
            while first < count:
                first += held.add(rows, block, first)
                if first < count:
                    runs.add(held.sort())
                    held.clear()
        if not runs.runs:
            yield held.sort()
            return
        runs.add(held.sort())
        del held
        merger = _native.BucketMerger(runs.runs, job.table_bytes // 4)
        while len(rows := merger.read(job.limits.step_rows)):
            yield rows


def _merge(job: NearJob, runs: list[Run], buffer_bytes: int) -> Iterator[memoryview]:
    merger = _native.PairMerger(runs, buffer_bytes)
    while len(rows := merger.read(job.limits.step_rows)):
        yield rows


def pair_stage(job: NearJob) -> OneTask:
    """One task: the pairs of all partitions, and where the documents of each part begin."""

    def write(output: OutputWriter) -> dict[str, Any]:
        with job.records.scratch_folder() as folder:
            return _write_pairs(job, output, LocalCopies(folder))

    return OneTask(PAIR_STAGE, job.records, write)


def _write_pairs(job: NearJob, output: OutputWriter, copies: LocalCopies) -> dict[str, Any]:
    counts = {"capped": 0, "largest": 0, "pairs": 0}
    runs: dict[str, list[Run]] = {"pairs": [], "wanted": []}
    for partition in range(job.num_partitions):
        found = job.records.open(Task(BUCKET_STAGE, partition))
        counts["capped"] += found.header["capped"]
        counts["largest"] = max(counts["largest"], found.header["largest"])
        for name, rows in runs.items():
            path, offset = copies.find(found, name)
            rows.append((path, offset, found.size(name) // _native.PLACE_PAIR_BYTES))
    output.begin("pairs")
    for data in _merge(job, runs["pairs"], job.table_bytes // 2):
        counts["pairs"] += len(data) // _native.PLACE_PAIR_BYTES
        output.write(data)
    borders = np.array(job.first_blocks, dtype="<u8") << np.uint64(32)
    starts = np.zeros(len(borders), dtype="<i8")
    output.begin("wanted")
    for data in _merge(job, runs["wanted"], job.table_bytes // 2):
        output.write(data)
        places = np.frombuffer(data, dtype="<u8")[::2]
        starts += np.searchsorted(places, borders)
    output.section("starts", memoryview(array("q", starts.tolist())).cast("B"))
    return counts
