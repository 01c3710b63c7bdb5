"""Evaluation items as word n-grams, which must not occur in a corpus.

In:      `--decontaminate`: jsonl files, plain or .gz; every string of a row belongs to the item
Out:     EvaluationItems: a table of n-grams (native), loaded once for a process
Memory:  up to 24 bytes for each n-gram, 8 more to count it; an error if the budget is too small
"""

from __future__ import annotations

import codecs
import glob
import gzip
import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lowtide import _native, files
from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.cutting import PROBE_BYTES
from lowtide.corpus.inputformats import classify
from lowtide.corpus.nontext import explain_json, find_binary
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import ReadingSettings, Segment, StreamPaths, TextBlock
from lowtide.errors import BudgetError, DataError, UsageError, from_os_error
from lowtide.memory import format_size, smallest_budget
from lowtide.quickclasses import dataclass

__all__ = [
    "EvaluationItems",
    "checksum_items",
    "find_item_files",
    "load_items",
    "planned_item_bytes",
    "smallest_item_budget",
]

_GRAM_BYTES = 32
"""Bytes of an n-gram: its hash, item and head, its bits in the filter, and its count; two copies of
hash, item and head take as much while the table is made."""
_COUNT_BYTES = 8
"""More bytes of an n-gram while items are judged: its number of documents, its item again."""
_TEXT_BYTES = 6
"""Approximate bytes of text for each n-gram."""
_SHARE = 3

_lock = threading.Lock()
_UNPACKED = 5  # gzip rarely compresses text more than this
_ONE_DOCUMENT = ReadingSettings(separator=b"")
_loaded: dict[tuple[tuple[tuple[str, int, int], ...], CleaningSettings], EvaluationItems] = {}


@dataclass(frozen=True)
class EvaluationItems:
    """The items of all files, and their n-grams."""

    files: tuple[str, ...]
    first_items: tuple[int, ...]
    """The number of each file's first item, and the number of all."""
    table: _native.EvalGrams
    num_short: int
    """Items with fewer than eight consecutive words, too short to identify in ordinary text."""

    @property
    def count_bytes(self) -> int:
        """Memory for counting their n-grams, without the table."""
        return len(self.table) * _COUNT_BYTES

    def name(self, item: int) -> tuple[str, int]:
        """The file of an item, and its row there."""
        place = max(n for n, first in enumerate(self.first_items[:-1]) if first <= item)
        return self.files[place], item - self.first_items[place]


def find_item_files(patterns: Sequence[str]) -> tuple[str, ...]:
    """The files that match names and globs, each once, in order."""
    found: list[str] = []
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))  # noqa: PTH207
        if not names:
            raise UsageError(
                f"--decontaminate {pattern!r} names no file, and no file matches it as a pattern",
                next_step="name jsonl files of evaluation items",
            )
        for name in names:
            files.require_file(name)  # opening a pipe would block
            if (compression := classify(Path(name))[1]) not in (None, "gzip"):
                raise UsageError(
                    f"evaluation items are read plain or from .gz, these are {compression}",
                    path=name,
                    next_step="unpack the file first, or compress it with gzip",
                )
        found += [str(Path(name).absolute()) for name in names]
    return tuple(dict.fromkeys(found))


def checksum_items(paths: Sequence[str]) -> str:
    """One checksum of all files, which identifies them in the plan."""
    return files.checksum_bytes(
        " ".join(files.checksum_file(Path(path)) for path in paths).encode()
    )


def planned_item_bytes(paths: Sequence[str]) -> int:
    """The approximate memory of the table of all items and of counting their n-grams."""
    sizes = (Path(path).stat().st_size * (_UNPACKED if path.endswith(".gz") else 1)
             for path in paths)  # fmt: skip
    return sum(sizes) // _TEXT_BYTES * _GRAM_BYTES


def smallest_item_budget(paths: Sequence[str]) -> int:
    """The smallest budget that `load_items` accepts."""
    return _SHARE * planned_item_bytes(paths)


def load_items(
    paths: Sequence[str],
    cleaning: CleaningSettings,
    *,
    budget_bytes: int | None = None,
    least_bytes: int = 0,
) -> EvaluationItems:
    """Read all items, once per process; a table that is too large is an error with its size.

    Their texts are changed like those of the documents, where they would not be found otherwise.
    `least_bytes` is the need of the whole command, for the advised budget.
    """
    stats = [(path, Path(path).stat()) for path in paths]
    needed = planned_item_bytes(paths)
    if budget_bytes is not None and _SHARE * needed > budget_bytes:
        raise BudgetError(
            f"the n-grams of {format_size(sum(stat.st_size for _, stat in stats))} of evaluation "
            f"items take about {format_size(needed)}, more than a third of the budget of "
            f"{format_size(budget_bytes)}",
            next_step=f"{smallest_budget(max(_SHARE * needed, least_bytes))}, or fewer files",
        )
    changes = CleaningSettings(
        normalize=cleaning.normalize,
        lowercase=cleaning.lowercase,
        mask=cleaning.mask,
        filter=False,
        dedup=False,
    )
    key = tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats), changes
    with _lock:
        if key not in _loaded:
            _loaded.clear()  # keep only one table in a process that prepares many datasets
            _loaded[key] = _read_items(paths, changes)
        return _loaded[key]


def _changed(text: bytes, changes: CleaningSettings) -> bytes:
    """A text as cleaning leaves it in a document."""
    block = TextBlock(0, 0, "text", text, (Segment(0, 0, 0, len(text)),))
    return bytes(clean_block(block, _ONE_DOCUMENT, changes, paths=StreamPaths(())).text)


def _read_items(paths: Sequence[str], changes: CleaningSettings) -> EvaluationItems:
    table = _native.EvalGrams()
    first_items, num_short = [0], 0
    for path in paths:
        item = first_items[-1]
        for texts in _iter_rows(path):
            num_short += sum(table.add(_changed(text, changes), item) for text in texts) == 0
            item += 1
        if item == first_items[-1]:
            raise DataError(
                "no evaluation item is in this file",
                path=path,
                next_step="write each item as one JSON object on a line of its own, with its texts",
            )
        if num_short == item:
            raise DataError(
                f"none of {item} evaluation items has a text of eight words or more",
                path=path,
                next_step="name items with whole texts: under eight words are found anywhere",
            )
        first_items.append(item)
    table.finish()
    return EvaluationItems(tuple(paths), tuple(first_items), table, num_short)


def _iter_rows(path: str) -> Iterator[list[bytes]]:
    """The texts of each row."""
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and (found := find_binary(line[:PROBE_BYTES])) is not None:
                    raise DataError(found[0], path=path, next_step="name jsonl, plain or as .gz")
                if line.removeprefix(codecs.BOM_UTF8).strip():
                    yield _read_row(line, path, number)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        message = f"damaged or cut-off gzip file: {error}"
        raise DataError(message, path=path, next_step="fetch the file again") from None
    except OSError as error:
        raise from_os_error(error) from error


def _read_row(line: bytes, path: str, number: int) -> list[bytes]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"line {number} is {explain_json(error)}",
            path=path,
            next_step="write each item as one JSON object on a line of its own, with its texts",
        ) from None
    texts = list(_iter_texts(row))
    if not texts:
        raise DataError(
            f"line {number} has no text",
            path=path,
            next_step="write each item as one JSON object on a line of its own, with its texts",
        )
    return texts


def _iter_texts(value: Any) -> Iterator[bytes]:
    """Every string in a JSON value, except field names."""
    if isinstance(value, str):
        if value.strip():
            yield value.encode("utf-8", "replace")
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _iter_texts(part)
