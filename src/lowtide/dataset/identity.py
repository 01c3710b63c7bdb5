"""Identify the inputs of a dataset: by path and time if that is enough, else by content.

In:      inputs on disk; the rows of sources in a dataset's metadata
Out:     inputs that are new, and those already in the dataset; files that changed while being read
Memory:  some 250 bytes for each input file of the dataset; one block of text, if files of the same
         size are compared
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from lowtide.corpus.differences import find_changed_input
from lowtide.corpus.inputhashes import InputHashes, hash_input
from lowtide.corpus.inputs import InputFile, InputList, changed_input, has_changed
from lowtide.corpus.reading import ReadingSettings

__all__ = [
    "drop_copies",
    "drop_known",
    "find_other_source",
    "iter_sources",
    "list_contents",
    "require_unchanged",
]

_MOST_NOTICES = 20


def iter_sources(
    inputs: Iterable[InputFile], reading: ReadingSettings, contents: InputHashes
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The metadata of each input, by which it is recognized: its path, and other facts."""
    for source in inputs:
        row = {"stored": _stored(source, reading), "content": contents.get(source.index)}
        yield str(source.path), row


def list_contents(inputs: Sequence[InputFile], contents: InputHashes) -> Iterator[str]:
    """Every input by the hash of its text; a Hub dataset without a hash by its name.

    A file without a hash had no text: an empty archive, parquet without rows, a skipped file.
    """
    for source in inputs:
        name = "" if source.format.is_file else f"{source.path}:{source.split}"
        yield contents.get(source.index) or name


def _stored(source: InputFile, reading: ReadingSettings) -> list[Any]:
    # Only one field of rows is read, and only one split of a Hugging Face dataset.
    field = "" if source.format.block_kind == "text" else reading.text_field
    return [source.size_bytes, source.modified_ns, field, source.split]


def _is_same(source: InputFile, row: Mapping[str, Any], reading: ReadingSettings) -> bool:
    """True if an input is the one of a metadata row."""
    stored = _stored(source, reading)
    known = row.get("stored")
    if known is None or known[0] != stored[0] or known[2:] != stored[2:]:
        return False
    if row["file"] == str(source.path) and known == stored:
        return True
    if not source.format.is_file or row.get("content") is None:
        return False
    return row["content"] == hash_input(source, reading)


def drop_known(
    inputs: Sequence[InputFile],
    rows: Iterable[Mapping[str, Any]],
    reading: ReadingSettings,
    *,
    first_index: int = 0,
    on_notice: Callable[[str], None],
) -> InputList:
    """The inputs that are not in a dataset yet, renumbered from `first_index` on."""
    known = _KnownInputs(rows)
    new = InputList(first_index=first_index)
    copies: list[tuple[int, str]] = []
    num_known = 0
    for source in inputs:
        number = known.find(source, reading)
        if number is None:
            new.append(source)
            continue
        num_known += 1
        if num_known <= _MOST_NOTICES:
            copies.append((number, str(source.path)))
    _tell_known(copies, rows, on_notice)
    if num_known > _MOST_NOTICES:
        more = num_known - _MOST_NOTICES
        on_notice(f"{more} more files are in the dataset already: left out")
    return new


def _tell_known(
    copies: Sequence[tuple[int, str]],
    rows: Iterable[Mapping[str, Any]],
    on_notice: Callable[[str], None],
) -> None:
    if not copies:
        return
    wanted = {number for number, _ in copies}
    # A second pass, so that names are created only for the few inputs that are reported.
    names = {number: row["file"] for number, row in enumerate(rows) if number in wanted}
    for number, path in copies:
        other = "" if names[number] == path else f", as {names[number]}"
        on_notice(f"{path} is in the dataset already{other}: left out")


class _KnownInputs:
    """The inputs in metadata rows, as 128-bit hashes."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._by_place: dict[int, int] = {}
        self._by_content: dict[int, int] = {}
        self._kinds: set[int] = set()
        for number, row in enumerate(rows):
            stored = row.get("stored")
            if not stored:
                continue
            self._by_place.setdefault(_hash_of(row["file"], *stored), number)
            if row.get("content") is not None:
                kind = (stored[0], *stored[2:])
                self._kinds.add(_hash_of(*kind))
                self._by_content.setdefault(_hash_of(*kind, row["content"]), number)

    def find(self, source: InputFile, reading: ReadingSettings) -> int | None:
        """The index of an input's row."""
        stored = _stored(source, reading)
        number = self._by_place.get(_hash_of(str(source.path), *stored))
        kind = (stored[0], *stored[2:])
        if number is not None or not source.format.is_file or _hash_of(*kind) not in self._kinds:
            return number
        return self._by_content.get(_hash_of(*kind, hash_input(source, reading)))


def _hash_of(*values: Any) -> int:
    text = "\0".join(map(str, values)).encode("utf-8", "surrogateescape")
    return xxhash.xxh3_128_intdigest(text)


def drop_copies(
    inputs: Sequence[InputFile], reading: ReadingSettings, *, on_notice: Callable[[str], None]
) -> InputList:
    """Inputs without copies of earlier ones, renumbered.

    Small files need no comparison here: as whole documents they are found by deduplication. If a
    file is longer than a block, its lines that are too short to compare would occur twice.
    """
    sizes: dict[int, list[tuple[str | None, InputFile]]] = {}
    new = InputList()
    counts: dict[int, int] = {}
    for source in inputs:
        if source.size_bytes > reading.block_bytes:
            counts[source.size_bytes] = counts.get(source.size_bytes, 0) + 1
    for source in inputs:
        size = source.size_bytes
        if size > reading.block_bytes and counts[size] > 1 and source.format.is_file:
            content = hash_input(source, reading)
            earlier = next((row for have, row in sizes.get(size, ()) if have == content), None)
            if earlier is not None:
                on_notice(f"{source.path} is a copy of {earlier.path}: left out")
                continue
            sizes.setdefault(size, []).append((content, source))
        new.append(source)
    return new


def find_other_source(
    inputs: Sequence[InputFile], rows: Sequence[Mapping[str, Any]], reading: ReadingSettings
) -> str | None:
    """Describe how inputs differ from those in metadata rows; None if they do not."""

    def explain(source: InputFile, row: Mapping[str, Any]) -> str | None:
        same = _is_same(source, row, reading)
        return None if same else f"{source.path} is not as it was then"

    return find_changed_input(inputs, rows, name_of=lambda row: str(row["file"]), explain=explain)


def require_unchanged(
    inputs: Sequence[InputFile], contents: InputHashes, reading: ReadingSettings
) -> None:
    """Refuse an input that was overwritten while it was read; one only touched is accepted."""
    for source in inputs:
        if not has_changed(source):
            continue
        # Another size is refused even if the whole text was read: the dataset's record has the
        # size, and the file would not be recognized later.
        if (
            not source.path.is_file()
            or source.path.stat().st_size != source.size_bytes
            or contents.get(source.index) != hash_input(source, reading)
        ):
            raise changed_input(source)
