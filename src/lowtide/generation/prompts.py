"""Prompts of any length: all of a prompt is printed in pieces, the model reads its end.

In:      GenerateSettings: a text, a file, or a file with a prompt on each line
Out:     Prompt: its text in pieces, and the ids of its end
Memory:  pieces of 1 MiB; the end of a prompt, a few bytes for each token of the context

A model only reads as many tokens as its context has. These are the last ids of the whole prompt:
the end is cut at a border that no token crosses, and encoded from there on.
"""

from __future__ import annotations

import codecs
import functools
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from lowtide.errors import BudgetError, DataError
from lowtide.generation.settings import GenerateSettings
from lowtide.memory import format_size
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer

__all__ = ["Prompt", "count_prompts", "encode_end", "iter_prompts", "longest_prompt"]

_READ_BYTES = 1 << 20
_LINE_END = re.compile(rb"[\r\n]")  # scans each byte once, whatever the number of lines
_TOKENS_BEFORE = 8  # put before a text: the token that begins it, a blank before its first word
_FIRST_END_BYTES = 1 << 14
_LARGEST_END_BYTES = 8 << 20
"""The longest end that is looked at for a place to cut; encoding it takes some 50 MiB."""


@dataclass(frozen=True)
class Prompt:
    """A text, or a part of a file."""

    text: str = ""
    path: Path | None = None
    begin: int = 0
    size_bytes: int = 0
    read_bytes: int = _READ_BYTES
    """Bytes of a file that are read at a time."""

    def __bool__(self) -> bool:
        return bool(self.text or self.size_bytes)

    def iter_text(self) -> Iterator[str]:
        """The text in pieces, with line ends as newlines."""
        if self.path is None:
            yield self.text
            return
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        held = ""
        for data in _iter_bytes(self.path, self.begin, self.size_bytes, self.read_bytes):
            text = held + _decode(decoder, data, self.path)
            held = "\r" if text.endswith("\r") else ""  # possibly the first half of a line end
            yield _plain_lines(text[: len(text) - len(held)])
        yield _plain_lines(held + _decode(decoder, b"", self.path, final=True))

    def end(self, size: int) -> tuple[bytes, bool]:
        """The last bytes, about `size` of them, and whether these are all."""
        if self.path is None:
            text = self.text[-size:]
            return text.encode("utf-8", "replace"), len(text) == len(self.text)
        begin = max(self.begin, self.begin + self.size_bytes - size)
        left = self.begin + self.size_bytes - begin
        data = b"".join(_iter_bytes(self.path, begin, left, self.read_bytes))
        is_all = begin == self.begin
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), is_all


def encode_end(
    tokenizer: Tokenizer,
    prompt: Prompt,
    context: int,
    *,
    first_bytes: int = _FIRST_END_BYTES,
    largest_bytes: int = _LARGEST_END_BYTES,
) -> list[int]:
    """The last `context` ids of a prompt, the same as if all of it were encoded."""
    if tokenizer.kind == "package":  # only encoding the text shows where it can be cut
        ids = deque[int](maxlen=context)
        for part in tokenizer.iter_encoded(prompt.iter_text(), special="text"):
            ids.extend(part.tolist())
        return list(ids)
    size = max(first_bytes, 8 * context)
    while True:
        data, is_all = prompt.end(size)
        cut = 0 if is_all else _first_cut(tokenizer, data)
        if cut is not None:
            ids = tokenizer.encode(data[cut:], special="text")
            if is_all or len(ids) >= context:
                return [int(token) for token in ids[-context:]]
        if size >= largest_bytes:
            raise BudgetError(
                f"the last {format_size(size)} of the prompt have no place to cut before the "
                f"{context} tokens that the model reads",
                path=prompt.path,
                next_step="give a shorter prompt: only its end is read",
            )
        size = min(2 * size, largest_bytes)


