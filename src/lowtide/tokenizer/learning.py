"""Learn merges from counted pieces: at full speed in memory, or in rounds over a file.

In:      counted pieces (counting)
Out:     merges, pairs of tokens in the order they were learned; the same either way
Memory:  the rest of the budget; `planned_bytes` at full speed, any amount in rounds

Decisions 0012 and 0016 describe the two ways and their costs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lowtide import _native
from lowtide.errors import BudgetError
from lowtide.files import free_disk_bytes
from lowtide.memory import MemoryBudget, format_size, smallest_budget
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.limits import CountingLimits

__all__ = [
    "LearnedMerges",
    "TieBreak",
    "file_bytes",
    "learn_merges",
    "planned_bytes",
    "repeated_bytes",
]

TieBreak = Literal["huggingface", "cs336"]
Learner = _native.MergeLearner | _native.RoundLearner

_LONG_PIECE = 256 << 10
_SHORT_SYMBOLS = 65000  # with fewer tokens, a symbol takes 2 bytes
# At full speed words are identified by 32-bit offsets; at two bytes per symbol, the count and the
# length of a word take four more symbols.
_MOST_SYMBOLS, _HEAD_SYMBOLS = 1 << 32, 4
_LIMITS = CountingLimits()
_MUCH_WRITTEN = 8 << 20
# For learning at full speed: two threads take a sixth more processor time, and gain little.
_FEWEST_THREADS, _MOST_THREADS = 4, 8
_THREAD_BYTES = 4 << 20
# Memory for a symbol of a segment in rounds: 148 bytes for three, in three quarters of their share,
# which is seven eighths (native/tokenizer/learning/round_learner.cpp).
_SEGMENT_TIMES = 80


@dataclass(frozen=True)
class LearnedMerges:
    """Merges in the order they were learned."""

    tokens: list[bytes]
    """The 256 bytes, then the token of each merge."""
    numbers: memoryview
    """Ids of the left part, right part and token of each merge."""

    def __len__(self) -> int:
        return len(self.numbers) // 3


def planned_bytes(distinct_bytes: int, num_pieces: int) -> int:
    """Return the memory for learning merges at full speed, for this many distinct pieces.

    Measured: 13 to 16 bytes per byte on English text, and 24 on text in 16 languages with 70,000
    tokens, whose symbols take four bytes.
    """
    return 28 * distinct_bytes + 24 * num_pieces


def repeated_bytes(
    stretch_bytes: int, *, text_bytes: int, max_token_bytes: int | None = None
) -> int:
    """The memory for learning from one repetitive stretch, in this much text.

    Its tokens double until one has half its length, and the rest is merged into it: 2.9 times the
    stretch in total, for megabytes of one letter or one word, and each byte takes memory to write;
    little if token lengths are limited. If the text is too large for full speed, a segment of a
    round has to hold the stretch, since no pair in it is rare.
    """
    written = 4 * _LIMITS.written_byte_bytes * stretch_bytes if max_token_bytes is None else 0
    return max(written, min(planned_bytes(text_bytes, 0), _SEGMENT_TIMES * stretch_bytes))


def file_bytes(distinct_bytes: int, num_pieces: int, *, num_tokens: int) -> int:
    """Bytes of the file that rounds read: a symbol per byte, and a count and an end per piece."""
    symbol_bytes = 2 if num_tokens < _SHORT_SYMBOLS else 4
    return symbol_bytes * (distinct_bytes + 2 * num_pieces)


def learn_merges(
    counter: _native.PieceCounter,
    *,
    target: int,
    tie_break: TieBreak,
    min_frequency: int,
    max_token_bytes: int | None = None,
    budget: MemoryBudget,
    progress: Progress,
    work_dir: Path,
    num_workers: int = 1,
    limits: CountingLimits = _LIMITS,
    first_id: int = 0,
) -> LearnedMerges:
    """Learn up to `target` merges; removes the pieces from the counter.

    Ids of bytes start at `first_id`.
    """
    limit = {} if max_token_bytes is None else {"longest_token": max_token_bytes}
    numbers, with_ids = _learn(
        # The only reference: it may take the whole budget, and writing the tokenizer needs memory.
        _pick_learner(counter, target, tie_break, limit, budget, progress, work_dir, num_workers),
        counter,
        target=target,
        min_frequency=min_frequency,
        budget=budget,
        progress=progress,
        merges_per_call=limits.merges_per_call,
        first_id=first_id,
    )
    _require_room(numbers, budget, limits.written_byte_bytes)
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in zip(numbers[::3], numbers[1::3], strict=True):  # each creates the next token
        tokens.append(tokens[left] + tokens[right])
    return LearnedMerges(tokens, with_ids)


def _learn(
    learner: Learner,
    counter: _native.PieceCounter,
    *,
    target: int,
    min_frequency: int,
    budget: MemoryBudget,
    progress: Progress,
    merges_per_call: int,
    first_id: int,
) -> tuple[memoryview, memoryview]:
    """Learn from the pieces of a counter; the merges, with bytes from 0 and from `first_id` on."""
    sizes, longest = (counter.distinct_bytes, counter.distinct), counter.longest_piece
    with progress.phase("sorting", unit="pieces", poll=lambda: (learner.num_words, {})):
        learner.take(counter)
        learner.build()
    with progress.phase(
        "merging", total=target, unit="merges", poll=lambda: (learner.merges_done, {})
    ):
        try:
            while learner.learn(target, merges_per_call, min_frequency):
                pass  # returns to Python regularly, so that Ctrl-C works
        except MemoryError:
            needed = budget.total_bytes - budget.remaining_bytes + planned_bytes(*sizes)
            raise BudgetError(
                f"learning from these pieces (the longest has {format_size(longest)}) does not "
                f"fit {format_size(budget.remaining_bytes)}: too many of them go on in different "
                "ways after the same tokens",
                next_step=f"{smallest_budget(needed)}, or put blanks or line ends into the text",
            ) from None
    return learner.merges(), learner.merges(first_id)


def _require_room(merges: memoryview, budget: MemoryBudget, byte_bytes: int) -> None:
    """Refuse tokens that could not be written within the budget, before they are created.

    A repetitive text without a place to cut has tokens nearly as long as itself.
    """
    sizes = [1] * 256
    for left, right in zip(merges[::3], merges[1::3], strict=True):
        sizes.append(sizes[left] + sizes[right])
    written = byte_bytes * sum(sizes)
    used = budget.total_bytes - budget.remaining_bytes
    if written < _MUCH_WRITTEN or used + written <= budget.total_bytes:
        return
    raise BudgetError(
        f"the text repeats itself without a place to cut: a token has "
        f"{format_size(max(sizes))}, and writing all of them takes {format_size(written)}",
        # A larger budget has larger tables, some of which exist when this is checked.
        next_step=f"{smallest_budget(used + written + written // 8)}, or put blanks or line ends "
        "into the text",
    )


def _pick_learner(
    counter: _native.PieceCounter,
    target: int,
    tie_break: TieBreak,
    limit: dict[str, int],
    budget: MemoryBudget,
    progress: Progress,
    work_dir: Path,
    num_workers: int = 1,
) -> Learner:
    """Choose the fastest learner that fits the memory."""
    available = budget.remaining_bytes
    sizes = counter.distinct_bytes, counter.distinct
    needed = planned_bytes(*sizes)
    is_short = 256 + target < _SHORT_SYMBOLS
    if needed <= available and sizes[0] + _HEAD_SYMBOLS * sizes[1] < _MOST_SYMBOLS:
        # Besides the memory of each thread, pieces of a quarter of the tables are held twice.
        spare = available - needed - counter.distinct_bytes - 16 * counter.distinct
        threads = min(num_workers, _MOST_THREADS, spare // _THREAD_BYTES)
        threads = threads if threads >= _FEWEST_THREADS else 1
        kind = _native.MergeLearner if is_short else _native.WideMergeLearner
        return kind(tie_break, num_threads=threads, **limit)
    on_disk = file_bytes(*sizes, num_tokens=256 + target)
    if on_disk > free_disk_bytes(work_dir):
        raise BudgetError(
            f"learning needs about {format_size(needed)}: more than the budget has left; in "
            f"{format_size(available)} it needs a file of {format_size(on_disk)}: more than the "
            "disk has free",
            path=work_dir,
            next_step="free some space, or give more --memory",
        )
    progress.note(
        f"learning at full speed needs about {format_size(needed)}: done in "
        f"{format_size(available)}, in rounds over a file of {format_size(on_disk)}, same result"
    )
    kind = _native.RoundLearner if is_short else _native.WideRoundLearner
    memory_bytes = available - available // 8
    if counter.longest_piece > _LONG_PIECE:
        # Rounds that hold more of one long piece finally find no place to cut in it: 3 MiB of DNA
        # letters were learned in up to 0.56 of the memory of full speed, and not in 0.60 to 0.81.
        memory_bytes = min(memory_bytes, needed // 2)
    return kind(tie_break, file_dir=str(work_dir), memory_bytes=memory_bytes, **limit)
