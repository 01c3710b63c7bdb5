"""Prepare a dataset in this process, phase by phase, on a pool of threads (`--engine threads`).

In:      the settings, the shares of the budget, the inputs
Out:     shards and, last, the metadata; a PrepareResult
Memory:  shares of one budget: blocks being processed, a hash table, rows of documents, tokenizer

Every phase is a list of tasks whose results are files, written atomically; a task whose file exists
is not run again. So a killed command resumes where it stopped, with a byte-identical result.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from lowtide.corpus.blockcleaning import CleanJob, has_many_streams
from lowtide.corpus.blocktable import BlockTable
from lowtide.corpus.deduplication import RemovedLines
from lowtide.corpus.evaluations import load_items
from lowtide.corpus.inputs import InputList
from lowtide.corpus.reading import ReadingSettings, plan_streams
from lowtide.corpus.removals import Report
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset import layout
from lowtide.dataset.encoding import (
    Coder,
    EncodedTotals,
    EncodeJob,
    Removed,
    keep_block,
)
from lowtide.dataset.existing import PrepareResult
from lowtide.dataset.finishing import (
    Made,
    find_shard_tag,
    has_too_few,
    plan_settings,
    too_few_tokens,
    write_dataset,
)
from lowtide.dataset.identity import require_unchanged
from lowtide.dataset.onepass import OnePass
from lowtide.dataset.phases import (
    RankedInputs,
    noticing_changes,
    run_cleaning,
    run_deduplication,
    run_encoding,
    run_scoring,
    run_sharding,
)
from lowtide.dataset.removed import Finder, RemovedText, leave_out_with, list_finders
from lowtide.dataset.resources import Shares, check_characters
from lowtide.dataset.seen import write_seen
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.sharding import ShardJob, plan_shards, remove_other_shards
from lowtide.dataset.workfolder import open_work, remove_work
from lowtide.filenames import METRICS_NAME
from lowtide.progress import Progress
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lowtide.dataset.contamination import Contamination
    from lowtide.dataset.near.removedcopies import NearRemovals

__all__ = ["Preparation"]


class Preparation:
    """One run of `lowtide prepare`, phase by phase."""

    def __init__(
        self,
        settings: PrepareSettings,
        shares: Shares,
        inputs: InputList,
        reading: ReadingSettings,
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
        self.reading = reading
        self.streams = plan_streams(inputs, self.reading)
        self.totals = EncodedTotals(len(inputs))
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

    def run(self) -> PrepareResult:
        with ThreadPoolExecutor(1, thread_name_prefix="lowtide-tokenizer") as beside:
            return self.run_phases(beside)

    def run_phases(self, beside: ThreadPoolExecutor) -> PrepareResult:
        settings = self.settings
        loading, encoding = None, None
        if settings.tokenization != "char" and not settings.dry_run:
            # The native workers do not hold the GIL, so cleaning starts while this loads.
            loading = beside.submit(Tokenizer.load, settings.tokenization)
            if settings.tokenization != "gpt2":
                loading.result()  # report an unknown name before the text is read
            encoding = beside.submit(lambda: self.encode_job(loading.result()))
        cut = None if settings.keep_top is None else self.find_cut(settings.keep_top)
        table = self.clean(encoding, cut)
        near = self.find_near_copies(table)
        contamination = self.find_contamination(table)
        finders = list_finders(near, contamination)
        lines = None
        if settings.dedup and (settings.dry_run or any(table.has_text)):
            lines = self.find_duplicates(table, finders)
        removed = lines if not finders else RemovedText(lines, finders)
        if settings.dry_run:
            return self.finish_dry_run(table, removed, finders)
        tokenizer = loading.result() if loading else self.character_tokenizer(table)
        job = self.encode_job(tokenizer)
        if any(table.has_text):
            run_encoding(job, table, removed, self.pool, self.progress)
        info = self.write(job, tokenizer, table, beside, near, contamination)
        remove_work(settings.out_dir, pool=self.pool)
        return self.result(info, table.report, info.metadata["notices"])

    def character_tokenizer(self, table: BlockTable) -> Tokenizer:
        codes = table.list_characters()
        check_characters(len(codes), self.shares, self.progress.budget_bytes or 0)
        return Tokenizer.from_characters(map(chr, codes))

    def encode_job(self, tokenizer: Tokenizer) -> EncodeJob:
        job = EncodeJob(
            cleaning=self.settings.cleaning,
            coder=Coder(tokenizer, end_id=tokenizer.end_of_text_id),
            shuffle=self.settings.shuffle,
            seed=self.settings.seed,
            # By fingerprint, because a tokenizer of the same name may have changed.
            folder=self.work / f"encoded-{tokenizer.fingerprint[:16]}",
        )
        job.folder.mkdir(exist_ok=True)
        return job

    def result(
        self, info: layout.DatasetInfo | None, report: Report, notices: list[str]
    ) -> PrepareResult:
        return PrepareResult(
            dataset=info,
            report=report.as_json(),
            notices=notices,
            seconds=self.progress.seconds,
            peak_bytes=self.progress.peak_bytes,
            budget_bytes=self.progress.budget_bytes or 0,
        )

    def find_cut(self, share: float) -> RankedInputs:
        """Read everything once, only for its scores."""
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
            table = run_cleaning(job, self.pool, self.progress, totals=self.totals)
            require_unchanged(self.inputs, table.contents, self.reading)
            if ranked is not None:
                ranked.require_same(self.inputs, table.contents)
                table.report.cut = ranked.cut
        return table

    def find_near_copies(self, table: BlockTable) -> NearRemovals | None:
        options = self.settings.near
        if options is None:
            return None
        from lowtide.dataset.near.running import find_near_copies  # imported only if it is used

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
            load_items(self.settings.item_files, self.settings),
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
            leave_out=leave_out_with(finders),
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
        """Remove all work files, because there will be no dataset."""
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
        totals = self.totals
        totals.finish(paths, table.report)
        if has_too_few(settings, totals.num_tokens):
            self.discard()
            raise too_few_tokens(settings, totals.num_tokens)
        saving = beside.submit(tokenizer.save, settings.out_dir)
        hashing = None
        if settings.dedup:
            hashing = beside.submit(
                write_seen, settings.out_dir, 0, table.paths, paths, find=totals.find_seen
            )
        job = ShardJob(
            root=settings.out_dir,
            encoded=paths,
            shuffle=settings.shuffle,
            val_fraction=settings.val_fraction,
            tokens_per_shard=settings.tokens_per_shard,
            vocab_size=tokenizer.vocab_size,
            num_documents=totals.num_documents,
            num_workers=self.pool.num_workers,
            range_bytes=self.shares.range_bytes,
            done_folder=self.work / f"shards-{tokenizer.fingerprint[:16]}",
            tag=find_shard_tag(settings, self.inputs, tokenizer, table.contents),
        )
        plan = plan_shards(job)
        shards = run_sharding(job, plan, self.pool, self.progress)
        remove_other_shards(settings.out_dir, [shard.path for shard in chain(*shards.values())])
        saving.result()
        write_dataset(
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
                totals.sources,
                hashing and hashing.result(),
                near,
                contamination,
            ),
        )
        return layout.load_dataset_info(settings.out_dir)
