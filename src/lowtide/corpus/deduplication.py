"""Find exact duplicates of lines and documents in a fixed amount of memory.

In:      work files of cleaned blocks: hashes of lines and documents, grouped by their first byte
Out:     one file per partition: which lines of which block to remove
Memory:  `table_bytes` per worker; hashes are 96 bits wide and never all in memory

Blocks are processed in the order of the corpus and the first occurrence is kept, so the result
depends neither on the number of workers nor on the memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from lowtide import _native, files
from lowtide.arrays import np
from lowtide.corpus.blocktable import BlockTable
from lowtide.corpus.cleaning import HASH_ROW_BYTES
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file, unfinished_name
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "MIN_TABLE_BYTES",
    "MODEST_TABLE_BYTES",
    "TABLE_ROW_BYTES",
    "LeaveOut",
    "Partition",
    "RemovedLines",
    "find_duplicates",
    "is_removed_whole",
    "partition_bytes",
    "plan_partitions",
]

MIN_TABLE_BYTES = 8 << 20
MODEST_TABLE_BYTES = 16 << 20
"""For all workers together. More is used only to avoid more than `_MANY` partitions: each of them
reads every block, and a large table is no faster than several small ones."""
TABLE_ROW_BYTES = 19  # 12 bytes in a table that is never less than 64 % full, once it has grown
_MANY = 64
_DIGEST_BYTES = 16
_READ_BYTES = 1 << 20


LeaveOut = Callable[[int, memoryview], memoryview]


@dataclass(frozen=True)
class Partition:
    """Hashes whose first byte is in [first, last), and of those every `num_passes`-th."""

    number: int
    first: int
    last: int
    pass_index: int
    num_passes: int
    num_rows: int


def partition_bytes(rows: int, *, num_workers: int) -> int:
    """The table size of a worker if the budget allows it."""
    return max(MODEST_TABLE_BYTES // num_workers, rows * TABLE_ROW_BYTES // _MANY)


def plan_partitions(table: BlockTable, *, table_bytes: int, num_workers: int) -> list[Partition]:
    """Divide the hashes into partitions that fit `table_bytes`, at least one for each worker."""
    radix_counts = _count_radixes(table)
    total = sum(radix_counts)
    table_bytes = min(table_bytes, partition_bytes(total, num_workers=num_workers))
    limit = min(table_bytes // TABLE_ROW_BYTES, -(-total // num_workers) + 1)
    partitions: list[Partition] = []

    def add(first: int, last: int, rows: int) -> None:
        passes = (
            max(1, -(-rows // max(table_bytes // TABLE_ROW_BYTES * 3 // 4, 1)))
            if rows > limit
            else 1
        )
        for index in range(passes):
            partitions.append(Partition(len(partitions), first, last, index, passes, rows))

    first = rows = 0
    for value in range(256):
        count = radix_counts[value]
        if rows and rows + count > limit:
            add(first, value, rows)
            first, rows = value, 0
        rows += count
    if rows:
        add(first, 256, rows)
    return partitions


def _count_radixes(table: BlockTable) -> list[int]:
    """The number of hashes that begin with each byte, over all blocks."""
    counts = np.zeros(256, dtype=np.int64)
    for path in table.paths:
        ends = np.frombuffer(open_work_file(path).read("radix_ends"), dtype="<i8")
        counts += np.diff(ends, prepend=0)
    return counts.tolist()


def find_duplicates(
    table: BlockTable,
    folder: Path,
    pool: WorkerPool,
    *,
    table_bytes: int,
    on_done: Callable[[int], None],
    leave_out: LeaveOut | None = None,
) -> RemovedLines:
    """Find the duplicates of every partition that is not done yet.

    `leave_out` returns a block's hashes without those of documents that are removed for other
    reasons (near copies, evaluation items).
    """
    folder.mkdir(parents=True, exist_ok=True)
    partitions = plan_partitions(table, table_bytes=table_bytes, num_workers=pool.num_workers)
    paths = [
        folder / f"{part.first:03d}-{part.last:03d}-{part.pass_index}-{part.num_passes}.removed"
        for part in partitions
    ]

    def tasks() -> Iterator[Callable[[], int]]:
        for part, path in zip(partitions, paths, strict=True):
            yield lambda part=part, path=path: _find_in_partition(
                table, part, path, table_bytes, leave_out
            )

    for rows in pool.run(tasks()):
        on_done(rows)
    return RemovedLines(paths, len(table))


def _find_in_partition(
    table: BlockTable, part: Partition, path: Path, table_bytes: int, leave_out: LeaveOut | None
) -> int:
    if path.exists():
        return part.num_rows // part.num_passes
    rows = -(-part.num_rows // part.num_passes)
    capacity = (
        part.num_rows if part.num_passes == 1 else min(rows * 2, table_bytes // TABLE_ROW_BYTES)
    )
    finder = _native.DuplicateFinder(capacity)
    index = np.zeros(len(table) + 1, dtype="<u8")
    partial = Path(unfinished_name(path))
    partial.unlink(missing_ok=True)
    digest = xxhash.xxh3_128()
    with os.fdopen(files.create_file(partial), "wb") as file:
        for block, block_path in enumerate(table.paths):
            index[block + 1] = index[block]
            if table.num_hashes[block] == 0:
                continue
            rows_of_block = _read_rows(block_path, part)
            if leave_out is not None:
                rows_of_block = leave_out(block, rows_of_block)
            if not finder.add(rows_of_block, part.pass_index, part.num_passes):
                raise MemoryError("more different lines in one partition than was planned for")
            lines = finder.take()
            index[block + 1] += len(lines) // 4
            digest.update(lines)
            file.write(lines)
        digest.update(index.data)
        file.write(index.data)
        file.write(digest.digest())
    partial.replace(path)
    return part.num_rows // part.num_passes


def is_removed_whole(path: Path) -> bool:
    """True if a partition's file is intact."""
    digest = xxhash.xxh3_128()
    try:
        with files.open_file(path) as file:
            left = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
            while left > 0:
                part = file.read(min(left, _READ_BYTES))
                digest.update(part)
                left -= len(part)
                if not part:
                    return False
            return file.read(_DIGEST_BYTES) == digest.digest()
    except OSError:
        return False


def _read_rows(path: Path, part: Partition) -> memoryview:
    work = open_work_file(path)
    ends = work.read("radix_ends").cast("q")
    begin = ends[part.first - 1] if part.first else 0
    end = ends[part.last - 1]
    return work.read("hashes", begin=begin * HASH_ROW_BYTES, end=end * HASH_ROW_BYTES)


class RemovedLines:
    """The duplicates of all partitions, loaded block by block."""

    def __init__(self, paths: list[Path], num_blocks: int) -> None:
        self._paths = paths
        self._num_blocks = num_blocks

    def load(self, block: int) -> memoryview:
        """Return the sorted lines (and marked documents) to leave out of a block, as uint32."""
        parts: list[npt.NDArray[np.uint32]] = []
        for path in self._paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                size = os.fstat(descriptor).st_size
                index_at = size - _DIGEST_BYTES - 8 * (self._num_blocks + 1)
                begin, end = np.frombuffer(os.pread(descriptor, 16, index_at + 8 * block), "<u8")
                count = int(end - begin)
                if count:
                    raw = os.pread(descriptor, 4 * count, 4 * int(begin))
                    parts.append(np.frombuffer(raw, dtype="<u4"))
            finally:
                os.close(descriptor)
        if not parts:
            return memoryview(b"")
        return memoryview(np.sort(np.concatenate(parts)).tobytes())
