"""Group small files into shared blocks, so that thousands of them cost no more than a large file.

In:      InputFile rows (planning); blocks of single files (joining)
Out:     Stream rows; TextBlock of several files, a segment for each
Memory:  one block
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from lowtide.corpus.encodings import is_utf8
from lowtide.corpus.inputs import InputFile, as_input_list
from lowtide.corpus.longrows import has_long_rows
from lowtide.corpus.textblocks import ReadingSettings, Segment, Stream, TextBlock
from lowtide.stores.paths import is_stored

__all__ = ["is_plain_text", "join_blocks", "join_small_blocks", "plan_streams"]

_GROUP_FILES = 1024
_EXPANSION = 8
"""A small compressed file is assumed to expand at most this much; more is cut."""


def plan_streams(inputs: Sequence[InputFile], options: ReadingSettings) -> list[Stream]:
    """Group inputs into streams: small files of one kind together, everything else alone."""
    files = as_input_list(inputs)
    streams: list[Stream] = []
    begin = held = 0
    group: InputFile | None = None

    def flush(end: int) -> None:
        nonlocal group
        if group is not None:
            in_place = _has_places(group, options)
            count = 1 if in_place else 0
            streams.append(Stream(len(streams), files[begin:end], in_place, count))
            group = None

    for place, source in enumerate(files):
        in_place = _has_places(source, options)
        size = source.size_bytes * (1 if in_place else _EXPANSION)
        if source.format.is_cut and size <= options.block_bytes // 4:
            same = group is not None and (group.kind, _has_places(group, options)) == (
                source.kind,
                in_place,
            )
            is_full = place - begin == _GROUP_FILES or held + size > options.block_bytes
            if not same or is_full:
                flush(place)
                begin, held, group = place, 0, source
            held += size
            continue
        flush(place)
        if in_place and source.format.block_kind == "jsonl":
            in_place = not has_long_rows(source, options)
        count = -(-source.size_bytes // options.block_bytes) if in_place else 0
        streams.append(Stream(len(streams), files[place : place + 1], in_place, count))
    flush(len(files))
    return streams


def _has_places(source: InputFile, options: ReadingSettings) -> bool:
    """True if a file can be read from any offset (random access)."""
    return source.compression is None and source.format.is_cut and is_utf8(options.encoding)


def is_plain_text(source: InputFile, *, encoding: str) -> bool:
    """True if a file is plain text that native code can read directly."""
    if is_stored(source.path):
        return False
    return source.compression is None and source.format.block_kind == "text" and is_utf8(encoding)


def join_blocks(blocks: Sequence[TextBlock], *, number: int) -> TextBlock:
    """Join blocks of whole files of one kind into one block."""
    segments: list[Segment] = []
    position = 0
    for block in blocks:
        (segment,) = block.segments
        end = position + len(block.data)
        segments.append(Segment(segment.input_index, segment.offset, position, end))
        position = end
    data = [block.data for block in blocks]
    return TextBlock(
        stream=blocks[0].stream,
        number=number,
        kind=blocks[0].kind,
        data=data[0] if len(data) == 1 else b"".join(data),
        segments=tuple(segments),
        stored_bytes=sum(block.stored_bytes for block in blocks),
    )


def join_small_blocks(blocks: Iterable[TextBlock], *, block_bytes: int) -> Iterator[TextBlock]:
    """Join consecutive blocks up to `block_bytes`; parts of a document are not joined."""
    waiting: list[TextBlock] = []
    held = number = 0
    for block in blocks:
        is_part = block.continues or block.continued
        if waiting and (is_part or held + len(block.data) > block_bytes):
            yield join_blocks(waiting, number=number)
            waiting, held, number = [], 0, number + 1
        if is_part:
            yield replace(block, number=number)
            number += 1
            continue
        waiting.append(block)
        held += len(block.data)
    if waiting:
        yield join_blocks(waiting, number=number)
