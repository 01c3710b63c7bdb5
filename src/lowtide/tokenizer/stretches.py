"""Find the longest stretch of text without a token border, to advise a sufficient budget.

In:      input files of plain text, whose stretches have to be in memory as a whole
Out:     Stretch: its length, and whether it repeats itself; files that could not be read
Memory:  a part of 64 KiB

How much text has to be in memory at once is only known from the text. When a budget is refused, the
whole text is scanned for this, however long that takes, so that the advised budget is enough. In
all other cases nothing is scanned beforehand.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from lowtide.corpus.decompression import open_stream
from lowtide.corpus.inputs import InputFile, InputList
from lowtide.corpus.reading import ReadingSettings, is_plain_text
from lowtide.errors import LowtideError
from lowtide.memory import format_size
from lowtide.progress import Phase, Progress
from lowtide.quickclasses import dataclass

__all__ = ["LastCut", "Stretch", "find_stretch", "look_through", "unseen_words"]

_QUIET_SECONDS = 3.0  # a longer scan shows its progress
_PART_BYTES = 64 << 10
_TAIL_BYTES = 1 << 12
_EDGE_BYTES = 1 << 10  # of a window's start, which may be inside a special token
_SHRINKS = 50  # text that compresses this much repeats the same few bytes

LastCut = Callable[[bytes], int]
"""Returns the last place to cut in a text, 0 if there is none."""


@dataclass(frozen=True)
class Stretch:
    """The longest text without a place to cut."""

    size_bytes: int = 0
    in_stream: bool = False
    """True if it is in a compressed or re-encoded file, where more of it is held at once."""
    repeats: bool = False
    """True if it repeats the same few bytes, so that its tokens become as long as itself."""
    text_bytes: int = 0
    """Bytes of all scanned text."""
    unseen_bytes: int = 0
    """Stored bytes of inputs that were not scanned."""


def find_stretch(
    inputs: Sequence[InputFile],
    options: ReadingSettings,
    last_cut: LastCut,
    *,
    streams: bool = True,
) -> Stretch:
    """Scan all inputs; with `streams`, compressed ones too.

    >>> find_stretch([], ReadingSettings(), len).size_bytes
    0
    """
    found, text_bytes = Stretch(), 0

    def look(source: InputFile) -> Iterator[int]:
        nonlocal found, text_bytes
        in_stream = not is_plain_text(source, encoding=options.encoding)
        for step in _iter_stretches(source, options, last_cut):
            found = max(found, Stretch(step.size, in_stream, step.repeats), key=_held)
            text_bytes += step.text_bytes
            yield step.place

    texts = InputList(  # a plain list of 200,000 took 80 MiB
        source
        for source in inputs
        if source.format.block_kind == "text"
        and (streams or is_plain_text(source, encoding=options.encoding))
    )
    unseen = look_through(texts, look)
    return replace(found, text_bytes=text_bytes, unseen_bytes=unseen)


def look_through(inputs: Sequence[InputFile], look: Callable[[InputFile], Iterator[int]]) -> int:
    """Scan all inputs; return how many of their stored bytes could not be scanned.

    `look` yields its position in a file. There is no time limit, because a budget advised by a part
    of the text could be refused again after hours of work; progress is shown meanwhile.
    """
    unseen = start = 0
    total = sum(source.size_bytes for source in inputs)
    with _tell_if_long(total) as advance:
        for source in inputs:
            left = source.size_bytes
            try:
                for place in look(source):
                    left = source.size_bytes - place
                    advance(start + place)
                left = 0
            except (OSError, LowtideError):
                pass  # reading it will report the error
            unseen += left
            start += source.size_bytes
    return unseen


@contextlib.contextmanager
def _tell_if_long(total: int) -> Generator[Callable[[int], None]]:
    """Show the progress of a scan once it has taken a few seconds."""
    began = time.monotonic()
    with contextlib.ExitStack() as shown:
        phases: list[Phase] = []

        def advance(place: int) -> None:
            if not phases and time.monotonic() - began > _QUIET_SECONDS:
                progress = shown.enter_context(Progress("looking"))
                progress.note(
                    "the budget is too small: all text is looked at, to name one that is enough"
                )
                phases.append(shown.enter_context(progress.phase("looking", total=total, unit="B")))
            if phases:
                phases[0].update(place)

        yield advance


def unseen_words(unseen_bytes: int) -> str:
    """Words for the advice of a refusal about text that was not scanned; empty if all was."""
    if not unseen_bytes:
        return ""
    return f" (or more: {format_size(unseen_bytes)} of the input were not looked at)"


def _held(stretch: Stretch) -> int:
    """The memory of a stretch, for comparison: double in a stream, more if it repeats."""
    return stretch.size_bytes * (4 if stretch.repeats else 2 if stretch.in_stream else 1)


@dataclass(frozen=True)
class _Step:
    """A part of a text, and the text after the last cut when it is read."""

    text_bytes: int
    size: int
    repeats: bool
    place: int
    """In the file as it is stored."""


def _iter_stretches(
    source: InputFile, options: ReadingSettings, last_cut: LastCut
) -> Iterator[_Step]:
    size, repeats, tail = 0, False, b""
    with open_stream(source, options) as reader:
        while part := reader.read(_PART_BYTES):
            window = tail + part
            cut = last_cut(window)
            if tail and cut <= _EDGE_BYTES:  # the part before scanned it with its preceding text
                cut = 0
            size = len(window) - cut if cut else size + len(part)
            repeats = not cut and (repeats or _is_same(part))
            tail = window[-_TAIL_BYTES:]
            yield _Step(len(part), size, repeats, reader.stored_position())


def _is_same(text: bytes) -> bool:
    return len(zlib.compress(text, 1)) * _SHRINKS < len(text)
