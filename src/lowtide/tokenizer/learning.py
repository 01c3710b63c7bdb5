"""Learn merges from counted pieces: at full speed, in little memory, or in files.

In:      counted pieces (counting)
Out:     merges, pairs of tokens in the order they were learned; the same whichever way was taken
Memory:  what the budget has left; `planned_bytes` at full speed, `compact_bytes` at least

decisions 0012 and 0016 have the three ways and what they cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lowtide import _native
from lowtide.errors import BudgetError
from lowtide.files import free_disk_bytes
from lowtide.memory import MemoryBudget, format_size, round_up_mib, smallest_budget
from lowtide.progress import Progress, format_seconds

__all__ = ["TieBreak", "compact_bytes", "learn_merges", "planned_bytes"]

TieBreak = Literal["huggingface", "cs336"]
Learner = _native.MergeLearner | _native.CompactLearner

_MERGES_PER_CALL = 256
_SHORT_SYMBOLS = 65000  # with fewer tokens, a symbol has 2 bytes
_OTHER_BYTES = 40 << 20  # what the process holds besides, where arrays are in files
_PIECE_TIMES = 48  # bytes for each of a piece that are touched at once, twice over
_FILE_SECONDS = 2e-9  # of a merge in files for each byte of distinct pieces, while it touches all
_COSTLY_MERGES = 4000  # the merges that touch most of the pieces


def planned_bytes(distinct_bytes: int, num_pieces: int) -> int:
    """Give the memory that learning merges takes at full speed, for so many distinct pieces.

    Measured at 25 bytes a byte on English text.
    """
    return 28 * distinct_bytes + 24 * num_pieces


def compact_bytes(distinct_bytes: int, num_pieces: int, *, num_tokens: int) -> int:
    """Give the least memory that merges are learned in without files: symbols, and a quarter more.

    A symbol for each byte and one at the end of each piece, and 5 bytes a piece; the rest is for
    pairs and lists of the words they are in.
    """
    symbol_bytes = 2 if num_tokens < _SHORT_SYMBOLS else 4
    held = symbol_bytes * (distinct_bytes + num_pieces) + 5 * num_pieces
    return held + held // 4 + (4 << 20)


def learn_merges(
    counter: _native.PieceCounter,
    *,
    target: int,
    tie_break: TieBreak,
    min_frequency: int,
    budget: MemoryBudget,
    progress: Progress,
    work_dir: Path,
) -> list[tuple[bytes, bytes]]:
    """Learn `target` merges, or as many as there are; takes the pieces out of the counter.

    The learner ends here: it may hold all of the budget, and writing the tokenizer needs some.
    """
    learner = _pick_learner(counter, target, tie_break, budget, progress, work_dir)
    with progress.phase("sorting", unit="pieces", poll=lambda: (learner.num_words, {})):
        learner.take(counter)
        learner.build()
    with progress.phase(
        "merging", total=target, unit="merges", poll=lambda: (learner.merges_done, {})
    ):
        while learner.learn(target, _MERGES_PER_CALL, min_frequency):
            pass  # back in Python now and then, so that Ctrl-C is heard
    tokens = {byte: bytes([byte]) for byte in range(256)}
    merges: list[tuple[bytes, bytes]] = []
    for left, right, token in learner.merges().reshape(-1, 3).tolist():
        merges.append((tokens[left], tokens[right]))
        tokens[token] = tokens[left] + tokens[right]
    return merges


def _pick_learner(
    counter: _native.PieceCounter,
    target: int,
    tie_break: TieBreak,
    budget: MemoryBudget,
    progress: Progress,
    work_dir: Path,
) -> Learner:
    """Take the fastest way that fits."""
    available = budget.remaining_bytes
    sizes = counter.distinct_bytes, counter.distinct
    needed = planned_bytes(*sizes)
    if needed <= available:
        return _native.MergeLearner(tie_break, file_dir="", resident_limit=0)
    if compact_bytes(*sizes, num_tokens=256 + target) <= available:
        progress.note(
            f"learning at full speed needs about {format_size(needed)}: done in "
            f"{format_size(available)}, slower, same result"
        )
        is_short = 256 + target < _SHORT_SYMBOLS
        kind = _native.CompactLearner if is_short else _native.WideCompactLearner
        return kind(tie_break, memory_bytes=available)
    if needed > free_disk_bytes(work_dir):
        raise BudgetError(
            f"learning needs about {format_size(needed)}: more than the budget, "
            "and more than the disk has free",
            path=work_dir,
            next_step="free some space, or give more --memory",
        )
    resident = max(budget.total_bytes - _OTHER_BYTES, 0)
    if counter.longest_piece * _PIECE_TIMES > resident:
        raise BudgetError(
            f"a piece of text has {format_size(counter.longest_piece)}, "
            f"and learning from it takes {format_size(needed)}",
            next_step=f"{smallest_budget(budget.total_bytes - available + needed)}, or put blanks "
            "or line ends into the text",
        )
    quick = compact_bytes(*sizes, num_tokens=256 + target)
    progress.note(
        f"learning needs about {format_size(needed)}: kept in files, same result, but slow: about "
        f"{format_seconds(_FILE_SECONDS * sizes[0] * min(target, _COSTLY_MERGES))}; "
        f"--memory {round_up_mib(budget.total_bytes - available + quick)}MiB is quick"
    )
    return _native.MergeLearner(
        tie_break,
        file_dir=str(work_dir),
        resident_limit=resident,
    )
