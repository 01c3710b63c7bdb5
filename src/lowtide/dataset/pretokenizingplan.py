"""The resources that the files of a pretokenize command share: tokenizer, budget, workers.

In:      PretokenizeSettings, the inputs in order
Out:     SharedFiles; a number of workers, or a refusal with the budget that all files need
Memory:  a tokenizer
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset.npywriting import WORKER_BYTES, held_bytes
from lowtide.dataset.settings import PretokenizeSettings
from lowtide.memory import MemoryBudget, usable_cores
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.needs import tokenizer_needs
from lowtide.tokenizer.scanning import CHARACTER_BYTES, count_characters
from lowtide.tokenizer.stretches import Stretch, find_stretch, unseen_words

__all__ = [
    "SLACK_BYTES",
    "SharedFiles",
    "character_bytes",
    "fixed_bytes",
    "plan_workers",
    "reading_of",
    "stream_bytes",
]

_BLOCK_BYTES = 1 << 20
_STREAM_BYTES = 44 << 20  # a few copies of a block, a batch of texts, and its ids
SLACK_BYTES = 16 << 20  # the vocabulary, and Python's growth
_SMALL_WINDOW = 10 << 20  # enough to decompress most files


class SharedFiles:
    """The resources that all files of a command share."""

    def __init__(self, settings: PretokenizeSettings, sources: Sequence[InputFile]) -> None:
        self.settings = settings
        self._sources = sources

    @functools.cached_property
    def named_tokenizer(self) -> Tokenizer:
        """The tokenizer of the settings, loaded once: most of the work for a small file."""
        return Tokenizer.load(self.settings.tokenization)

    @property
    def named_normalizes(self) -> bool:
        """True if text and normalized text are held at once."""
        if self.settings.tokenization == "char":
            return False
        return self.named_tokenizer.data.normalizer != "none"

    @functools.cached_property
    def program_bytes(self) -> int:
        """Memory before the first file; encoders, which are made later, count in a file's share."""
        for source in self._sources:
            if source.format.reader_bytes is not None:  # its imports count as program memory
                reader_bytes([source], reading_of(self.settings))
                break
        return MemoryBudget(self._total_bytes).shares["program"]

    @functools.cached_property
    def _total_bytes(self) -> int:
        return MemoryBudget.from_setting(self.settings.memory).total_bytes

    @functools.cached_property
    def most_workers(self) -> int:
        """The requested number of workers, or one for each core."""
        return self.settings.num_workers or usable_cores()

    def find_stretch(self, source: InputFile) -> Stretch:
        """The longest text that has to be held, in this file and those after it."""
        if self.settings.tokenization == "char" or self.named_tokenizer.kind != "bpe":
            return Stretch()
        sources = self._sources[source.index :]
        last_cut = self.named_tokenizer.last_cut
        return find_stretch(sources, reading_of(self.settings), last_cut, streams=False)

    def count_characters(self, source: InputFile, room: int) -> tuple[int, int]:
        """The most characters in a file from here on, if they make its tokenizer; unread bytes."""
        if self.settings.tokenization != "char":
            return 0, 0
        options = replace(reading_of(self.settings), reader_bytes=max(room, _SMALL_WINDOW))
        most = unseen = 0
        for row in self._sources[source.index :]:
            count, left = count_characters([row], options=options)
            most, unseen = max(most, count), unseen + left
        return most, unseen

    def make_budget(self) -> MemoryBudget:
        """The budget, of which only the program memory is used yet."""
        return MemoryBudget(self._total_bytes, used_bytes=self.program_bytes)


def reading_of(settings: PretokenizeSettings) -> ReadingSettings:
    return ReadingSettings(
        text_field=settings.text_field,
        encoding=settings.encoding,
        block_bytes=_BLOCK_BYTES,
        skip_bad=settings.skip_bad_inputs,
    )


def character_bytes(num_characters: int) -> int:
    """Memory of a tokenizer with this many characters, beyond that of other vocabularies."""
    return max(num_characters * CHARACTER_BYTES - SLACK_BYTES // 2, 0)


def stream_bytes(tokenization: str, *, is_plain: bool, reading: int) -> int:
    """Memory for reading text that is not encoded natively, directly from its file."""
    needs = tokenizer_needs(tokenization)
    size = 0 if is_plain and not needs.by_package else _STREAM_BYTES + reading
    return size + needs.table_bytes + needs.thread_bytes


def fixed_bytes(tokenization: str, num_workers: int, *, is_plain: bool, reading: int) -> int:
    """Memory for encoding a file, besides the program, that does not depend on its text."""
    streams = stream_bytes(tokenization, is_plain=is_plain, reading=reading)
    return num_workers * WORKER_BYTES + streams + SLACK_BYTES


def plan_workers(
    shared: SharedFiles, source: InputFile, budget: MemoryBudget, *, stream_bytes: int
) -> int:
    """How many workers the budget allows; a budget too small for one is refused."""
    shares = {"windows and caches": WORKER_BYTES, "reading": stream_bytes, "slack": SLACK_BYTES}
    most = shared.most_workers
    if sum(shares.values()) > budget.remaining_bytes:  # refused, with the budget it needs
        stretch = shared.find_stretch(source)
        count, unseen = shared.count_characters(source, budget.remaining_bytes)
        found = {
            "text held at once": held_bytes(stretch, shared.named_normalizes),
            "characters": character_bytes(count),
        }
        if any(found.values()):  # a larger budget is used for more workers, too
            shares["windows and caches"] = most * WORKER_BYTES
        remark = unseen_words(max(stretch.unseen_bytes, unseen))
        budget.require({**shares, **found}, remark=remark)
    spare = budget.remaining_bytes - stream_bytes - SLACK_BYTES
    workers = min(most, spare // WORKER_BYTES)
    for name, size in {**shares, "windows and caches": WORKER_BYTES * workers}.items():
        budget.reserve(name, wanted_bytes=size)
    return workers
