"""The memory and disk that preparation needs, and how the budget is divided.

In:      settings, a budget, the inputs on disk
Out:     Shares; estimates for `lowtide plan`; an error if memory or disk is too small
Memory:  a few numbers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lowtide import files
from lowtide.corpus.blockcleaning import BLOCK_BYTES_HELD, RULES_BYTES_HELD
from lowtide.corpus.classifiers import check_model_memory, load_model, planned_model_bytes
from lowtide.corpus.deduplication import MIN_TABLE_BYTES, TABLE_ROW_BYTES, partition_bytes
from lowtide.corpus.evaluations import load_items, planned_item_bytes
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputformats import COMPRESSIONS
from lowtide.corpus.inputs import SPREAD_BYTES, InputFile
from lowtide.corpus.reading import BLOCK_BYTES, ReadingSettings
from lowtide.corpus.readingflags import ReadingFlags
from lowtide.corpus.usersteps import step_bytes
from lowtide.counts import counted
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget, format_size, smallest_budget, usable_cores
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.stores.objects import UPLOAD_BYTES
from lowtide.stores.paths import READER_BYTES, is_stored
from lowtide.tokenizer.needs import NO_MORE, TokenizerNeeds, tokenizer_needs
from lowtide.tokenizer.scanning import CHARACTER_BYTES, count_characters
from lowtide.tokenizer.stretches import unseen_words

__all__ = [
    "FILE_BYTES",
    "LINE_BYTES",
    "NEAR_DISK_SHARE",
    "Inputs",
    "Shares",
    "check_characters",
    "check_disk",
    "estimate_text_bytes",
    "plan_shares",
    "planned_bytes",
    "planned_disk_bytes",
    "planned_table_bytes",
    "smallest_budget_bytes",
]

_TOKENIZER_BYTES = 48 << 20  # vocabulary and caches, and a part of it for each worker's encoder
_USUAL_VOCABULARY, _VOCABULARY_ROW_BYTES = 50_257, 240  # tokens, and the memory of one
_STORED_BYTES = UPLOAD_BYTES + READER_BYTES  # per worker whose results are in a store
_SMALL_WINDOW = 10 << 20  # enough to decompress most files
LINE_BYTES = 200  # of English prose; lines of code are shorter
_PROGRAM_BYTES = 25 << 20  # the interpreter and its imports for this
NEAR_DISK_SHARE = 0.8
"""Disk for near copies, as a share of the text: signatures of documents of 3 KB, sorted (0.2), and
the n-grams of two documents in five (1.5 bytes for each of their bytes); more if documents are
short, or all are copies."""
FILE_BYTES = 100
"""Memory of an input file besides its row in the list: its hash, its documents and tokens."""


@dataclass(frozen=True)
class Shares:
    """How the budget is divided."""

    num_workers: int
    one_pass_bytes: int
    """The table of hashes while blocks are encoded as soon as they are clean."""
    table_bytes: int
    """A worker's table of hashes once they are on disk."""
    range_bytes: int
    reader_bytes: int
    """Memory limit of a reader besides its block."""
    character_bytes: int = 0
    """Memory limit of the corpus's characters if they become the tokenizer: they use the memory of
    the table, because cleaning is finished then."""
    held_bytes: int = 0
    """Memory limit of a worker for clean text besides its block, if it encodes ahead."""
    more_worker_bytes: int = 0
    """Memory of the requested workers beyond the budget."""
    reader_cost: int = 1
    """Bytes of budget that give a reader one more, once the budget is `more_reader_bytes` larger,
    which is for all requested workers."""
    more_reader_bytes: int = 0

    def reading(self, settings: ReadingFlags, budget_bytes: int) -> ReadingSettings:
        """How inputs are read; a file that needs a larger budget is refused with one that holds."""
        return settings.reading(
            reader_bytes=self.reader_bytes,
            budget_bytes=budget_bytes + self.more_reader_bytes,
            reader_cost=self.reader_cost,
        )


