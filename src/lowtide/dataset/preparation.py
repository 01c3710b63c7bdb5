"""Prepare a dataset: clean, filter, deduplicate, encode, shuffle, split, write shards.

In:      files of text (PrepareSettings)
Out:     a dataset folder; its metadata file comes last
Memory:  shares of one budget: blocks in work, a table of hashes, rows of documents, tokenizer

Every phase is a list of tasks whose results are files that appear whole; what is there is not done
again. So a killed command goes on where it was, and ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import files
from lowtide.corpus.blocks import (
    BlockTable,
    CleanJob,
    InputHashes,
    clean_corpus,
    find_score_cut,
    has_many_streams,
    load_block_table,
)
from lowtide.corpus.cleaning import Report
from lowtide.corpus.deduplication import LeaveOut, RemovedLines, find_duplicates
from lowtide.corpus.evaluations import load_items
from lowtide.corpus.inputs import (
    InputFile,
    InputList,
    changed_input,
    expand_inputs,
    has_changed,
)
from lowtide.corpus.ranking import ScoreCut, describe_cut, require_rereadable
from lowtide.corpus.reading import ReadingSettings, plan_streams
from lowtide.corpus.steps import STEP_NOTICE
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file
from lowtide.dataset import layout
from lowtide.dataset.encoding import (
    Coder,
    EncodeJob,
    Removed,
    SourceCounts,
    encode_corpus,
    keep_block,
)
from lowtide.dataset.finishing import (
    Made,
    find_other_setting,
    find_shard_tag,
    has_too_few,
    plan_settings,
    too_few_tokens,
    write_dataset,
)
from lowtide.dataset.identity import drop_copies, find_other_source, require_unchanged
from lowtide.dataset.onepass import OnePass
from lowtide.dataset.removed import Finder, RemovedText, leave_out_with
from lowtide.dataset.resources import Inputs, Shares, check_disk, plan_shares
from lowtide.dataset.seen import write_seen
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.sharding import (
    ShardJob,
    ShardPlan,
    plan_shards,
    remove_other_shards,
    write_shards,
)
from lowtide.dataset.workfolder import WORK_NAME, has_plan, open_work, remove_work
from lowtide.errors import UsageError, from_os_error
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget
from lowtide.notebooks import shown_in_notebooks
from lowtide.progress import METRICS_NAME, Progress
from lowtide.scratch import ScratchFolder
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lowtide.dataset.contamination import Contamination
    from lowtide.dataset.near.removals import NearRemovals

__all__ = [
    "PrepareResult",
    "naming_folder",
    "noticing_changes",
    "prepare_dataset",
    "run_cleaning",
    "run_deduplication",
    "run_encoding",
    "run_preparation",
    "run_sharding",
]


@shown_in_notebooks()
@dataclass(frozen=True)
class PrepareResult:
    """What a preparation made, or would make."""

    info: layout.DatasetInfo | None
    """None after a dry run."""
    report: dict[str, Any]
    """What was read, and what was removed and why."""
    notices: list[str]
    seconds: float
    peak_bytes: int
    budget_bytes: int
    was_there: bool = False
    """True if the dataset was there already, made of the same inputs with the same settings."""


@takes_keywords(PrepareSettings)
def prepare_dataset(settings: PrepareSettings) -> PrepareResult:
    """Prepare a dataset from text files, in a fixed amount of memory.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("a few words to learn from, one after the other\\n")
    >>> result = prepare_dataset(
    ...     input_files=[folder / "a.txt"], out_dir=folder / "out", tokenization="char"
    ... )
    >>> result.info.num_tokens("train") + result.info.num_tokens("val")
    47
    """
    return run_preparation(settings)


def run_preparation(
    settings: PrepareSettings, *, load_tokenizer: Callable[[], Tokenizer] | None = None
) -> PrepareResult:
    """Prepare a dataset; `load_tokenizer` gives the one that the settings name, begun earlier."""
    if settings.dry_run:
        with _folder_beside(settings.out_dir) as folder:
            return _prepare(replace(settings, out_dir=folder), None)
    if _is_finished(settings.out_dir):
        return _require_same(settings)
    if settings.engine != "threads":
        return _prepare_with_others(settings)
    _refuse_strangers(settings.out_dir)
    return _prepare(settings, load_tokenizer)


def _prepare_with_others(settings: PrepareSettings) -> PrepareResult:
    from lowtide.dataset.staged.running import prepare_on_ray, prepare_shared

    with naming_folder(settings.out_dir):
        done = (prepare_on_ray if settings.engine == "ray" else prepare_shared)(settings)
    made = _require_same(settings, done.reading)  # not what another command made here meanwhile
    return replace(
        made,
        seconds=done.seconds,
        peak_bytes=done.peak_bytes,
        budget_bytes=done.budget_bytes,
        was_there=False,
    )


def _prepare(
    settings: PrepareSettings, load_tokenizer: Callable[[], Tokenizer] | None
) -> PrepareResult:
    notices: list[str] = []
    inputs = expand_inputs(settings.input_files, on_notice=notices.append)
    if settings.keep_top is not None:
        require_rereadable(inputs)
    if settings.step:
        notices.append(STEP_NOTICE)
    needs = Inputs.of(inputs, settings)  # first: what it imports is a part of the program
    budget = MemoryBudget.from_setting(settings.memory)
    shares = plan_shares(settings, budget, needs)
    with (
        Progress("prepare", budget_bytes=budget.total_bytes) as progress,
        WorkerPool(shares.num_workers) as pool,
    ):
        for notice in notices:
            progress.note(notice)
        if settings.dedup:
            reading = settings.reading(
                reader_bytes=shares.reader_bytes, budget_bytes=budget.total_bytes
            )
            inputs = drop_copies(inputs, reading, on_notice=progress.note)
        check_disk(
            settings.out_dir,
            inputs,
            progress,
            one_pass_bytes=shares.one_pass_bytes,
            near_copies=settings.keeps_text,
        )
        created = not settings.out_dir.exists()
        with (
            naming_folder(settings.out_dir),
            files.hold_lock(settings.out_dir, create_folder=True, on_notice=progress.note),
        ):
            if _is_finished(settings.out_dir):  # by a command that ended just now
                return _require_same(settings)
            run = _Preparation(settings, shares, inputs, pool, progress, created=created)
            return run.run(load_tokenizer or run.load_tokenizer)


@contextlib.contextmanager
def _folder_beside(path: Path) -> Generator[Path]:
    """Return a folder on the same disk for what a dry run keeps meanwhile; nothing of it stays."""
    place = path.absolute()
    while not (place.is_dir() and os.access(place, os.W_OK)) and place != place.parent:
        place = place.parent
    try:
        folder = ScratchFolder("dry-run", inside=place)
    except OSError:
        folder = ScratchFolder("dry-run")
    try:
        yield folder.path
    finally:
        folder.remove()


@contextlib.contextmanager
def naming_folder(root: Path) -> Generator[None]:
    """Turn an error of the system (a full disk, mostly) into one that says where and what next."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(root)
        raise from_os_error(error) from error


