"""Find the set of characters of a corpus, without special tokens.

In:      input files (plain, compressed, jsonl, parquet)
Out:     the set of characters, and the number of bytes of text
Memory:  a few times a block of text, and a byte for each of the 1.1 million Unicode code points
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lowtide.arrays import np
from lowtide.corpus.decompression import open_stream
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.reading import (
    ReadingSettings,
    block_documents,
    is_text,
    iter_blocks,
    plan_streams,
)
from lowtide.errors import DataError
from lowtide.progress import Phase
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.characters import last_character_cut
from lowtide.tokenizer.stretches import look_through

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CHARACTER_BYTES", "ScannedCharacters", "count_characters", "scan_characters"]

CHARACTER_BYTES = 400
"""Memory of a character to make, use and write the vocabulary; 340 to 360 measured."""
_READ_BYTES = 1 << 20
_STEP_BYTES = 1 << 14


@dataclass(frozen=True)
class ScannedCharacters:
    """The characters of a corpus, and its size."""

    characters: frozenset[str]
    num_bytes: int


def scan_characters(
    inputs: Sequence[InputFile],
    *,
    specials: Iterable[str],
    options: ReadingSettings,
    phase: Phase,
    read_bytes: int = _READ_BYTES,
) -> ScannedCharacters:
    """Read everything once and return every character that occurs outside special tokens.

    Invalid UTF-8 bytes count as U+FFFD.
    """
    tokens = sorted({text.encode() for text in specials}, key=len, reverse=True)
    expression = re.compile(b"|".join(map(re.escape, tokens))) if tokens else None
    seen = np.zeros(0x110000, dtype=np.bool_)
    num_bytes = start = num_seen = 0
    for source in inputs:
        for text, stored in _iter_texts(source, tokens, options, read_bytes):
            is_new = False
            for part in expression.split(text) if expression else [text]:
                for codes in _iter_codes(part):
                    is_new = is_new or not seen[codes].all()
                    seen[codes] = True
            if is_new:  # counting takes as long as reading a small file
                num_seen = int(np.count_nonzero(seen))
            num_bytes += len(text)
            phase.update(start + stored, characters=num_seen)
        start += source.size_bytes
    return ScannedCharacters(frozenset(map(chr, seen.nonzero()[0].tolist())), num_bytes)


def count_characters(inputs: Sequence[InputFile], *, options: ReadingSettings) -> tuple[int, int]:
    """Count the characters of inputs before a refusal names a budget.

    Also returns how many bytes of the inputs could not be scanned.
    """
    seen = np.zeros(0x110000, dtype=np.bool_)

    def look(source: InputFile) -> Iterator[int]:
        for text, stored in _iter_texts(source, (), options):
            for codes in _iter_codes(text):
                seen[codes] = True
            yield stored

    unseen = look_through(inputs, look)
    return int(np.count_nonzero(seen)), unseen


def _iter_codes(text: bytes, *, step_bytes: int = _STEP_BYTES) -> Iterator[npt.NDArray[np.uint32]]:
    """The code points of a text, a few at a time; no character is cut.

    Of a whole read at a time they left 60 MiB of freed but unusable memory.
    """
    begin = 0
    while begin < len(text):
        end = begin + step_bytes
        if end < len(text):  # a character has three bytes after its first at most
            end -= next((back for back in range(4) if text[end - back] & 0xC0 != 0x80), 0)
        part, begin = text[begin:end], end
        yield np.frombuffer(part.decode("utf-8", "replace").encode("utf-32-le"), dtype="<u4")


def _tell_damage(source: InputFile, options: ReadingSettings, error: DataError) -> None:
    options.on_notice(f"{source.path}: {error.message}; the rest of it skipped")


def _iter_texts(
    source: InputFile,
    tokens: Sequence[bytes],
    options: ReadingSettings,
    read_bytes: int = _READ_BYTES,
) -> Iterator[tuple[bytes, int]]:
    """Yield text and the reading position; no character or special token is cut."""
    if source.format.block_kind == "text":
        held, is_first = b"", True
        on_damage = partial(_tell_damage, source, options) if options.skip_bad else None
        with open_stream(source, options, on_damage=on_damage) as reader:
            while part := reader.read(read_bytes):
                if is_first and not is_text(source, part, options):
                    return
                is_first = False
                held += part
                cut = last_character_cut(held, tokens)
                yield held[:cut], reader.stored_position()
                held = held[cut:]
        yield held, source.size_bytes
        return
    stored = 0
    for stream in plan_streams([source], options):
        for block in iter_blocks(stream, options):
            if block is None:
                continue
            stored += block.stored_bytes
            for document in block_documents(block, options, {source.index: source.path}):
                yield document.text, min(stored, source.size_bytes)