@dataclass(frozen=True)
class Inputs:
    """The resources that the inputs need, independent of their use."""

    num_files: int = 0
    num_in_order: int = 0
    """Number of compressed and parquet files; several are read in parallel."""
    reader_bytes: int = 0
    """The largest memory for reading one of them besides its block."""
    tokenizer: TokenizerNeeds = NO_MORE
    """Memory of their tokenizer beyond the usual."""
    step_bytes: int = 0
    """Memory of a process of the user's step, if there is one."""
    count_characters: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Scans the text for the error message of a refusal; also returns how many bytes it skipped."""
    count_bytes: int = 0
    """Memory for counting the n-grams of evaluation items, besides their loaded table."""

    @classmethod
    def of(
        cls,
        inputs: Sequence[InputFile],
        settings: PrepareSettings,
        *,
        tokenizer: str | Path | None = None,
    ) -> Inputs:
        """Read the beginnings of the files, and check the tokenizer (`tokenizer` if given)."""
        in_order = sum(row.is_read_in_order for row in inputs)
        needs = tokenizer_needs(tokenizer or settings.tokenization)
        step = step_bytes(settings.step) if settings.step else 0
        reading = settings.reading()

        def count() -> tuple[int, int]:
            small = replace(reading, reader_bytes=_SMALL_WINDOW)
            return count_characters(inputs, options=small)

        held = reader_bytes(inputs, reading)
        plain = cls(len(inputs), in_order, held, needs, step, count)
        return replace(plain, count_bytes=_load_extras(settings, plain))


def _load_extras(settings: PrepareSettings, inputs: Inputs) -> int:
    """Load models and evaluation items, which count as program memory; return the memory of counts.

    A budget that cannot hold one of them is refused with the need of the whole command.
    """
    models = [path for path in (settings.language_model, settings.score) if path]
    items = settings.item_files if settings.decontaminate else ()
    if not models and not items:
        return 0
    budget = MemoryBudget.from_setting(settings.memory)
    least = budget.shares["program"] + planned_item_bytes(items)
    least += sum(_smallest_shares(_block_bytes(settings, inputs), inputs).values())
    least += sum(map(planned_model_bytes, models))
    for path in models:
        check_model_memory(path, budget.total_bytes, least)
        load_model(path)
    if not items:
        return 0
    return load_items(
        items, settings, budget_bytes=budget.total_bytes, least_bytes=least
    ).count_bytes


_NO_INPUTS = Inputs()


def plan_shares(
    settings: PrepareSettings, budget: MemoryBudget, inputs: Inputs = _NO_INPUTS
) -> Shares:
    """Divide the budget; one too small is refused with the smallest sufficient one."""
    workers = settings.num_workers or usable_cores()
    block = _block_bytes(settings, inputs)
    smallest = _smallest_shares(block, inputs)
    remark = ""
    if sum(smallest.values()) > budget.remaining_bytes and settings.tokenization == "char":
        # Refused, with the budget that the text needs; a larger budget is used for more workers,
        # too.
        count, unseen = inputs.count_characters()
        more = count * CHARACTER_BYTES - _TOKENIZER_BYTES - MIN_TABLE_BYTES
        smallest["characters"] = 2 * more + block * (workers - 1) if more > 0 else 0
        remark = unseen_words(unseen)
    budget.spread_bytes += inputs.num_files * SPREAD_BYTES
    budget.require(smallest, remark=remark)
    budget.reserve("list of files", wanted_bytes=inputs.num_files * FILE_BYTES)
    budget.reserve("counts of n-grams", wanted_bytes=inputs.count_bytes)
    budget.reserve("tokenizer", wanted_bytes=_TOKENIZER_BYTES + inputs.tokenizer.table_bytes)

    def needed(workers: int) -> int:
        readers = min(workers, max(inputs.num_in_order, 1))
        return block * (workers + 1) + inputs.reader_bytes * readers + MIN_TABLE_BYTES

    while workers > 1 and needed(workers) > budget.remaining_bytes:
        workers -= 1  # fewer workers if the budget is small
    budget.reserve("blocks in work", wanted_bytes=block * (workers + 1))
    readers = min(workers, max(inputs.num_in_order, 1))
    budget.reserve("reading", wanted_bytes=inputs.reader_bytes * readers)
    rest = budget.remaining_bytes
    table = budget.reserve("table of hashes", wanted_bytes=max(rest // 2, MIN_TABLE_BYTES))
    left = rest - table
    more_worker_bytes = block * ((settings.num_workers or usable_cores()) - workers)
    all_readers = min(settings.num_workers or usable_cores(), max(inputs.num_in_order, 1))
    more_readers = (all_readers - readers) * (inputs.reader_bytes + 2 * left // readers)
    return Shares(
        num_workers=workers,
        one_pass_bytes=table,
        table_bytes=table // workers,
        range_bytes=max(table // (workers + 1), 1 << 20),
        reader_bytes=inputs.reader_bytes + left // 2 // readers,
        character_bytes=_TOKENIZER_BYTES + table,
        # Readers get the other half, if there are any.
        held_bytes=left // 2 // workers,
        more_worker_bytes=more_worker_bytes,
        # A reader has half of what the table of hashes leaves, which takes half of the rest.
        reader_cost=4 * all_readers,
        more_reader_bytes=more_worker_bytes + more_readers + 2 * MIN_TABLE_BYTES,
    )


def _block_bytes(settings: PrepareSettings, inputs: Inputs) -> int:
    """Memory of a worker."""
    held = BLOCK_BYTES_HELD + (RULES_BYTES_HELD if settings.rules else 0)
    block = settings.reading().block_bytes * held + inputs.tokenizer.thread_bytes
    if any(path is not None and is_stored(path) for path in (settings.out_dir, settings.work_dir)):
        block += _STORED_BYTES
    return block + inputs.step_bytes


def check_characters(num_characters: int, shares: Shares, budget_bytes: int) -> None:
    """Refuse more characters than their tokenizer has memory for; no language has that many."""
    needed = num_characters * CHARACTER_BYTES
    if needed <= shares.character_bytes:
        return
    more = 2 * (needed - shares.character_bytes) + shares.more_worker_bytes
    raise BudgetError(
        f"the text has {num_characters:,} different characters: a tokenizer of them takes "
        f"{format_size(needed)}, {format_size(shares.character_bytes)} of the budget are for it",
        next_step=f"{smallest_budget(budget_bytes + more)}, or give another --tokenization",
    )


def planned_bytes(
    text_bytes: int,
    *,
    num_workers: int,
    budget_bytes: int,
    line_bytes: float = LINE_BYTES,
    vocab_size: int = _USUAL_VOCABULARY,
) -> int:
    """Estimate the peak of preparing this much text: the program, workers, the table of hashes.

    Fitted to 0.5 to 110 MB of English, other languages and source code with 1 to 8 workers and
    vocabularies of 4,000 and 50,257 tokens, and to 2 GB with 16 on as many cores. A worker has at
    most as many blocks as there are; memory freed by one is kept for the next.
    """
    blocks = text_bytes / BLOCK_BYTES
    busy = min(float(num_workers), blocks) if blocks >= 1 else blocks**0.4
    workers = 40 * min(busy, 1.0) + 36 * max(busy - 1.0, 0.0)
    rows = int(text_bytes / line_bytes)
    share = planned_table_bytes(num_workers=num_workers, budget_bytes=budget_bytes)
    tables = min(rows * TABLE_ROW_BYTES, share)
    if tables == share:  # duplicates are found on disk, one partition per worker
        tables = max(share, num_workers * partition_bytes(rows, num_workers=num_workers))
    held = int((32 + workers) * (1 << 20)) + vocab_size * _VOCABULARY_ROW_BYTES
    return min(held + tables, budget_bytes)


def planned_table_bytes(*, num_workers: int, budget_bytes: int) -> int:
    """Return approximately what `plan_shares` leaves for the table of hashes."""
    blocks = BLOCK_BYTES * BLOCK_BYTES_HELD * (num_workers + 1)
    rest = budget_bytes - _PROGRAM_BYTES - _TOKENIZER_BYTES - blocks
    return max(rest // 2, MIN_TABLE_BYTES)


def smallest_budget_bytes() -> int:
    """Return the smallest budget for preparing text."""
    return _PROGRAM_BYTES + sum(_smallest_shares(BLOCK_BYTES * BLOCK_BYTES_HELD).values())


def _smallest_shares(block_bytes: int, inputs: Inputs = _NO_INPUTS) -> dict[str, int]:
    return {
        "list of files": inputs.num_files * FILE_BYTES,
        "counts of n-grams": inputs.count_bytes,
        "tokenizer": _TOKENIZER_BYTES + inputs.tokenizer.table_bytes,
        "blocks in work": 2 * block_bytes,
        "reading": inputs.reader_bytes,
        "table of hashes": MIN_TABLE_BYTES,
    }


def estimate_text_bytes(inputs: Sequence[InputFile]) -> int:
    """Estimate the bytes of text in files, compressed or not."""
    return int(sum(source.size_bytes * _expansion(source) for source in inputs))


def _expansion(source: InputFile) -> float:
    if source.format.expansion is not None or source.compression is None:
        return source.format.expansion or 1.0
    return COMPRESSIONS[source.compression].expansion


def planned_disk_bytes(
    text_bytes: int,
    *,
    one_pass_bytes: int,
    bytes_per_token: float = 3.5,
    token_bytes: int = 2,
    keeps_text: bool = False,
    near_copies: bool = False,
) -> int:
    """Return the temporary disk space of preparing, with a one-pass table of this size.

    Ids twice, as work files and as shards, the hashes of lines, and the clean text of blocks that
    wait for their turn; once the table is full, the clean text of all following blocks. If all text
    is scanned first (`keeps_text`), all clean text; for near copies also `NEAR_DISK_SHARE`.
    """
    ids = 2 * token_bytes * text_bytes / bytes_per_token
    if keeps_text or near_copies:
        one_pass_bytes = 0
    if near_copies:
        ids += NEAR_DISK_SHARE * text_bytes
    waiting = min(0.15 * text_bytes, 3e6)
    tabled = one_pass_bytes // TABLE_ROW_BYTES * LINE_BYTES
    return int(ids + waiting + 0.1 * text_bytes + max(0, text_bytes - tabled))


def check_disk(
    root: Path,
    inputs: Sequence[InputFile],
    progress: Progress,
    *,
    one_pass_bytes: int,
    keeps_text: bool = False,
    near_copies: bool = False,
    existing_bytes: int = 0,
) -> None:
    """Refuse a job that does not fit on the disk; without one pass all clean text is stored there.

    `existing_bytes` is the text of an existing dataset that new text is compared with.
    """
    text = estimate_text_bytes(inputs)
    num_in_order = sum(row.is_read_in_order for row in inputs)
    side_by_side = num_in_order > 1  # the clean text of such files is kept
    table = 0 if side_by_side else one_pass_bytes
    needed = planned_disk_bytes(
        text, one_pass_bytes=table, keeps_text=keeps_text, near_copies=near_copies
    ) + int((1 + NEAR_DISK_SHARE) * existing_bytes)
    free = files.free_disk_bytes(root)
    what = (
        f"{counted(len(inputs), 'file')}, about {format_size(text)} of text; "
        f"needs up to {format_size(needed)} of disk while it runs"
    )
    if not all(row.format.is_file for row in inputs):
        what = f"{counted(len(inputs), 'input')}; how much text the hub has is not known before"
    progress.note(f"{what}, {format_size(free)} are free")
    if needed > free:
        raise BudgetError(
            f"preparing {format_size(text)} of text needs about {format_size(needed)} of disk, "
            f"{format_size(free)} are free",
            path=root,
            next_step="free some space, or prepare fewer files and lowtide append the rest later",
        )
