"""Hashes, stored for `append`, of text that cannot be recovered from the dataset's ids.

In:      work files of blocks: cleaned (hashes of lines and documents) and encoded
Out:     seen/NNNNN.hashes: 12 bytes a row, the hash of a whole document, or of a line of a document
         of which too little was left; rows of the metadata that name these files
Memory:  one block's hashes

Lines that were kept are hashed again from the ids. That is impossible for a document that lost
lines or was removed; without its hash, an appended copy of it would be taken for new text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from lowtide import _native, files
from lowtide.arrays import np
from lowtide.corpus.cleaning import HASH_ROW_BYTES
from lowtide.corpus.removals import RULES
from lowtide.corpus.workfiles import open_work_file, read_section, write_work_file

__all__ = [
    "ROW_BYTES",
    "SEEN_DIR",
    "copy_seen",
    "iter_seen",
    "read_seen",
    "seen_path",
    "sort_seen",
    "write_seen",
    "write_seen_block",
]

SEEN_DIR = "seen"
ROW_BYTES = 12
_STEP_ROWS = 1 << 16


def seen_path(root: Path, number: int) -> Path:
    """The path of the hashes of a preparation (0) or of an append."""
    return root / SEEN_DIR / f"{number:05d}.hashes"


def write_seen(
    root: Path,
    number: int,
    cleaned: Sequence[Path],
    encoded: Sequence[Path],
    *,
    all_lines: bool = False,
    find: Callable[[int], tuple[int, int] | None] = lambda _: None,
) -> dict[str, Any]:
    """Write the hashes of all blocks; return the file's metadata row.

    `find` returns the section of an encoded block's file with them, if they were written with it.
    """

    def iter_rows() -> Iterator[memoryview]:
        for block, (block_path, encoded_path) in enumerate(zip(cleaned, encoded, strict=True)):
            found = None if all_lines else find(block)
            if found is not None:
                yield read_section(encoded_path, *found)
                continue
            work = open_work_file(block_path)
            remnants = open_work_file(encoded_path).header["remnants"]
            documents = work.read("documents") if remnants else memoryview(b"")
            yield _native.pick_hashes(work.read("hashes"), documents, remnants, all_lines)

    return copy_seen(root, number, iter_rows())


def copy_seen(root: Path, number: int, rows: Iterable[memoryview]) -> dict[str, Any]:
    """Write given hashes; return the file's metadata row."""
    path = seen_path(root, number)
    path.parent.mkdir(exist_ok=True)
    digest = xxhash.xxh3_128()
    size = 0
    with files.atomic_file(path) as file:
        for data in rows:
            digest.update(data)
            size += file.write(data)
    return {
        "file": path.relative_to(root).as_posix(),
        "rows": size // ROW_BYTES,
        "xxh3_128": digest.hexdigest(),
    }


def iter_seen(root: Path, rows: Sequence[Any]) -> Iterator[bytes]:
    """Read the hashes of a dataset, some 64,000 at a time."""
    for row in rows:
        with (root / row["file"]).open("rb") as file:
            while part := file.read(_STEP_ROWS * ROW_BYTES):
                yield part


def read_seen(root: Path, row: Mapping[str, Any], begin: int, end: int) -> bytes:
    """Read bytes `begin` to `end` of the hashes of a metadata row."""
    with (root / row["file"]).open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def sort_seen(rows: bytes) -> tuple[memoryview, memoryview]:
    """Hashes in the form of blocks, sorted by their first bytes, and where those of each end."""
    words = np.frombuffer(rows, dtype="<u4").reshape(-1, 3)
    found = np.zeros((len(words), HASH_ROW_BYTES // 4), dtype="<u4")
    found[:, :3] = words
    radix = found[:, 1] >> 24
    found = found[np.argsort(radix, kind="stable")]
    ends = np.cumsum(np.bincount(radix, minlength=256)).astype("<i8")
    return memoryview(found.tobytes()), memoryview(ends.tobytes())


def write_seen_block(path: Path, rows: bytes) -> None:
    """Write hashes as the work file of a block that is only used for comparison."""
    hashes, radix_ends = sort_seen(rows)
    empty = memoryview(b"")
    header = {
        "has_text": False,
        "continues": False,
        "continued": False,
        "documents_in": 0,
        "lines_in": 0,
        "bytes_in": 0,
        "counts": [(0, 0)] * len(RULES),
        "samples": [],
        "notices": [],
        "content": [],
    }
    sections = {
        "documents": empty,
        "radix_ends": radix_ends,
        "hashes": hashes,
        "characters": empty,
        "text": empty,
    }
    write_work_file(path, header, sections)