@contextlib.contextmanager
def noticing_changes(inputs: Sequence[InputFile], forget: Callable[[], None]) -> Generator[None]:
    """Say that an input was changed while it was read, where that is why reading failed.

    What was read of it is forgotten: half of it may be old, half new.
    """
    try:
        yield
    except Exception as error:
        changed = next((source for source in inputs if has_changed(source)), None)
        if changed is None:
            raise
        forget()
        raise changed_input(changed) from error


def _require_same(
    settings: PrepareSettings, reading: ReadingSettings | None = None
) -> PrepareResult:
    """Return the dataset that is there, if this very command would make it; else refuse."""
    root = settings.out_dir
    info = layout.load_dataset_info(root)
    metadata = info.metadata
    difference = _find_difference(settings, metadata, reading)
    if difference is not None:
        raise UsageError(
            f"there is a finished dataset here already, and {difference}",
            path=root,
            next_step="choose another --out-dir, or add to it with lowtide append",
        )
    if (root / WORK_NAME).is_dir() and not has_plan(root, verb="append"):
        remove_work(root)  # a kill came while its work files were removed
    report, notices = metadata["cleaning"], metadata["notices"]
    return PrepareResult(info, report, notices, 0.0, 0, 0, was_there=True)


def _find_difference(
    settings: PrepareSettings, metadata: dict[str, Any], reading: ReadingSettings | None
) -> str | None:
    """Say what a finished dataset was made otherwise with, or of; None if nothing differs."""
    before = metadata.get("settings")
    if not isinstance(before, dict) or "sources" not in metadata:
        return "nothing says what it was made of"
    other = find_other_setting(before, plan_settings(settings))
    if other is not None:
        return "it was made with {} {}, now it is {}".format(*other)
    inputs = expand_inputs(settings.input_files)
    if reading is None:
        budget = MemoryBudget.from_setting(settings.memory)
        shares = plan_shares(settings, budget, Inputs.of(inputs, settings))
        reading = settings.reading(
            reader_bytes=shares.reader_bytes, budget_bytes=budget.total_bytes
        )
    if settings.dedup:
        inputs = drop_copies(inputs, reading, on_notice=lambda _: None)
    appended = sum(len(event["input_files"]) for event in metadata.get("appended", []))
    rows = metadata["sources"]
    return find_other_source(inputs, rows[: len(rows) - appended], reading)


