"""Identify inputs by their content: hashes of files, computed while the command reads them.

In:      input files; how far they have been read
Out:     one hash per input; a description of how inputs differ from those in a record
Memory:  a hash per input, one buffer of 1 MiB

A file is hashed part by part, right after each part was read and is still in the page cache, so a
corpus is not read from the disk twice. Hashes of parts are stored, so that a kill does not lose
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from lowtide.corpus.differences import find_changed_input
from lowtide.corpus.inputs import InputFile, has_changed

__all__ = [
    "PART_BYTES",
    "ContentLog",
    "describe_inputs",
    "find_difference",
    "fold_parts",
    "hash_parts",
    "hash_stored",
    "is_unchanged",
]

PART_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 20


def _fold(before: str, part: str) -> str:
    return xxhash.xxh3_128_hexdigest((before + part).encode()) if before else part


def _hash_part(path: Path, offset: int, limit: int) -> tuple[str, int]:
    """The hash of up to `limit` bytes of a file from `offset` on, and how many were read."""
    digest, count = xxhash.xxh3_128(), 0
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while count < limit and (size := file.readinto(view[: limit - count])):
            digest.update(view[:size])
            count += size
    return digest.hexdigest(), count


def hash_stored(
    source: InputFile, *, until: int | None = None, part_bytes: int = PART_BYTES
) -> str | None:
    """The hash of a file's stored bytes, or of its parts before `until`; None if it has none."""
    end = source.size_bytes if until is None else until
    parts = hash_parts(source, 0, end, part_bytes=part_bytes)
    return None if parts is None else fold_parts(parts)


def hash_parts(
    source: InputFile, begin: int, end: int, *, part_bytes: int = PART_BYTES
) -> list[str] | None:
    """The hashes of a file's parts from `begin`, a part's start, to `end`; None if it has none.

    An empty file has one part.
    """
    if not source.format.is_file:
        return None
    parts: list[str] = []
    try:
        while begin < end or not parts:
            part, count = _hash_part(source.path, begin, min(part_bytes, end - begin))
            parts.append(part)
            begin += count
            if not count:
                break
    except OSError:
        return None
    return parts


def fold_parts(parts: Iterable[str]) -> str:
    """The hash of a file, from those of all its parts in order."""
    fold = ""
    for part in parts:
        fold = _fold(fold, part)
    return fold


