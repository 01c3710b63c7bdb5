"""Texts that are written before it is their turn to be printed.

In:      (number of a text, piece) in any order
Out:     the pieces of one text, when it is its turn
Memory:  `most_bytes` of text; what is more waits in a temporary file
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import IO

from lowtide.scratch import scratch_file

__all__ = ["HeldTexts"]

_MOST_BYTES = 1 << 20


class HeldTexts:
    """Pieces of texts by the text's number; one at a time, as strings, they took 43 bytes a token.

    >>> with HeldTexts() as held:
    ...     held.add(1, "high ")
    ...     held.add(1, "tide")
    ...     "".join(held.pop(1))
    'high tide'
    """

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0  # in memory
        self._texts: dict[int, bytearray] = {}
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._file: IO[bytes] | None = None  # made when it is needed
        self._stack = contextlib.ExitStack()

    def add(self, number: int, piece: str) -> None:
        """Hold the next piece of a text."""
        data = piece.encode("utf-8", "surrogatepass")
        self._texts.setdefault(number, bytearray()).extend(data)
        self._num_bytes += len(data)
        while self._num_bytes > self._most_bytes:
            self._write(max(self._texts, key=lambda other: len(self._texts[other])))

    def pop(self, number: int) -> Iterator[str]:
        """Yield what is held of a text, and forget it."""
        for begin, size in self._places.pop(number, ()):
            assert self._file is not None
            self._file.seek(begin)
            yield self._file.read(size).decode("utf-8", "surrogatepass")
        text = self._texts.pop(number, bytearray())
        self._num_bytes -= len(text)
        if text:
            yield text.decode("utf-8", "surrogatepass")

    def _write(self, number: int) -> None:
        """Move what is in memory of a text to the end of the file."""
        if self._file is None:
            self._file = self._stack.enter_context(scratch_file())
        text = self._texts.pop(number)
        self._num_bytes -= len(text)
        begin = self._file.seek(0, 2)
        self._file.write(text)
        self._file.flush()
        self._places.setdefault(number, []).append((begin, len(text)))

    def __enter__(self) -> HeldTexts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
