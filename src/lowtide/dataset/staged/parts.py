"""Divide a corpus into parts, one for each task: consecutive blocks, or a file read sequentially.

In:      streams (reading), the plan's part size
Out:     Part rows; the blocks of a part, identical in every process
Memory:  a few numbers per part; one block
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lowtide.corpus.reading import (
    ReadingSettings,
    Stream,
    TextBlock,
    iter_blocks,
    read_block,
)

__all__ = ["Part", "cut_parts", "iter_part"]


class Part(NamedTuple):
    """Streams `first` to `last`, all of their blocks; or blocks `begin` to `end` of one stream."""

    first: int
    last: int
    begin: int = 0
    end: int | None = None


def cut_parts(streams: Sequence[Stream], options: ReadingSettings, part_bytes: int) -> list[Part]:
    """Divide streams into parts of about `part_bytes`; streams read in order are not divided."""
    blocks_in_part = max(part_bytes // options.block_bytes, 1)
    parts: list[Part] = []
    waiting: list[int] = []
    held = 0

    def flush() -> None:
        nonlocal waiting, held
        if waiting:
            parts.append(Part(waiting[0], waiting[-1] + 1))
        waiting, held = [], 0

    for place, stream in enumerate(streams):
        count = stream.num_blocks
        if stream.random_access and count > blocks_in_part:
            flush()
            parts += [
                Part(place, place + 1, begin, min(begin + blocks_in_part, count))
                for begin in range(0, count, blocks_in_part)
            ]
            continue
        if waiting and held + stream.size_bytes > part_bytes:
            flush()
        waiting.append(place)
        held += stream.size_bytes
    flush()
    return parts


def iter_part(
    streams: Sequence[Stream],
    part: Part,
    options: ReadingSettings,
    *,
    on_stream_notice: Callable[[str], None],
    on_block_notice: Callable[[str], None],
) -> Iterator[TextBlock]:
    """Read the blocks of a part in order; a block is empty if its text is in another block."""
    for place in range(part.first, part.last):
        stream = streams[place]
        if not stream.random_access:
            in_order = options.noticing(on_stream_notice)
            yield from (block for block in iter_blocks(stream, in_order) if block is not None)
            continue
        by_number = options.noticing(on_block_notice)
        end = stream.num_blocks if part.end is None else part.end
        for number in range(part.begin, end):
            block = read_block(stream, number, by_number)
            yield block or TextBlock(stream.index, number, "text", b"", ())