def _is_finished(root: Path) -> bool:
    return (root / layout.METADATA_NAME).exists()


def _refuse_strangers(root: Path) -> None:
    strangers = [
        path.name
        for split in layout.SPLITS
        for path in (root / split).glob("*.bin")
        if not (root / WORK_NAME).exists()
    ]
    if strangers:
        raise UsageError(
            f"{strangers[0]} is here already, but no dataset that it belongs to",
            path=root,
            next_step="choose another --out-dir",
        )


def run_cleaning(
    job: CleanJob, pool: WorkerPool, progress: Progress, *, name: str | None = None
) -> BlockTable:
    """Clean all inputs of a job, and show what could not be read."""
    total = sum(stream.size_bytes for stream in job.streams)
    usual = "clean" if job.consumer is None else "clean, encode"
    with progress.phase(name or usual, total=total, unit="B") as phase:
        clean_corpus(job, pool, on_done=phase.advance)
        table = load_block_table(job)
    for notice in table.notices:
        progress.note(notice)
    return table


@dataclass(frozen=True)
class RankedInputs:
    """Which scores stay, and what was read to know it."""

    cut: ScoreCut
    contents: InputHashes

    def require_same(self, inputs: Sequence[InputFile], contents: InputHashes) -> None:
        """Refuse inputs that were others when their scores were ranked."""
        for source in inputs:
            if self.contents.get(source.index) != contents.get(source.index):
                raise changed_input(source)


def run_scoring(
    job: CleanJob, pool: WorkerPool, progress: Progress, share: float
) -> tuple[ScoreCut, InputHashes]:
    """Score all documents of a job and find where the best share of them ends."""
    total = sum(stream.size_bytes for stream in job.streams)
    with progress.phase("score", total=total, unit="B") as phase:
        clean_corpus(job, pool, on_done=phase.advance)
        cut, contents = find_score_cut(job, share)
    progress.note(describe_cut(cut))
    return cut, contents


def run_deduplication(
    table: BlockTable,
    folder: Path,
    pool: WorkerPool,
    progress: Progress,
    shares: Shares,
    *,
    leave_out: LeaveOut | None = None,
) -> RemovedLines:
    """Find all duplicates among the blocks of a table."""
    total = sum(table.num_hashes)
    with progress.phase("deduplicate", total=total, unit="lines") as phase:
        return find_duplicates(
            table,
            folder,
            pool,
            table_bytes=shares.table_bytes,
            on_done=phase.advance,
            leave_out=leave_out,
        )


def run_encoding(
    job: EncodeJob,
    table: BlockTable,
    removed: Removed | None,
    pool: WorkerPool,
    progress: Progress,
    *,
    first_block: int = 0,
) -> None:
    """Encode all blocks of a table from `first_block` on."""
    total = sum(table.text_bytes[first_block:])
    tokens = 0
    with progress.phase("encode", total=total, unit="B") as phase:

        def done(text_bytes: int, num_tokens: int) -> None:
            nonlocal tokens
            tokens += num_tokens
            phase.advance(text_bytes, tokens=tokens)

        encode_corpus(job, table, removed, pool, first_block=first_block, on_done=done)


def run_sharding(
    job: ShardJob, plan: ShardPlan, pool: WorkerPool, progress: Progress
) -> dict[str, list[layout.ShardInfo]]:
    """Write all shards of a plan."""
    total = sum(last - first for _, _, first, last in plan.shards)
    with progress.phase("write shards", total=total, unit="tokens") as phase:
        return write_shards(job, plan, pool, on_done=phase.advance)


