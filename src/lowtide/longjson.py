"""JSON files with long lists of rows, written and read a row at a time.

In:      values with lists of any length in them (Rows); files that lowtide wrote
Out:     the bytes that `files.write_json` writes; values whose long lists are read from the file
Memory:  one row, and a buffer of 256 KiB

A list in a file is found by lowtide's JSON layout: a member of the outermost object is indented by
two spaces, its rows by four; if these are objects, their members by six, and the rows of those by
eight. A short file, or one in another layout, is read whole.
"""

from __future__ import annotations

import itertools
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast, overload

from lowtide import files
from lowtide.errors import DataError

__all__ = ["Rows", "StoredRows", "read_long_json", "write_long_json"]

_LONG_BYTES = 1 << 20
_STEP_BYTES = 1 << 18
_STAND_IN = "rows that stay in the file: "
_ENCODER = json.JSONEncoder(ensure_ascii=False)


class Rows(Sequence[Any]):
    """A list whose rows are generated on access.

    >>> list(Rows(2, lambda: iter(["a", "b"])))
    ['a', 'b']
    """

    def __init__(self, count: int, make: Callable[[], Iterable[Any]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """One row, or a slice, found by iterating from the beginning."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return list(self)[index]
            return Rows(max(stop - start, 0), lambda: itertools.islice(self, start, stop))
        place = range(len(self))[index]
        return next(itertools.islice(self, place, None))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        rows = cast("Sequence[Any]", other)
        return len(self) == len(rows) and all(a == b for a, b in zip(self, rows, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(self),))  # pickled as a plain list


class StoredRows(Rows):
    """Rows in a file, which stays open: replacing the file changes nothing."""

    def __init__(
        self, path: Path, file: int, begin: int, end: int, count: int, *, indent: int = 2
    ) -> None:
        super().__init__(count, self._read)
        self._path = path
        self._place = slice(indent + 2, indent + 3)
        """The column of a line that shows where a row begins."""
        self._begin = begin
        self._end = end
        self._file = os.dup(file)
        weakref.finalize(self, os.close, self._file)

    def _read(self) -> Iterator[Any]:
        row: list[bytes] = []
        for line in self._lines():
            row.append(line)
            # The last line of a row is indented like its first one, and opens no bracket.
            if line[self._place] != b" " and not line.rstrip().endswith((b"{", b"[")):
                yield self._parse(b"".join(row))
                row = []

    def _parse(self, row: bytes) -> Any:
        try:
            return json.loads(row.strip().removesuffix(b","))
        except ValueError as error:
            raise DataError(f"not JSON: {error}", path=self._path) from None

    def _lines(self) -> Iterator[bytes]:
        held = b""
        for begin in range(self._begin, self._end, _STEP_BYTES):
            held += os.pread(self._file, min(_STEP_BYTES, self._end - begin), begin)
            lines = held.split(b"\n")
            held = lines.pop()
            yield from lines
        if held.strip():
            yield held


def write_long_json(
    path: files.PathLike, value: Any, publisher: files.Publisher | None = None
) -> None:
    """Write `value` atomically, with Rows anywhere in it, as `files.write_json` would."""
    with files.atomic_file(path, publisher=publisher) as file:
        held: list[str] = []
        size = 0
        for part in itertools.chain(_iter_text(value, 0), "\n"):
            held.append(part)
            size += len(part)
            if size > _STEP_BYTES:
                file.write("".join(held).encode("utf-8", "backslashreplace"))
                held, size = [], 0
        file.write("".join(held).encode("utf-8", "backslashreplace"))


def _iter_text(value: Any, depth: int) -> Iterator[str]:
    """The output of json with indents, without its own iteration over rows.

    That leaves functions in a reference cycle at every call, 1 KiB for each row, until garbage
    collection: peak memory would depend on when that runs.
    """
    is_object = isinstance(value, dict)
    if not is_object and not isinstance(value, list | tuple | Rows):
        yield _ENCODER.encode(value)
        return
    blanks = "\n" + "  " * (depth + 1)
    if is_object and (text := _flat_text(cast("dict[Any, Any]", value), blanks)):
        yield text
        return
    opening, closing = "{}" if is_object else "[]"
    mark = opening
    for item in cast("dict[Any, Any]", value).items() if is_object else value:
        yield mark + blanks
        mark = ","
        if is_object:
            key, item = item
            yield _ENCODER.encode(key if isinstance(key, str) else _ENCODER.encode(key)) + ": "
        yield from _iter_text(item, depth + 1)
    yield (opening if mark == opening else blanks[:-2]) + closing


def _flat_text(value: dict[Any, Any], blanks: str) -> str:
    """The text of an object of strings and whole numbers; empty for another.

    Nearly all rows are such objects, of shards and inputs, and this takes a third of the time.
    """
    parts: list[str] = []
    for key, item in value.items():
        kind = type(item)
        if type(key) is not str or (kind is not str and kind is not int):
            return ""
        text = _ENCODER.encode(item) if kind is str else str(item)
        parts.append(f"{blanks}{_ENCODER.encode(key)}: {text}")
    return "{" + ",".join(parts) + blanks[:-2] + "}" if parts else ""


def read_long_json(path: Path, keys: Sequence[str]) -> Any:
    """Read JSON; lists under `keys` of the outermost object, or of rows of its lists, stay in it.

    Short files are read whole.
    """
    try:
        if path.stat().st_size > _LONG_BYTES:
            files.require_file(path)
            return _read_parts(path, keys)
    except (ValueError, OSError):
        pass  # another layout, or damaged: reading it whole reports the error
    return files.read_json(path)


def _read_parts(path: Path, keys: Sequence[str]) -> Any:
    """Read all but the lists; ValueError if the layout is not lowtide's."""
    short: list[bytes] = []
    lists: list[StoredRows] = []
    with path.open("rb") as file:
        while line := file.readline():
            short.append(line)
            member = line.lstrip(b" ")
            indent = len(line) - len(member)
            if indent not in (2, 6) or member[:1] != b'"' or not member.endswith(b": [\n"):
                continue
            if json.loads(member[: -len(b": [\n")]) in keys:
                begin = file.tell()
                count, end, closing = _skip_rows(file, b" " * indent)
                short += [b'"%s%d"' % (_STAND_IN.encode(), len(lists)), closing]
                lists.append(StoredRows(path, file.fileno(), begin, end, count, indent=indent))

    def put_back(value: dict[str, Any]) -> dict[str, Any]:
        for key in keys:
            rows = value.get(key)
            if isinstance(rows, list) and len(rows) == 1 and str(rows[0]).startswith(_STAND_IN):
                value[key] = lists[int(str(rows[0]).removeprefix(_STAND_IN))]
        return value

    value = json.loads(b"".join(short), object_hook=put_back)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return cast("dict[str, Any]", value)


def _skip_rows(file: Any, blanks: bytes) -> tuple[int, int, bytes]:
    """Skip the rows of a list: their number, their end, and the line that closes the list."""
    count, place = 0, slice(len(blanks) + 2, len(blanks) + 3)
    end = file.tell()
    while line := file.readline():
        if line.startswith(blanks + b"]"):
            return count, end, line
        if not line.startswith(blanks + b"  "):
            break
        if line[place] != b" " and line[place] not in b"}]":
            count += 1
        end += len(line)
    raise ValueError("a list without an end")
