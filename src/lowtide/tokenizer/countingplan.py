"""Divide the budget of tokenizer training between fixed needs and the tables of counts.

In:      the settings and the inputs
Out:     a piece counter and how its text is read; or an error with the smallest sufficient budget
Memory:  this module decides the shares of counting
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from lowtide import _native
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.reading import ReadingSettings, is_plain_text
from lowtide.memory import MemoryBudget, usable_cores
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.counting import CountingNeeds, held_bytes
from lowtide.tokenizer.limits import CountingLimits
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.tokenizer.stretches import unseen_words

__all__ = [
    "SLACK_BYTES",
    "WINDOW_BYTES",
    "CountingPlan",
    "looking_options",
    "needed_bytes",
    "plan_counting",
    "reading_options",
    "smallest_budget_bytes",
    "tell_unseen",
]

WINDOW_BYTES = 1 << 20
_THREAD_BYTES = 6 * WINDOW_BYTES  # tables and batches of a thread, its window and its growth
SLACK_BYTES = 12 << 20  # Python's own growth, read buffers, the queue of candidate pairs
_SMALLEST_TABLES = 8 << 20
_TOKEN_BYTES = 360  # to write the vocabulary: 310 to 370 measured with 200,000 tokens
_SPECIAL_BYTES = 1600  # more for each special token: 1,450 measured with 300,000
_SMALL_WINDOW = 10 << 20  # enough to decompress most files
_PROGRAM_BYTES = 40 << 20  # the interpreter and its imports for this


def smallest_budget_bytes(num_workers: int) -> int:
    """Return the smallest budget for training on plain text."""
    fixed = _fixed_bytes(num_workers, is_plain=True)
    return _PROGRAM_BYTES + sum(fixed.values()) + _SMALLEST_TABLES


def needed_bytes(num_workers: int, *, is_plain: bool, reading: int, held_bytes: int) -> int:
    """Memory of learning besides the program, for text with such a stretch to be held."""
    fixed = _fixed_bytes(num_workers, is_plain=is_plain, reading=reading)
    return sum(fixed.values()) + max(_SMALLEST_TABLES, held_bytes)


def _fixed_bytes(num_workers: int, *, is_plain: bool, reading: int = 0) -> dict[str, int]:
    """Return the memory of counting that does not depend on the text."""
    return {
        "threads": num_workers * _THREAD_BYTES,
        # Rows and compressed blocks are held twice.
        "batch of text": CountingLimits.batch_bytes * (1 if is_plain else 4),
        "reading": reading,
        "slack": SLACK_BYTES,
    }


@dataclass(frozen=True)
class CountingPlan:
    """How counting uses its budget."""

    make_counter: Callable[[Path], _native.PieceCounter]
    """Makes a counter that spills into a folder."""
    options: ReadingSettings
    needs: CountingNeeds
    """For the error message of a refusal that only becomes necessary while the text is read."""


def plan_counting(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    budget: MemoryBudget,
    progress: Progress,
    reading: int,
) -> CountingPlan:
    """Divide the budget; one too small is an error with the need of the whole text."""
    num_workers = settings.num_workers or usable_cores()
    is_plain = all(is_plain_text(row, encoding=settings.encoding) for row in inputs)
    fixed = _fixed_bytes(1, is_plain=is_plain, reading=reading)
    all_threads = _fixed_bytes(num_workers, is_plain=is_plain, reading=reading)
    other_bytes = sum(budget.shares.values()) + sum(all_threads.values())
    needs = CountingNeeds(inputs, settings.special_tokens, other_bytes, settings.max_token_bytes)
    smallest = {**fixed, "counting tables": _SMALLEST_TABLES}
    text_bytes = sum(row.size_bytes for row in inputs) if is_plain else settings.vocab_size
    # The memory of counting is free when the vocabulary is made.
    free = sum(smallest.values()) - SLACK_BYTES
    written = _TOKEN_BYTES * min(settings.vocab_size, text_bytes)
    written += _SPECIAL_BYTES * len(settings.special_tokens)
    smallest["vocabulary"] = max(0, written - free)
    if sum(smallest.values()) > budget.remaining_bytes:
        stretch = needs.find_stretch(looking_options(settings, budget))
        tell_unseen(stretch.unseen_bytes, progress)
        if (held := held_bytes(stretch, settings.max_token_bytes)) > _SMALLEST_TABLES:
            smallest |= {**all_threads, "counting tables": held}
    budget.require(smallest)
    spare = budget.remaining_bytes - sum(fixed.values()) - _SMALLEST_TABLES
    num_workers = min(num_workers, 1 + spare // _THREAD_BYTES)  # fewer threads then
    fixed["threads"] = num_workers * _THREAD_BYTES
    for name, size in fixed.items():
        budget.reserve(name, wanted_bytes=size)
    table_bytes = budget.reserve("counting tables", wanted_bytes=budget.remaining_bytes * 3 // 4)

    def make_counter(folder: Path) -> _native.PieceCounter:
        return _native.PieceCounter(
            settings.pattern,
            [text.encode() for text in settings.special_tokens],
            num_threads=num_workers,
            table_bytes=table_bytes,
            window_bytes=WINDOW_BYTES,
            spill_dir=str(folder),
        )

    options = dataclasses.replace(
        reading_options(settings),
        on_notice=progress.note,
        reader_bytes=reading + budget.remaining_bytes,
        budget_bytes=budget.total_bytes,
    )
    return CountingPlan(make_counter, options, needs)


def tell_unseen(unseen_bytes: int, progress: Progress) -> None:
    """Add to an error that not all of the text was scanned."""
    if unseen_bytes:
        progress.note(f"the budget named is a first one{unseen_words(unseen_bytes)}")


def looking_options(settings: TokenizerTrainingSettings, budget: MemoryBudget) -> ReadingSettings:
    """Settings to scan text before a refusal: windows that exceed the budget are left out."""
    room = max(budget.remaining_bytes, _SMALL_WINDOW)
    return dataclasses.replace(reading_options(settings), reader_bytes=room)


def reading_options(settings: TokenizerTrainingSettings) -> ReadingSettings:
    return ReadingSettings(
        text_field=settings.text_field,
        encoding=settings.encoding,
        skip_bad=settings.skip_bad_inputs,
    )