class _Preparation:
    """One run of `lowtide prepare`, phase by phase."""

    def __init__(
        self,
        settings: PrepareSettings,
        shares: Shares,
        inputs: InputList,
        pool: WorkerPool,
        progress: Progress,
        *,
        created: bool,
    ) -> None:
        self.settings = settings
        self.shares = shares
        self.inputs = inputs
        self.pool = pool
        self.progress = progress
        self.created = created
        self.reading = settings.reading(
            reader_bytes=shares.reader_bytes, budget_bytes=progress.budget_bytes
        )
        self.streams = plan_streams(inputs, self.reading)
        self.work, _ = open_work(
            settings.out_dir,
            verb="prepare",
            settings=plan_settings(settings),
            streams=self.streams,
            restart=settings.restart,
            on_notice=progress.note,
        )
        if not settings.dry_run:
            progress.metrics_path = settings.out_dir / METRICS_NAME

    def run(self, load_tokenizer: Callable[[], Tokenizer]) -> PrepareResult:
        with ThreadPoolExecutor(1, thread_name_prefix="lowtide-tokenizer") as beside:
            return self.run_phases(beside, load_tokenizer)

    def run_phases(
        self, beside: ThreadPoolExecutor, load_tokenizer: Callable[[], Tokenizer]
    ) -> PrepareResult:
        settings = self.settings
        loading, encoding = None, None
        if settings.tokenization != "char" and not settings.dry_run:
            # The native workers need no interpreter, so they begin to clean meanwhile.
            loading = beside.submit(load_tokenizer)
            if settings.tokenization != "gpt2":
                loading.result()  # an unknown name is better told before the text is read
            encoding = beside.submit(lambda: self.encode_job(loading.result()))
        cut = None if settings.keep_top is None else self.find_cut(settings.keep_top)
        table = self.clean(encoding, cut)
        near = self.find_near_copies(table)
        contamination = self.find_contamination(table)
        lines = None
        if settings.dedup and (settings.dry_run or any(table.has_text)):
            lines = self.find_duplicates(table, list_finders(near, contamination))
        finders = list_finders(near, contamination)
        removed = lines if not finders else RemovedText(lines, finders)
        if settings.dry_run:
            return self.finish_dry_run(table, removed, finders)
        tokenizer = loading.result() if loading else _character_tokenizer(table)
        job = self.encode_job(tokenizer)
        if any(table.has_text):
            run_encoding(job, table, removed, self.pool, self.progress)
        info = self.write(job, tokenizer, table, beside, near, contamination)
        remove_work(settings.out_dir)
        return self.result(info, table.report, info.metadata["notices"])

    def load_tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.settings.tokenization)

    def encode_job(self, tokenizer: Tokenizer) -> EncodeJob:
        job = EncodeJob(
            cleaning=self.settings.cleaning,
            coder=Coder(tokenizer, end_id=tokenizer.end_of_text_id),
            shuffle=self.settings.shuffle,
            seed=self.settings.seed,
            # A tokenizer that changed under the same name makes other ids.
            folder=self.work / f"encoded-{tokenizer.fingerprint[:16]}",
        )
        job.folder.mkdir(exist_ok=True)
        return job

    def result(
        self, info: layout.DatasetInfo | None, report: Report, notices: list[str]
    ) -> PrepareResult:
        return PrepareResult(
            info=info,
            report=report.as_json(),
            notices=notices,
            seconds=self.progress.seconds,
            peak_bytes=self.progress.peak_bytes,
            budget_bytes=self.progress.budget_bytes or 0,
        )

    def find_cut(self, share: float) -> RankedInputs:
        """Read everything once for its scores alone."""
        job = CleanJob(
            streams=self.streams,
            reading=self.reading,
            cleaning=replace(self.settings.cleaning, dedup=False),
            folder=self.work / "scores",
            collect_scores=True,
        )
        with noticing_changes(self.inputs, lambda: remove_work(self.settings.out_dir)):
            cut, contents = run_scoring(job, self.pool, self.progress, share)
        return RankedInputs(cut, contents)

    def clean(
        self, encoding: Future[EncodeJob] | None, ranked: RankedInputs | None = None
    ) -> BlockTable:
        one_pass = None
        side_by_side = self.pool.num_workers > 1 and has_many_streams(self.streams)
        if encoding is not None and not side_by_side and not self.settings.keeps_text:
            one_pass = OnePass(
                encoding.result,
                dedup=self.settings.dedup,
                table_bytes=self.shares.one_pass_bytes,
            )
        job = CleanJob(
            streams=self.streams,
            reading=self.reading,
            cleaning=self.settings.cleaning,
            folder=self.work / "clean",
            collect_characters=self.settings.tokenization == "char",
            cut=ranked and ranked.cut,
            consumer=one_pass,
            is_encoded=encoding and (lambda path: encoding.result().path(path).exists()),
        )
        with noticing_changes(self.inputs, lambda: remove_work(self.settings.out_dir)):
            table = run_cleaning(job, self.pool, self.progress)
            require_unchanged(self.inputs, table.contents, self.reading)
            if ranked is not None:
                ranked.require_same(self.inputs, table.contents)
                table.report.cut = ranked.cut
        return table

    def find_near_copies(self, table: BlockTable) -> NearRemovals | None:
        options = self.settings.near
        if options is None:
            return None
        from lowtide.dataset.near.running import find_near_copies  # not for those who do without

        return find_near_copies(
            table,
            self.work / "near",
            options,
            self.pool,
            self.progress,
            table_bytes=self.shares.table_bytes,
            leave_copies=self.settings.dedup,
        )

    def find_contamination(self, table: BlockTable) -> Contamination | None:
        if not self.settings.decontaminate:
            return None
        from lowtide.dataset.near.running import find_contamination

        return find_contamination(
            table,
            self.work / "near",
            load_items(self.settings.item_files),
            self.pool,
            self.progress,
            cuts=self.settings.decontaminate_by == "cut",
        )

    def find_duplicates(self, table: BlockTable, finders: Sequence[Finder]) -> RemovedLines:
        return run_deduplication(
            table,
            self.work / "duplicates",
            self.pool,
            self.progress,
            self.shares,
            leave_out=leave_out_with(finders) if finders else None,
        )

    def finish_dry_run(
        self, table: BlockTable, removed: Removed | None, finders: Sequence[Finder]
    ) -> PrepareResult:
        with self.progress.phase("count", total=len(table), unit="blocks") as phase:
            cleaning = self.settings.cleaning
            for block in range(len(table)):
                kept = keep_block(table, block, removed, cleaning)
                table.report.add(kept.counts, kept.samples)
                phase.advance()
        notices = table.notices + list(chain(*(finder.notices() for finder in finders)))
        return self.result(None, table.report, notices)

    def discard(self) -> None:
        """Remove all work, as nothing will come of it."""
        remove_work(self.settings.out_dir)
        self.progress.metrics_path = None
        if self.created:
            (self.settings.out_dir / METRICS_NAME).unlink(missing_ok=True)

    def write(
        self,
        encode_job: EncodeJob,
        tokenizer: Tokenizer,
        table: BlockTable,
        beside: ThreadPoolExecutor,
        near: NearRemovals | None,
        contamination: Contamination | None,
    ) -> layout.DatasetInfo:
        settings = self.settings
        paths = [encode_job.path(path) for path in table.paths]
        sources = SourceCounts(len(self.inputs))
        total = 0
        for path in paths:
            header = open_work_file(path).header
            table.report.add(header["counts"], header["samples"])
            sources.add(header.get("sources", ()))
            total += header["tokens"]
        if has_too_few(settings, total):
            self.discard()
            raise too_few_tokens(settings, total)
        saving = beside.submit(tokenizer.save, settings.out_dir)
        job = ShardJob(
            root=settings.out_dir,
            encoded=paths,
            shuffle=settings.shuffle,
            val_fraction=settings.val_fraction,
            tokens_per_shard=settings.tokens_per_shard,
            vocab_size=tokenizer.vocab_size,
            range_bytes=self.shares.range_bytes,
            done_folder=self.work / f"shards-{tokenizer.fingerprint[:16]}",
            tag=find_shard_tag(settings, self.inputs, tokenizer, table.contents),
        )
        plan = plan_shards(job)
        shards = run_sharding(job, plan, self.pool, self.progress)
        remove_other_shards(settings.out_dir, [shard.path for shard in chain(*shards.values())])
        saving.result()
        seen = None
        if settings.dedup:
            seen = write_seen(settings.out_dir, 0, table.paths, paths)
        return write_dataset(
            settings,
            self.inputs,
            self.reading,
            tokenizer,
            Made(
                plan.split_mode,
                shards,
                table.report,
                table.notices,
                table.contents,
                sources,
                seen,
                near,
                contamination,
            ),
        )


def list_finders(*found: Finder | None) -> list[Finder]:
    """Those who looked for something."""
    return [finder for finder in found if finder is not None]


def _character_tokenizer(table: BlockTable) -> Tokenizer:
    return Tokenizer.from_characters(map(chr, table.list_characters()))
