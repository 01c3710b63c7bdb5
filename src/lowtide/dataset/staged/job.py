"""The data shared by all stages of a preparation: the plan's values, the corpus, the records.

Memory:  the list of inputs; the stages use a worker's share of the budget
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide import _native
from lowtide.corpus.cleaning import clean_block, native_options
from lowtide.corpus.evaluations import load_items
from lowtide.corpus.inputhashes import hash_content
from lowtide.corpus.inputs import InputList
from lowtide.corpus.ranking import ScoreCut, read_cut
from lowtide.corpus.reading import ReadingSettings, Stream, TextBlock, plan_streams
from lowtide.corpus.textblocks import StreamPaths
from lowtide.dataset.removed import Finder, list_finders
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.destination import Destination, find_waiting, open_destination
from lowtide.dataset.staged.parts import Part, cut_parts, iter_part
from lowtide.dataset.staged.plan import Sizes
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from lowtide.dataset.contamination import Contamination, ContaminationJob
    from lowtide.dataset.grown import GrownDataset
    from lowtide.dataset.near.job import BlockText
    from lowtide.dataset.near.removedcopies import NearRemovals

__all__ = [
    "EXISTING_STAGE",
    "HASH_STAGE",
    "SCORE_STAGE",
    "TOP_STAGE",
    "CleanPart",
    "StagedJob",
    "WorkerLimits",
    "iter_part_texts",
]

EXISTING_STAGE = "existing"
HASH_STAGE = "hash"
SCORE_STAGE = "score"
TOP_STAGE = "top"


@dataclass(frozen=True)
class WorkerLimits:
    """How much of other tasks' results a worker caches, and reads at a time.

    The result does not depend on these; the same values everywhere make the same work files.
    """

    places_kept: int = 4096
    """Number of tasks' files whose section offsets are cached; about 4 MB."""
    starts_bytes: int = 4 << 20
    """Memory for the offsets of each part's lines in the results of all partitions."""
    places_bytes: int = 4 << 20
    """Memory to sort the removed lines of a part."""
    cut_range_bytes: int = 16 << 20
    """Bytes of document rows that are sorted together."""
    seen_rows: int = 1 << 22
    """Stored hashes of a dataset's documents per task."""
    seen_step: int = 1 << 16
    """Number of these that are read at a time."""
    unnamed_shards: int = 16
    """Number of a task's shards that may wait for their names; each has two open files."""