class ContentLog:
    """Hashes inputs in order, in a background thread of the work that reads them."""

    def __init__(self, inputs: Sequence[InputFile], *, part_bytes: int = PART_BYTES) -> None:
        self._inputs = inputs
        self._part_bytes = part_bytes
        self._done: list[str | None] = []
        self._fold, self._offset = "", 0  # of the input that is being read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lowtide-contents")
        self._reached = 0
        self._last: Future[None] | None = None

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def reach(self, index: int, offset: int = 0) -> None:
        """Report that all inputs before `index` were read, and this many bytes of that one."""
        self._last = self._thread.submit(self._advance, index, offset)

    def add(self, texts: Sequence[bytes]) -> None:
        """Report that the work has read the next inputs."""
        hashes = [xxhash.xxh3_128_hexdigest(text) for text in texts]
        self._last = self._thread.submit(self._done.extend, hashes)

    def state(self) -> dict[str, Any]:
        """The hashes so far, as JSON."""
        if self._last is not None:
            self._last.result()
        tail, size = "", self._reached - self._offset
        if size > 0:
            tail, size = _hash_part(self._inputs[len(self._done)].path, self._offset, size)
        return {
            "done": list(self._done),
            "fold": self._fold,
            "offset": self._offset,
            "tail": tail,
            "tail_bytes": max(size, 0),
            "modified_ns": [row.modified_ns for row in self._inputs[: len(self._done) + 1]],
        }

    def restore(self, state: Mapping[str, Any], index: int, offset: int) -> InputFile | None:
        """Restore the hashes up to a place; return the first input whose content has changed, if
        any.

        An input with the same modification time is not read again. An input that is not plain text
        has no hash before its end: if it was touched half way through, it counts as changed.
        """
        done, times = list(state["done"]), list(state["modified_ns"])
        if len(done) != index or len(times) < min(index + bool(offset), len(self._inputs)):
            return self._inputs[min(index, len(self._inputs) - 1)]
        for source, known, modified in zip(self._inputs, done, times, strict=False):
            if modified != source.modified_ns and (known is None or known != self._hash(source)):
                return source
        current = self._inputs[index] if offset else None
        if (
            current
            and times[index] != current.modified_ns
            and not self._is_begun_so(current, state)
        ):
            return current
        self._done = done
        self._fold, self._offset = str(state["fold"]), int(state["offset"])
        return None

    def finish(self) -> list[str | None]:
        """Return one hash per input; inputs that were not reached are hashed now."""
        self.reach(len(self._inputs))
        assert self._last is not None
        self._last.result()
        return self._done

    def _advance(self, index: int, offset: int) -> None:
        while len(self._done) < index:
            source = self._inputs[len(self._done)]
            if self._offset:
                self._hash_parts(source, source.size_bytes, whole=False)
            content = self._fold if self._offset else self._hash(source)
            # The file changed before it was hashed, so which content was read is unknown.
            self._done.append(None if has_changed(source) else content)
            self._fold, self._offset = "", 0
        if offset and index < len(self._inputs):
            self._hash_parts(self._inputs[index], offset, whole=True)
        self._reached = offset

    def _hash_parts(self, source: InputFile, end: int, *, whole: bool) -> None:
        """Hash parts of an input up to `end`; with `whole` only complete parts."""
        while self._offset + (self._part_bytes if whole else 1) <= end:
            part, count = _hash_part(source.path, self._offset, self._part_bytes)
            if not count:
                return  # it was cut short: its size is compared at the end
            self._fold = _fold(self._fold, part)
            self._offset += count

    def _hash(self, source: InputFile, *, until: int | None = None) -> str | None:
        return hash_stored(source, until=until, part_bytes=self._part_bytes)

    def _is_begun_so(self, source: InputFile, state: Mapping[str, Any]) -> bool:
        """True if the beginning of an input still has the hashes recorded for it."""
        offset, tail = int(state["offset"]), int(state["tail_bytes"])
        if not offset + tail or (offset and self._hash(source, until=offset) != state["fold"]):
            return False
        return not tail or _hash_part(source.path, offset, tail) == (state["tail"], tail)


def describe_inputs(
    inputs: Sequence[InputFile], contents: Sequence[str | None]
) -> Iterator[dict[str, Any]]:
    """Rows for a record, by which inputs are recognized later."""
    for source, content in zip(inputs, contents, strict=True):
        yield {
            "path": str(source.path),
            "bytes": source.size_bytes,
            "modified_ns": source.modified_ns,
            "content": content,
        }


def find_difference(inputs: Sequence[InputFile], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """How inputs differ from those that `describe_inputs` described; None if they do not."""
    return find_changed_input(
        inputs, rows, name_of=lambda row: str(row.get("path")), explain=_describe_change
    )


def _describe_change(source: InputFile, row: Mapping[str, Any]) -> str | None:
    if row.get("bytes") != source.size_bytes:
        return f"{source.path} had {row.get('bytes')} bytes then, now {source.size_bytes}"
    if row.get("modified_ns") == source.modified_ns:
        return None
    if row.get("content") is None:  # as earlier versions wrote it
        return f"{source.path} was changed since, and nothing says what it held"
    if row["content"] != hash_stored(source):
        return f"{source.path} holds other text of the same size than then"
    return None


def is_unchanged(source: InputFile, content: str | None) -> bool:
    """True if an input whose times changed still has the size and the content it was read with."""
    try:
        size = source.path.stat().st_size
    except OSError:
        return False
    return content is not None and size == source.size_bytes and hash_stored(source) == content