def _first_cut(tokenizer: Tokenizer, data: bytes) -> int | None:
    """The first place where text can be cut without changing its ids; None without one."""
    if tokenizer.kind == "char":  # between any two characters
        return next((place for place in range(min(4, len(data))) if data[place] & 0xC0 != 0x80), 0)
    place = tokenizer.native.first_cut(data, False)
    return place if place < len(data) else None


def iter_prompts(settings: GenerateSettings, *, read_bytes: int = _READ_BYTES) -> Iterator[Prompt]:
    """Yield every prompt; a file is checked first, so that nothing is printed before an error."""
    path = settings.prompt_file
    if path is None:
        yield Prompt(settings.prompt)
        return
    first, size = _check(path, read_bytes)
    if not settings.each_line:
        yield Prompt(path=path, begin=first, size_bytes=size, read_bytes=read_bytes)
        return
    for begin, end in _iter_lines(path, size, read_bytes, first=first):
        yield Prompt(path=path, begin=begin, size_bytes=end - begin, read_bytes=read_bytes)


def count_prompts(settings: GenerateSettings) -> int:
    """The number of prompts, for the progress."""
    path = settings.prompt_file
    if path is None or not settings.each_line:
        return 1
    first, size = _check(path)
    return sum(1 for _ in _iter_lines(path, size, first=first))


def longest_prompt(settings: GenerateSettings) -> int:
    """An upper bound of a prompt's tokens: one for each byte, and those put before it."""
    path = settings.prompt_file
    if path is None:
        return len(settings.prompt.encode("utf-8", "replace")) + _TOKENS_BEFORE
    first, size = _check(path)
    if settings.each_line:
        lines = _iter_lines(path, size, first=first)
        size = max((end - begin for begin, end in lines), default=0)
    return size + _TOKENS_BEFORE


def _check(path: Path, read_bytes: int = _READ_BYTES) -> tuple[int, int]:
    """Refuse anything but a regular file in UTF-8; return where its text begins, and its size.

    A byte order mark, with which editors on Windows begin files, is not text.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise DataError(
                "this is a folder, and --prompt-file a file with one prompt",
                path=path,
                next_step="name a file, or give the text itself with --prompt",
            )
        if not stat.S_ISREG(status.st_mode):
            raise DataError(
                "prompts are read twice, and this can be read only once",
                path=path,
                next_step="write it into a file first, or give the text itself with --prompt",
            )
        first = _read_through(path, status.st_size, status.st_mtime_ns, read_bytes)
    except FileNotFoundError:
        raise DataError(
            "prompt file not found",
            path=path,
            next_step="check the path for typing errors, or give the text itself with --prompt",
        ) from None
    return first, status.st_size - first


@functools.lru_cache(maxsize=1)
def _read_through(path: Path, size: int, _modified_ns: int, read_bytes: int) -> int:
    """Refuse a file that is not UTF-8; return where its text begins. Done again when it changed."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    for data in _iter_bytes(path, 0, size, read_bytes):
        _decode(decoder, data, path)
    _decode(decoder, b"", path, final=True)
    mark = codecs.BOM_UTF8
    return len(mark) if b"".join(_iter_bytes(path, 0, len(mark), len(mark))) == mark else 0


def _decode(
    decoder: codecs.IncrementalDecoder, data: bytes, path: Path, *, final: bool = False
) -> str:
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        raise DataError(f"prompt file is not UTF-8: {error}", path=path) from None


def _plain_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _iter_lines(
    path: Path, size: int, read_bytes: int = _READ_BYTES, *, first: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of lines that are not empty."""
    begin = position = first
    for data in _iter_bytes(path, first, size, read_bytes):
        for end in _LINE_END.finditer(data):
            if position + end.start() > begin:
                yield begin, position + end.start()
            begin = position + end.end()
        position += len(data)
    if position > begin:
        yield begin, position


def _iter_bytes(path: Path, begin: int, size: int, read_bytes: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        os.lseek(file.fileno(), begin, os.SEEK_SET)
        while size > 0 and (data := file.read(min(size, read_bytes))):
            size -= len(data)
            yield data
