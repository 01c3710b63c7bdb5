"""The memory of training a classifier, and how a budget is divided for it.

In:      settings, a budget, the inputs on disk
Out:     Shares; an error with the needed budget if it cannot fit
Memory:  a few numbers
"""

from __future__ import annotations

from lowtide.classifier.examplefiles import CHUNK_EXAMPLES
from lowtide.classifier.examples import PASSAGE_BYTES
from lowtide.classifier.settings import ClassifierSettings
from lowtide.corpus.blockcleaning import BLOCK_BYTES_HELD
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import SPREAD_BYTES, InputList
from lowtide.corpus.reading import BLOCK_BYTES, ReadingSettings
from lowtide.memory import MemoryBudget, usable_cores
from lowtide.quickclasses import dataclass

__all__ = ["Shares", "plan_shares"]

_EXAMPLE_BYTES = 40  # position of its text, its label, its place in the order
_CHOICE_BYTES = 160  # per example while choosing: hashes, rows, their copies for sorting
_WORD_BYTES = 90  # per word: lists, their merging, the model's own, about ten letters
_ROW_BYTES = 28  # a row, its sum, its gradient; while a pass is restored, those of the file
_CHANGE_BYTES = 20  # for each byte of a batch: its text, rows, changes by partition
_FILE_BYTES = 250
_SMALLEST_TABLE = 4 << 20
_SMALLEST_DOCUMENT = 20
_READER_COST = 2  # bytes of budget that give a reader one more


@dataclass(frozen=True)
class Shares:
    """How the budget is divided."""

    num_workers: int
    table_bytes: int
    """Bytes of a worker's table of words."""
    reader_bytes: int
    more_reader_bytes: int
    """What a budget for all workers has more: only beyond that readers get more, too."""

    def reading(self, settings: ClassifierSettings, budget_bytes: int) -> ReadingSettings:
        """How inputs are read; a file that needs a larger budget is refused with one that holds."""
        return settings.reading(
            reader_bytes=self.reader_bytes,
            budget_bytes=budget_bytes + self.more_reader_bytes,
            reader_cost=_READER_COST,
        )


def plan_shares(settings: ClassifierSettings, budget: MemoryBudget, inputs: InputList) -> Shares:
    """Divide the budget; one too small is an error with the smallest sufficient one."""
    workers = settings.num_workers or usable_cores()
    reading = reader_bytes(inputs, settings.reading())
    most = 2 * settings.max_examples
    unknown = any(not source.format.is_file or source.compression for source in inputs)
    if not unknown:  # compressed text may have any size
        most = min(most, inputs.total_bytes // _SMALLEST_DOCUMENT + 1)
    budget.count("list of files", len(inputs) * _FILE_BYTES)
    budget.spread_bytes += len(inputs) * SPREAD_BYTES
    budget.count("examples", most * _EXAMPLE_BYTES)
    block = BLOCK_BYTES * BLOCK_BYTES_HELD
    words = settings.max_words
    if not unknown:
        words = min(words, inputs.total_bytes // (2 * settings.min_count) + 1)
    model = words * _WORD_BYTES + (words + settings.buckets) * _ROW_BYTES
    model += CHUNK_EXAMPLES * PASSAGE_BYTES * _CHANGE_BYTES
    work = {
        "choosing examples": most * _CHOICE_BYTES,
        "model and a batch": model,
        "blocks in work": 2 * block + reading + most * _EXAMPLE_BYTES,
    }
    budget.require(dict([max(work.items(), key=lambda row: row[1])]))  # used one after the other
    while workers > 1 and block * (workers + 1) + reading > budget.remaining_bytes:
        workers -= 1
    tables = budget.remaining_bytes - words * _WORD_BYTES
    return Shares(
        num_workers=workers,
        table_bytes=max(tables // (2 * workers), _SMALLEST_TABLE),
        reader_bytes=reading
        + max(budget.remaining_bytes - block * (workers + 1) - reading, 0) // _READER_COST,
        more_reader_bytes=block * ((settings.num_workers or usable_cores()) - workers),
    )
