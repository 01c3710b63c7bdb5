"""Which inputs a dataset was made of: by path and time where they tell, else by content.

In:      inputs as they are on disk; the rows of sources in a dataset's metadata
Out:     inputs that are new, and those that are there already; what changed while it was read
Memory:  a row for each input file; one block of text, where two files of one size are compared
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lowtide.corpus.blocks import hash_input
from lowtide.corpus.inputs import InputFile, changed_input, has_changed
from lowtide.corpus.reading import ReadingOptions

__all__ = [
    "describe_input",
    "drop_copies",
    "drop_known",
    "find_difference",
    "list_contents",
    "require_unchanged",
]


def describe_input(
    source: InputFile, reading: ReadingOptions, content: str | None
) -> dict[str, Any]:
    """What the metadata keeps of an input, so that it is known again."""
    return {"stored": _stored(source, reading), "content": content}


def list_contents(inputs: Sequence[InputFile], contents: Mapping[int, str]) -> list[str]:
    """Every input by what was read of it; by its name where that has no hash."""
    return [contents.get(source.index) or f"{source.path}:{source.split}" for source in inputs]


def _stored(source: InputFile, reading: ReadingOptions) -> list[Any]:
    # Of rows only one field is read, and of a Hugging Face dataset one split.
    field = "" if source.kind == "text" else reading.text_field
    return [source.size_bytes, source.modified_ns, field, source.split]


def _is_same(source: InputFile, row: Mapping[str, Any], reading: ReadingOptions) -> bool:
    """True if an input is the one that a row of the metadata describes."""
    stored = _stored(source, reading)
    known = row.get("stored")
    if known is None or known[0] != stored[0] or known[2:] != stored[2:]:
        return False
    if row["file"] == str(source.path) and known == stored:
        return True
    if source.kind == "hub" or row.get("content") is None:
        return False
    return row["content"] == hash_input(source, reading)


def drop_known(
    inputs: Sequence[InputFile],
    rows: Sequence[Mapping[str, Any]],
    reading: ReadingOptions,
    *,
    on_notice: Callable[[str], None],
) -> list[InputFile]:
    """The inputs that a dataset was not made of yet, numbered anew."""
    by_size: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("stored"):
            by_size.setdefault(int(row["stored"][0]), []).append(row)
    new: list[InputFile] = []
    for source in inputs:
        same = (row for row in by_size.get(source.size_bytes, ()) if _is_same(source, row, reading))
        known = next(same, None)
        if known is None:
            new.append(replace(source, index=len(new)))
        else:
            other = "" if known["file"] == str(source.path) else f", as {known['file']}"
            on_notice(f"{source.path} is in the dataset already{other}: left out")
    return new


def drop_copies(
    inputs: Sequence[InputFile], reading: ReadingOptions, *, on_notice: Callable[[str], None]
) -> list[InputFile]:
    """Inputs without copies of earlier ones, numbered anew.

    Small files need no comparison here: as whole documents they are found by deduplication. Of a
    file longer than a block the lines that are too short to compare would come twice.
    """
    sizes: dict[int, list[tuple[str | None, InputFile]]] = {}
    new: list[InputFile] = []
    counts: dict[int, int] = {}
    for source in inputs:
        counts[source.size_bytes] = counts.get(source.size_bytes, 0) + 1
    for source in inputs:
        size = source.size_bytes
        if size > reading.block_bytes and counts[size] > 1 and source.kind != "hub":
            content = hash_input(source, reading)
            earlier = next((row for have, row in sizes.get(size, ()) if have == content), None)
            if earlier is not None:
                on_notice(f"{source.path} is a copy of {earlier.path}: left out")
                continue
            sizes.setdefault(size, []).append((content, source))
        new.append(replace(source, index=len(new)))
    return new


def find_difference(
    inputs: Sequence[InputFile], rows: Sequence[Mapping[str, Any]], reading: ReadingOptions
) -> str | None:
    """Say how inputs differ from those that rows of metadata describe; None if they do not."""
    now, before = [str(source.path) for source in inputs], [str(row["file"]) for row in rows]
    if now != before:
        other = sorted(set(now) ^ set(before))
        if not other:
            return "its inputs came in another order"
        return f"{other[0]} was {'not ' if other[0] in now else ''}among its inputs"
    for source, row in zip(inputs, rows, strict=True):
        if not _is_same(source, row, reading):
            return f"{source.path} is not as it was then"
    return None


def require_unchanged(
    inputs: Sequence[InputFile], contents: Mapping[int, str], reading: ReadingOptions
) -> None:
    """Refuse an input that was overwritten while it was read; one only touched is fine."""
    for source in inputs:
        if not has_changed(source):
            continue
        if not Path(source.path).is_file() or contents.get(source.index) != hash_input(
            source, reading
        ):
            raise changed_input(source)