@dataclass(frozen=True)
class StagedJob:
    """A preparation, for one worker."""

    settings: PrepareSettings
    inputs: InputList
    reading: ReadingSettings
    sizes: Sizes
    records: Records
    table_bytes: int
    """Memory of a task for hashes."""
    range_bytes: int
    """Memory of a task for documents' rows."""
    grown: GrownDataset | None = None
    """The dataset that text is appended to; None if a new one is made."""
    limits: WorkerLimits = WorkerLimits()

    @cached_property
    def destination(self) -> Destination:
        """The location of the dataset; of an append, that of new shards until all are done."""
        if self.grown is None:
            return open_destination(self.settings.out_dir)
        return open_destination(find_waiting(self.grown.root, self.records))

    @cached_property
    def streams(self) -> list[Stream]:
        """The corpus, in order."""
        return plan_streams(self.inputs, self.reading)

    @cached_property
    def parts(self) -> list[Part]:
        """The parts of the corpus, one per task."""
        return cut_parts(self.streams, self.reading, self.sizes.part_bytes)

    @cached_property
    def _native_options(self) -> dict[tuple[bool, bool], _native.CleanOptions]:
        return {}

    def native_options(self, collect_characters: bool, scores: bool) -> _native.CleanOptions:
        """The options of cleaning for the native core, made once for all parts."""
        key = (collect_characters, scores)
        if key not in self._native_options:
            self._native_options[key] = native_options(
                self.settings.cleaning,
                collect_characters=collect_characters,
                collect_scores=scores,
                cut=None if scores else self.cut,
            )
        return self._native_options[key]

    @property
    def first_index(self) -> int:
        """The index of the first input."""
        return 0 if self.grown is None else self.grown.first_input

    @property
    def collects_characters(self) -> bool:
        """True if the result depends on the characters of the text."""
        if self.grown is not None:
            return self.grown.tokenizer.kind == "char"
        return self.settings.tokenization == "char"

    @cached_property
    def characters(self) -> list[int]:
        """The code points of the text, after the hash stage, if they are collected."""
        found = 0
        for part in range(len(self.parts)):
            data = self.records.open(Task(HASH_STAGE, part)).read("characters")
            found |= int.from_bytes(data, "little")
        return [code for code, bit in enumerate(f"{found:b}"[::-1]) if bit == "1"]

    @cached_property
    def unknown_notices(self) -> list[str]:
        """Notices of characters in the text that the dataset's tokenizer does not know."""
        if self.grown is None or not self.collects_characters:
            return []
        from lowtide.dataset.grown import unknown_characters  # imported only if it is used

        return unknown_characters(self.grown.tokenizer, self.characters)

    @cached_property
    def cut(self) -> ScoreCut | None:
        """The range of scores to keep, known after the score stages; None if all are kept."""
        if self.grown is not None:
            return self.grown.cut
        if self.settings.keep_top is None:
            return None
        return read_cut(self.records.open(Task(TOP_STAGE, 0)).header)

    @cached_property
    def near(self) -> NearRemovals | None:
        """The near copies to remove, once they are known; None if they are kept."""
        options = self.settings.near
        if options is None:
            return None
        from lowtide.dataset.near.removedcopies import NearRemovals  # imported only if it is used

        first_block = 0 if self.grown is None else self._count_existing_blocks()
        return NearRemovals(self.records, options, first_block=first_block)

    def _count_existing_blocks(self) -> int:
        """The number of blocks of the dataset's documents that were compared."""
        from lowtide.dataset.near.deciding import DECIDE_STAGE
        from lowtide.dataset.staged.duplicates import Tally

        num_blocks = self.records.open(Task(DECIDE_STAGE, 0)).size("starts") // 8 - 1
        return num_blocks - Tally.load(self).first_blocks[-1]

    @cached_property
    def contamination_job(self) -> ContaminationJob | None:
        """The search for evaluation items in the hash stage's results; None if not requested."""
        settings = self.settings
        if not settings.decontaminate:
            return None
        from lowtide.dataset.contamination import ContaminationJob

        return ContaminationJob(
            items=load_items(settings.item_files, settings),
            cuts=settings.decontaminate_by == "cut",
            records=self.records,
            scan_stage=HASH_STAGE,
            num_parts=len(self.parts),
            counts_before=self._counts_before(),
        )

    def _counts_before(self) -> Path | None:
        """The dataset's stored counts of evaluation items."""
        if self.grown is None:
            return None
        from lowtide.dataset.addedtext import read_stored_counts

        return read_stored_counts(self.grown.root, self.grown.info.metadata, self.settings)

    @cached_property
    def contamination(self) -> Contamination | None:
        """The text of evaluation items that was found, after the judge stage."""
        job = self.contamination_job
        if job is None:
            return None
        from lowtide.dataset.contamination import Contamination

        return Contamination(job)

    @cached_property
    def finders(self) -> list[Finder]:
        """Everything that found text to remove."""
        return list_finders(self.near, self.contamination)

    @cached_property
    def paths(self) -> StreamPaths:
        """The paths of the inputs, for messages."""
        return StreamPaths(self.streams)

    def first_input(self, part: int) -> int:
        """The index of a part's first input."""
        return self.streams[self.parts[part].first].inputs[0].index

    def changed_between_passes(self, input_index: int) -> DataError:
        """The error for an input that changed between two passes."""
        return DataError(
            "this file changed while it was read, between two passes over it",
            path=self.paths.get(input_index),
            next_step="remove the work folder, and give the command again",
        )


class CleanPart:
    """Reads and cleans a part, block by block; its notices are complete at the end."""

    def __init__(
        self,
        job: StagedJob,
        index: int,
        *,
        collect_characters: bool = False,
        collect_scores: bool = False,
    ) -> None:
        self._job = job
        self._collect_scores = collect_scores
        self._part = job.parts[index]
        self._collect_characters = collect_characters
        self.stream_notices: list[str] = []
        self.block_notices: list[str] = []

    def __iter__(self) -> Iterator[tuple[TextBlock, _native.CleanedBlock, list[tuple[int, str]]]]:
        """Blocks with their clean text, and the hashes of the text read from each input."""
        job = self._job
        reading = job.reading.noticing(self.block_notices.append)
        cleaning = job.settings.cleaning
        native = job.native_options(self._collect_characters, self._collect_scores)
        for block in iter_part(
            job.streams,
            self._part,
            job.reading,
            on_stream_notice=self.stream_notices.append,
            on_block_notice=self.block_notices.append,
        ):
            cleaned = clean_block(
                block,
                reading,
                cleaning,
                paths=job.paths,
                collect_characters=self._collect_characters,
                collect_scores=self._collect_scores,
                cut=None if self._collect_scores else job.cut,
                native=native,
            )
            yield block, cleaned, hash_content(block, reading)


def iter_part_texts(job: StagedJob, part: int) -> Iterator[Callable[[], BlockText]]:
    """The clean blocks of a part, in the form that the search for near copies expects."""
    for _, cleaned, _ in CleanPart(job, part):
        yield lambda cleaned=cleaned: (cleaned.text, cleaned.documents)
